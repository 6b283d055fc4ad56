// The body of matrix products by cooperative matrices of subgroups (VK_KHR_cooperative_matrix): a group makes a tile of
// TILE_M x TILE_N, staged through shared memory STEP steps of K at a time; a subgroup makes WARP_M x WARP_N of it, and
// loads its share of the next step while it multiplies. Shared memory holds the operands as they lie in memory.
#ifndef VKPAR_COOP_GLSL
#define VKPAR_COOP_GLSL

#define FORMS
#include "matmul.glsl"
#include "bands.glsl"

layout(local_size_x = THREADS) in;
layout(constant_id = 7) const uint TILE_M = 128;
layout(constant_id = 8) const uint TILE_N = 128;
layout(constant_id = 9) const bool A_EIGHTS = false;  // first element and row length are multiples of 8, and so on
layout(constant_id = 10) const bool B_EIGHTS = false;
layout(constant_id = 18) const uint STEP = 32;
layout(constant_id = 19) const uint WARP_M = 64;
layout(constant_id = 20) const uint WARP_N = 32;
layout(constant_id = 21) const uint WARP = 32;  // invocations of a subgroup
layout(constant_id = 22) const uint BUFFERS = 2;  // 2: one is filled while the other is read
layout(constant_id = 23) const uint FM = 16;  // of one cooperative matrix
layout(constant_id = 24) const uint FN = 16;
layout(constant_id = 25) const uint FK = 16;

#if BFLOAT
#define HALF bfloat16_t
#else
#define HALF float16_t
#endif

// In units of 16 bytes: rows of the tiles, each with one unit more, which spreads them over the banks.
const uint A_ROWS = TRANSPOSE_A ? STEP : TILE_M;
const uint A_UNITS = (TRANSPOSE_A ? TILE_M : STEP) / 8u;
const uint B_ROWS = TRANSPOSE_B ? TILE_N : STEP;
const uint B_UNITS = (TRANSPOSE_B ? STEP : TILE_N) / 8u;
const uint A_SIZE = A_ROWS * (A_UNITS + 1u);
const uint B_SIZE = B_ROWS * (B_UNITS + 1u);
const uint A_TURNS = (A_ROWS * A_UNITS + THREADS - 1u) / THREADS;
const uint B_TURNS = (B_ROWS * B_UNITS + THREADS - 1u) / THREADS;
const uint OUT_UNITS = WARP_N / 4u;
const uint OUT_SIZE = THREADS / WARP * FM * OUT_UNITS;
const uint LOADED = BUFFERS * (A_SIZE + B_SIZE);

const uint MREP = WARP_M / FM;
const uint NREP = WARP_N / FN;

#define SUMS coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
shared uvec4 tiles[LOADED > OUT_SIZE ? LOADED : OUT_SIZE];

uint part_at(uint part, uint units) {
    return part / units * (units + 1u) + part % units;
}

// The last turn may have nothing to do for some.
#define EACH_A [[unroll]] for (uint p = 0u; p < A_TURNS; p++) if (id + p * THREADS < A_ROWS * A_UNITS)
#define EACH_B [[unroll]] for (uint p = 0u; p < B_TURNS; p++) if (id + p * THREADS < B_ROWS * B_UNITS)

uint left(uint limit, uint at) {
    return at < limit ? limit - at : 0u;
}

// Of eight elements from i on the first n, zero for the others.
uvec4 a_eight(uint i, uint n) {
    uvec4 packed = uvec4(0u);
    if (A_EIGHTS) {
        if (n > 0u) packed = a_word4[i >> 3];
    } else {
        packed.xy = a_packed4(i, n).xy;
        packed.zw = a_packed4(i + 4u, n - min(n, 4u)).xy;
    }
    return packed;
}

uvec4 b_eight(uint i, uint n) {
    uvec4 packed = uvec4(0u);
    if (B_EIGHTS) {
        if (n > 0u) packed = b_word4[i >> 3];
    } else {
        packed.xy = b_packed4(i, n).xy;
        packed.zw = b_packed4(i + 4u, n - min(n, 4u)).xy;
    }
    return packed;
}

// Rows past the end of M, and columns past that of N, repeat the last one or are zero: what they give is not stored.
uvec4 fetch_a(uint part, uint row0, uint k0) {
    uint row = part / A_UNITS, at = part % A_UNITS * 8u, n;
    if (TRANSPOSE_A) {
        row += k0;
        at += row0;
        n = row < k_end() ? left(push.m, at) : 0u;
    } else {
        row = min(row0 + row, push.m - 1u);
        at += k0;
        n = left(k_end(), at);
    }
    return a_eight(a_origin() + row * push.a_row + at, n);
}

uvec4 fetch_b(uint part, uint column0, uint k0) {
    uint row = part / B_UNITS, at = part % B_UNITS * 8u, n;
    if (TRANSPOSE_B) {
        row = min(column0 + row, push.n - 1u);
        at += k0;
        n = left(k_end(), at);
    } else {
        row += k0;
        at += column0;
        n = row < k_end() ? left(push.n, at) : 0u;
    }
    return b_eight(b_origin() + row * push.b_row + at, n);
}

// Stores what a subgroup has put into shared memory: FM rows of WARP_N columns.
void store_rows(uint row0, uint column0, uint own) {
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < FM * OUT_UNITS; i += WARP) {
        store_row4(row0 + i / OUT_UNITS, column0 + i % OUT_UNITS * 4u, uintBitsToFloat(tiles[own + i]));
    }
}

// Stores row P of a subgroup's matrices. No loop over the rows: drivers do not unroll one around another that stays, and
// an array of matrices with an index that is not constant lies in memory.
#define STORE(P) \
    if (P < MREP) { \
        [[unroll]] for (uint q = 0u; q < NREP; q++) { \
            coopMatStore( \
                sums[P * NREP + q], tiles, own + q * FN / 4u, OUT_UNITS, gl_CooperativeMatrixLayoutRowMajor); \
        } \
        subgroupBarrier(); \
        store_rows(corner.x + warp_m + P * FM, corner.y + warp_n, own); \
        subgroupBarrier(); \
    }

void make(uvec2 corner) {
    uint id = gl_LocalInvocationID.x, warp = gl_SubgroupID;
    uint warp_m = warp % (TILE_M / WARP_M) * WARP_M, warp_n = warp / (TILE_M / WARP_M) * WARP_N;

    SUMS sums[MREP * NREP];
    [[unroll]] for (uint i = 0u; i < MREP * NREP; i++) sums[i] = SUMS(0.0);
    uvec4 a_next[A_TURNS];
    uvec4 b_next[B_TURNS];
    EACH_A a_next[p] = fetch_a(id + p * THREADS, corner.x, k_begin());
    EACH_B b_next[p] = fetch_b(id + p * THREADS, corner.y, k_begin());
    uint a_at = 0u;
    [[dont_unroll]] for (uint k0 = k_begin(); k0 < k_end(); k0 += STEP) {
        uint b_at = a_at + A_SIZE;
        if (BUFFERS == 1u) barrier();
        EACH_A tiles[a_at + part_at(id + p * THREADS, A_UNITS)] = a_next[p];
        EACH_B tiles[b_at + part_at(id + p * THREADS, B_UNITS)] = b_next[p];
        barrier();
        if (k0 + STEP < k_end()) {
            EACH_A a_next[p] = fetch_a(id + p * THREADS, corner.x, k0 + STEP);
            EACH_B b_next[p] = fetch_b(id + p * THREADS, corner.y, k0 + STEP);
        }
        [[unroll]] for (uint k = 0u; k < STEP; k += FK) {
            coopmat<HALF, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA> x[MREP];
            [[unroll]] for (uint p = 0u; p < MREP; p++) {
                uint m = warp_m + p * FM;
                if (TRANSPOSE_A) {
                    coopMatLoad(x[p], tiles, a_at + k * (A_UNITS + 1u) + m / 8u, A_UNITS + 1u,
                                gl_CooperativeMatrixLayoutColumnMajor);
                } else {
                    coopMatLoad(x[p], tiles, a_at + m * (A_UNITS + 1u) + k / 8u, A_UNITS + 1u,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            [[unroll]] for (uint q = 0u; q < NREP; q++) {
                coopmat<HALF, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB> y;
                uint n = warp_n + q * FN;
                if (TRANSPOSE_B) {
                    coopMatLoad(y, tiles, b_at + n * (B_UNITS + 1u) + k / 8u, B_UNITS + 1u,
                                gl_CooperativeMatrixLayoutColumnMajor);
                } else {
                    coopMatLoad(y, tiles, b_at + k * (B_UNITS + 1u) + n / 8u, B_UNITS + 1u,
                                gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint p = 0u; p < MREP; p++) {
                    sums[p * NREP + q] = coopMatMulAdd(x[p], y, sums[p * NREP + q]);
                }
            }
        }
        if (BUFFERS > 1u) a_at = A_SIZE + B_SIZE - a_at;
    }

    // Matrices do not say which element lies where: they go through shared memory.
    barrier();
    uint own = warp * FM * OUT_UNITS;
    STORE(0u) STORE(1u) STORE(2u) STORE(3u) STORE(4u) STORE(5u) STORE(6u) STORE(7u)
}

void main() {
    uint tiles_m = (push.m + TILE_M - 1u) / TILE_M;
    uint tiles_n = (push.n + TILE_N - 1u) / TILE_N;
    if (group_number() < tiles_m * tiles_n) {
        make(tile_of(group_number(), tiles_m, tiles_n) * uvec2(TILE_M, TILE_N));
    }
}

#endif
