// The order in which work-groups walk the tiles of a matrix: in bands of 8 tile rows, so that neighbours in time share
// the cache.
#ifndef VKPAR_BANDS_GLSL
#define VKPAR_BANDS_GLSL

const uint BAND = 8u;

uvec2 tile_of(uint number, uint tiles_m, uint tiles_n) {
    uint band = number / (BAND * tiles_n);
    uint height = min(tiles_m - band * BAND, BAND);
    uint within = number - band * BAND * tiles_n;
    return uvec2(band * BAND + within % height, within / height);
}

#endif
