// The main function of products by matrix cores: a group makes one tile, of which `make` is given the first row and column.
#ifndef VKPAR_COOP_MAIN_GLSL
#define VKPAR_COOP_MAIN_GLSL

#include "bands.glsl"

void main() {
    uint tiles_m = (push.m + TILE_M - 1u) / TILE_M;
    uint tiles_n = (push.n + TILE_N - 1u) / TILE_N;
    if (group_number() < tiles_m * tiles_n) {
        make(tile_of(group_number(), tiles_m, tiles_n) * uvec2(TILE_M, TILE_N));
    }
}

#endif
