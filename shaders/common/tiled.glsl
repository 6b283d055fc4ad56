// The body of matrix products in tiles: a work-group makes one of TILE_M x TILE_N, staged through shared memory STEP steps
// of K at a time. An invocation holds (4 * MREP) x (4 * NREP) sums, and while it multiplies, its share of the next steps is
// on the way from memory to registers; shared memory has two places for them, so that there is one barrier each time.
#ifndef VKPAR_TILED_GLSL
#define VKPAR_TILED_GLSL

#include "matmul.glsl"
#include "bands.glsl"

layout(local_size_x_id = 18) in;
layout(constant_id = 7) const uint MREP = 1;  // 1, 2 or 4
layout(constant_id = 8) const uint NREP = 1;  // 1 or 2
layout(constant_id = 18) const uint THREADS = 256;

const uint STEP = 8u;
const uint TILE_M = THREADS / 4u * MREP;
const uint TILE_N = 64u * NREP;
const uint PAD_M = TILE_M / 4u + 1u;  // in vec4: an odd stride spreads the transposed writes over the banks
const uint PAD_N = TILE_N / 4u + 1u;
const uint A_PARTS = TILE_M * STEP / 4u;  // four elements each, which the group loads at a time
const uint B_PARTS = TILE_N * STEP / 4u;
const uint A_TURNS = (A_PARTS + THREADS - 1u) / THREADS;
const uint B_TURNS = (B_PARTS + THREADS - 1u) / THREADS;
const uint B_AT = STEP * PAD_M;
const uint PLACE = B_AT + STEP * PAD_N;

shared vec4 places[2u * PLACE];  // of each a's [k][row / 4], then b's [k][column / 4]

// Bounds that only the driver knows: unrolled by the compiler here instead, an H200 needed more registers.
#define UNROLL(v, n) [[unroll]] for (uint v = 0u; v < n; v++)
#define EACH_A UNROLL(p, A_TURNS) if (A_PARTS >= THREADS || id < A_PARTS)
#define EACH_B UNROLL(q, B_TURNS) if (B_PARTS >= THREADS || id < B_PARTS)

uint left(uint limit, uint at) {
    return at < limit ? limit - at : 0u;
}

// Where a part lies in its tile: from which row (of b: column) and step of K on. Its four elements are steps of K, or rows
// of a transposed a (columns of b).
uvec2 spot_a(uint part) {
    return TRANSPOSE_A ? uvec2(part % (TILE_M / 4u) * 4u, part / (TILE_M / 4u))
                       : uvec2(part / (STEP / 4u), part % (STEP / 4u) * 4u);
}

uvec2 spot_b(uint part) {
    return TRANSPOSE_B ? uvec2(part / (STEP / 4u), part % (STEP / 4u) * 4u)
                       : uvec2(part % (TILE_N / 4u) * 4u, part / (TILE_N / 4u));
}

// The element of the binding there. Rows past the end repeat the last one: what they give is not stored.
uint index_a(uvec2 at) {
    uint row = min(at.x, push.m - 1u);
    return a_origin() + (TRANSPOSE_A ? at.y * push.a_row + at.x : row * push.a_row + at.y);
}

uint index_b(uvec2 at) {
    uint row = min(at.x, push.n - 1u);
    return b_origin() + (TRANSPOSE_B ? row * push.b_row + at.y : at.y * push.b_row + at.x);
}

uvec4 fetch_a(uint part, uint row0, uint k0) {
    uvec2 at = spot_a(part) + uvec2(row0, k0);
    uint n = TRANSPOSE_A ? (at.y < k_end() ? left(push.m, at.x) : 0u) : left(k_end(), at.y);
    return a_packed4(index_a(at), n);
}

uvec4 fetch_b(uint part, uint column0, uint k0) {
    uvec2 at = spot_b(part) + uvec2(column0, k0);
    uint n = TRANSPOSE_B ? left(k_end(), at.y) : (at.y < k_end() ? left(push.n, at.x) : 0u);
    return b_packed4(index_b(at), n);
}

void put_a(uint place, uint part, vec4 v) {
    uvec2 at = spot_a(part);
    if (TRANSPOSE_A) {
        places[place + at.y * PAD_M + at.x / 4u] = v;
    } else {
        UNROLL(j, 4u) {
            places[place + (at.y + j) * PAD_M + at.x / 4u][at.x % 4u] = v[j];
        }
    }
}

void put_b(uint place, uint part, vec4 v) {
    uvec2 at = spot_b(part);
    if (TRANSPOSE_B) {
        UNROLL(j, 4u) {
            places[place + B_AT + (at.y + j) * PAD_N + at.x / 4u][at.x % 4u] = v[j];
        }
    } else {
        places[place + B_AT + at.y * PAD_N + at.x / 4u] = v;
    }
}

// An invocation's share of the steps of K from K0 on, into registers. In a tile that lies inside of the matrices nothing
// is checked, and an index goes on from the one before.
#define LOAD(K0) { \
    uint k = K0; \
    if (inside) { \
        EACH_A { \
            a_next[p] = a_packed4(a_at[p], 4u); \
            a_at[p] += a_by; \
        } \
        EACH_B { \
            b_next[q] = b_packed4(b_at[q], 4u); \
            b_at[q] += b_by; \
        } \
    } else { \
        EACH_A a_next[p] = fetch_a(id + p * THREADS, corner.x, k); \
        EACH_B b_next[q] = fetch_b(id + q * THREADS, corner.y, k); \
    } \
}

#define PUT { \
    EACH_A put_a(place, id + p * THREADS, a_unpack4(a_next[p])); \
    EACH_B put_b(place, id + q * THREADS, b_unpack4(b_next[q])); \
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
    uint row4 = id / 64u * 4u * MREP + id % 32u / 8u;       // in vec4 of rows
    uint column4 = id / 32u % 2u * 8u * NREP + id % 8u;     // in vec4 of columns

    vec4 sums[4u * MREP][NREP];
    UNROLL(i, 4u * MREP) UNROLL(q, NREP) sums[i][q] = vec4(0.0);
    uint first = k_begin();
    uint last = k_end();
    bool inside = A_WIDE && B_WIDE && corner.x + TILE_M <= push.m && corner.y + TILE_N <= push.n
                  && (last - first) % STEP == 0u;
    uint a_at[A_TURNS];
    uint b_at[B_TURNS];
    UNROLL(p, A_TURNS) a_at[p] = index_a(spot_a(id + p * THREADS) + uvec2(corner.x, first));
    UNROLL(q, B_TURNS) b_at[q] = index_b(spot_b(id + q * THREADS) + uvec2(corner.y, first));
    uint a_by = TRANSPOSE_A ? STEP * push.a_row : STEP;
    uint b_by = TRANSPOSE_B ? STEP : STEP * push.b_row;
    uvec4 a_next[A_TURNS];
    uvec4 b_next[B_TURNS];
    uint place = 0u;
    LOAD(first)
    PUT
    barrier();
    for (uint k0 = first; k0 < last; k0 += STEP) {
        bool more = k0 + STEP < last;
        if (more) LOAD(k0 + STEP)
        uint a_from = place + row4;
        uint b_from = place + B_AT + column4;
        UNROLL(k, STEP) {
            vec4 y[NREP];
            UNROLL(q, NREP) y[q] = places[b_from + k * PAD_N + q * 8u];
            UNROLL(p, MREP) {
                vec4 x = places[a_from + k * PAD_M + p * 4u];
                UNROLL(j, 4u) UNROLL(q, NREP) sums[p * 4u + j][q] += x[j] * y[q];
            }
        }
        place = PLACE - place;
        if (more) PUT
        barrier();
    }
    UNROLL(p, MREP) UNROLL(j, 4u) UNROLL(q, NREP) {
        uint row = corner.x + (row4 + p * 4u) * 4u + j;
        store_row4(row, corner.y + (column4 + q * 8u) * 4u, sums[p * 4u + j][q]);
    }
}

#endif
