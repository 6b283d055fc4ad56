// The body of matrix products in tiles: a work group makes one of (64 * MREP) x (64 * NREP), staged through shared memory
// 16 steps of K at a time; an invocation holds (4 * MREP) x (4 * NREP) sums and loads the next step while it multiplies.
#ifndef VKPAR_TILED_GLSL
#define VKPAR_TILED_GLSL

#include "matmul.glsl"
#include "bands.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 7) const uint MREP = 1;  // 1 or 2
layout(constant_id = 8) const uint NREP = 1;

const uint STEP = 16u;
const uint TILE_M = 64u * MREP;
const uint TILE_N = 64u * NREP;
const uint PAD_M = TILE_M / 4u + 1u;  // in vec4: an odd stride spreads the transposed writes over the banks
const uint PAD_N = TILE_N / 4u + 1u;

// Bounds that only the driver knows: unrolled by the compiler here instead, an H200 needed 134 registers, not 128, and
// with one work group at a time a sixth longer.
#define EACH_M [[unroll]] for (uint p = 0u; p < MREP; p++)
#define EACH_N [[unroll]] for (uint q = 0u; q < NREP; q++)

shared vec4 a_tile[STEP * PAD_M];  // [k][row / 4]
shared vec4 b_tile[STEP * PAD_N];  // [k][column / 4]

uint left(uint limit, uint at) {
    return at < limit ? limit - at : 0u;
}

// Four steps of K of one row, else (a transposed) four rows of one step of K. Rows past the end of K repeat the last
// one: what they give is not stored.
uvec4 fetch_a(uint part, uint row0, uint k0) {
    uint row = min(row0 + part / 4u, push.m - 1u);
    uint at = k0 + part % 4u * 4u;
    uint n = left(push.k, at);
    if (TRANSPOSE_A) {
        row = k0 + part / (TILE_M / 4u);
        at = row0 + part % (TILE_M / 4u) * 4u;
        n = row < push.k ? left(push.m, at) : 0u;
    }
    return a_packed4(a_origin() + row * push.a_row + at, n);
}

// Four steps of K of one column of a transposed b, else four columns of one step of K.
uvec4 fetch_b(uint part, uint column0, uint k0) {
    uint row = k0 + part / (TILE_N / 4u);
    uint at = column0 + part % (TILE_N / 4u) * 4u;
    uint n = row < push.k ? left(push.n, at) : 0u;
    if (TRANSPOSE_B) {
        row = min(column0 + part / 4u, push.n - 1u);
        at = k0 + part % 4u * 4u;
        n = left(push.k, at);
    }
    return b_packed4(b_origin() + row * push.b_row + at, n);
}

void put_a(uint part, vec4 v) {
    if (TRANSPOSE_A) {
        a_tile[part / (TILE_M / 4u) * PAD_M + part % (TILE_M / 4u)] = v;
    } else {
        uint row = part / 4u;
        uint k = part % 4u * 4u;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            a_tile[(k + j) * PAD_M + row / 4u][row % 4u] = v[j];
        }
    }
}

void put_b(uint part, vec4 v) {
    if (TRANSPOSE_B) {
        uint column = part / 4u;
        uint k = part % 4u * 4u;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            b_tile[(k + j) * PAD_N + column / 4u][column % 4u] = v[j];
        }
    } else {
        b_tile[part / (TILE_N / 4u) * PAD_N + part % (TILE_N / 4u)] = v;
    }
}

void main() {
    uint tiles_m = (push.m + TILE_M - 1u) / TILE_M;
    uint tiles_n = (push.n + TILE_N - 1u) / TILE_N;
    if (group_number() >= tiles_m * tiles_n) {
        return;
    }
    uvec2 corner = tile_of(group_number(), tiles_m, tiles_n) * uvec2(TILE_M, TILE_N);
    uint id = gl_LocalInvocationID.x;
    // 32 neighbours cover 16 * MREP rows and 32 * NREP columns: 4 x 8 of them, so shared reads are broadcasts.
    uint row4 = (id / 64u) * 4u * MREP + id % 32u / 8u;        // in vec4 of rows, of a_tile
    uint column4 = (id / 32u % 2u) * 8u * NREP + id % 8u;      // in vec4 of columns, of b_tile

    vec4 sums[8][2];
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        sums[i][0] = vec4(0.0);
        sums[i][1] = vec4(0.0);
    }
    uvec4 a_next[2];
    uvec4 b_next[2];
    EACH_M {
        a_next[p] = fetch_a(id + p * 256u, corner.x, k_begin());
    }
    EACH_N {
        b_next[q] = fetch_b(id + q * 256u, corner.y, k_begin());
    }
    for (uint k0 = k_begin(); k0 < k_end(); k0 += STEP) {
        barrier();
        EACH_M {
            put_a(id + p * 256u, a_unpack4(a_next[p]));
        }
        EACH_N {
            put_b(id + q * 256u, b_unpack4(b_next[q]));
        }
        barrier();
        uint k1 = k0 + STEP;
        if (k1 < k_end()) {
            EACH_M {
                a_next[p] = fetch_a(id + p * 256u, corner.x, k1);
            }
            EACH_N {
                b_next[q] = fetch_b(id + q * 256u, corner.y, k1);
            }
        }
        [[unroll]] for (uint k = 0u; k < STEP; k++) {
            vec4 y[2];
            EACH_N {
                y[q] = b_tile[k * PAD_N + column4 + q * 8u];
            }
            EACH_M {
                vec4 x = a_tile[k * PAD_M + row4 + p * 4u];
                [[unroll]] for (uint j = 0u; j < 4u; j++) {
                    EACH_N {
                        sums[p * 4u + j][q] += x[j] * y[q];
                    }
                }
            }
        }
    }
    EACH_M {
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            EACH_N {
                uint row = corner.x + (row4 + p * 4u) * 4u + j;
                store_row4(row, corner.y + (column4 + q * 8u) * 4u, sums[p * 4u + j][q]);
            }
        }
    }
}

#endif
