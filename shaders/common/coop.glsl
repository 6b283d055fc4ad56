// The body of matrix products by cooperative matrices of subgroups (VK_KHR_cooperative_matrix): a group makes a tile of
// TILE_M x TILE_N, staged through shared memory STEP steps of K at a time; a subgroup makes WARP_M x WARP_N of it. While
// it multiplies, its share of the next step, or of the next two, is on the way from memory to registers, and the matrices
// of the next sixteen steps are on the way from shared memory. Shared memory holds one step, the operands as they lie in
// memory. With WINDOWS rows of b, which is transposed, are windows of an image whose channels come last.
#ifndef VKPAR_COOP_GLSL
#define VKPAR_COOP_GLSL

#define FORMS
#define WINDOWED
#include "matmul.glsl"

layout(local_size_x = THREADS) in;
layout(constant_id = 7) const uint TILE_M = 128;
layout(constant_id = 8) const uint TILE_N = 128;
layout(constant_id = 9) const bool A_EIGHTS = false;  // first element and row length are multiples of 8, and so on
layout(constant_id = 10) const bool B_EIGHTS = false;
layout(constant_id = 18) const uint STEP = 32;
layout(constant_id = 19) const uint WARP_M = 64;
layout(constant_id = 20) const uint WARP_N = 32;
layout(constant_id = 21) const uint WARP = 32;  // invocations of a subgroup
layout(constant_id = 22) const uint AHEAD = 1;  // 1: matrices are loaded ahead of what multiplies them
layout(constant_id = 23) const uint FM = 16;  // of one cooperative matrix
layout(constant_id = 24) const uint FN = 16;
layout(constant_id = 25) const uint FK = 16;
layout(constant_id = 26) const uint SPAN = 1;  // or 2: so many steps are loaded at once
layout(constant_id = 27) const bool O_EIGHTS = false;
layout(constant_id = 28) const bool ROLLED = false;  // few copies of what follows the product: a compiler is sooner done
layout(constant_id = 29) const bool WINDOWS = false;

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
const uint A_ACROSS = TRANSPOSE_A ? A_UNITS : A_UNITS * SPAN;  // units of a row that is loaded
const uint B_ACROSS = TRANSPOSE_B ? B_UNITS * SPAN : B_UNITS;
const uint B_ALONG = B_ACROSS & (~B_ACROSS + 1u);  // of these, what is loaded side by side: of 192 columns a third
const uint B_PIECES = B_ACROSS / B_ALONG;
const uint A_TURNS = (A_ROWS * A_UNITS * SPAN + THREADS - 1u) / THREADS;
const uint B_TURNS = (B_ROWS * B_UNITS * SPAN + THREADS - 1u) / THREADS;
const uint A_LINES = THREADS / A_ACROSS;  // rows that the group loads at a time
const uint B_LINES = THREADS / B_ALONG;
// Two steps of a row along K are a line of the caches. Of these an invocation loads from the one and the other by turns,
// from rows four apart, so that each has as much of either step to store, in other banks than its neighbours.
const bool A_MIXED = SPAN == 2u && !TRANSPOSE_A, B_MIXED = SPAN == 2u && TRANSPOSE_B;
const uint A_SHIFT = A_EIGHTS ? 3u : 0u;  // what memory is indexed by: units, or elements
const uint B_SHIFT = B_EIGHTS ? 3u : 0u;
const uint OUT_UNITS = WARP_N / 4u;
const uint OUT_ROW = OUT_UNITS + 1u;
const uint OUT_SIZE = THREADS / WARP * FM * OUT_ROW;

const uint MREP = WARP_M / FM;  // 4 at most
const uint NREP = WARP_N / FN;
const uint STEPS = STEP / FK;  // 2, 4 or 8

#define SUMS coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
shared uvec4 tiles[A_SIZE + B_SIZE > OUT_SIZE ? A_SIZE + B_SIZE : OUT_SIZE];

// The row that an invocation loads a unit of. With four or two units to a row these are not in order: what eight
// neighbours store at once then lies in different banks. Nor are they with two steps at once.
uint line_of(uint id, uint units, bool mixed) {
    uint line = id / units;
    if (mixed) line = line / 4u * 8u + line % 4u;
    else if (units == 4u) line = (id >> 5 << 3) + (id >> 3 & 3u) + (id >> 2 & 1u) * 4u;
    else if (units == 2u) line = (id >> 4 << 3) + (id >> 3 & 1u) + (id >> 1 & 3u) * 2u;
    return line;
}

// How many rows turn p is after the first.
uint a_after(uint p) {
    return A_MIXED ? p / 2u * A_LINES * 2u + p % 2u * 4u : p * A_LINES;
}

uint b_after(uint p) {
    return B_MIXED ? p / 2u * B_LINES * 2u + p % 2u * 4u : p / B_PIECES * B_LINES;
}

// The step that an invocation loads from in even turns; in odd ones it is the other.
uint a_step_of(uint id) {
    return A_MIXED ? id % A_ACROSS / A_UNITS : 0u;
}

uint b_step_of(uint id) {
    return B_MIXED ? id % B_ALONG / B_UNITS : 0u;
}

// The last turn may have nothing to do for some, but not with two steps.
#define EACH_A [[unroll]] for (uint p = 0u; p < A_TURNS; p++) if (SPAN == 2u || id + p * THREADS < A_ROWS * A_UNITS)
#define EACH_B [[unroll]] for (uint p = 0u; p < B_TURNS; p++) if (SPAN == 2u || id + p * THREADS < B_ROWS * B_UNITS)

uint left(uint limit, uint at) {
    return at < limit ? limit - at : 0u;
}

// Where a row of b begins that lies along K, and how many elements it leaves out up to step k.
uint b_begin(uint row) {
    return row * push.b_row + (WINDOWS ? row / push.across * push.down : 0u);
}

uint b_left_out(uint k) {
    return WINDOWS ? k / push.span * push.gap : 0u;
}

// Of the eight elements from one on the first n, zero for the others. They begin at `from`, counted in units where all
// rows are whole units, else in elements.
uvec4 a_eight(uint from, uint n) {
    uvec4 packed = uvec4(0u);
    if (A_EIGHTS) {
        if (n > 0u) packed = a_word4[from];
    } else {
        packed.xy = a_packed4(from, n).xy;
        packed.zw = a_packed4(from + 4u, n - min(n, 4u)).xy;
    }
    return packed;
}

uvec4 b_eight(uint from, uint n) {
    uvec4 packed = uvec4(0u);
    if (B_EIGHTS) {
        if (n > 0u) packed = b_word4[from];
    } else {
        packed.xy = b_packed4(from, n).xy;
        packed.zw = b_packed4(from + 4u, n - min(n, 4u)).xy;
    }
    return packed;
}

// Stores what a subgroup has put into shared memory: FM rows of WARP_N columns.
void store_rows(uint row0, uint column0, uint own) {
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < FM * OUT_UNITS; i += WARP) {
        uint row = i / OUT_UNITS, unit = i % OUT_UNITS;
        store_row4(row0 + row, column0 + unit * 4u, uintBitsToFloat(tiles[own + row * OUT_ROW + unit]));
    }
}

// Writes eight neighbours of a row that lie within the result.
void store_eight(uint row, uint column, vec4 low, vec4 high) {
    uint at = row * push.o_row + column + product_number() * push.o_batch + part_number() * push.o_part;
#ifdef EPILOGUE
    low = finished(at, column, 4u, low);
    high = finished(at + 4u, column + 4u, 4u, high);
#endif
    at += push.o_first;
    uvec4 first = o_pack4(floatBitsToUint(low)), second = o_pack4(floatBitsToUint(high));
    if (o_half) {
        o_word4[at >> 3] = uvec4(first.xy, second.xy);
    } else {
        o_word4[at >> 2] = first;
        o_word4[(at >> 2) + 1u] = second;
    }
}

#define STORE_EIGHT(I) { \
    uint row = (I) / EIGHTS, unit = (I) % EIGHTS * 2u; \
    uint from = own + row * OUT_ROW + unit; \
    store_eight(row0 + row, column0 + unit * 4u, uintBitsToFloat(tiles[from]), uintBitsToFloat(tiles[from + 1u])); \
}

const uint EIGHTS = OUT_UNITS / 2u;

// The same as store_rows where all rows lie within the result, which holds nothing that they are added to.
void store_eights(uint row0, uint column0, uint own) {
    [[unroll]] for (uint i = 0u; i < FM * EIGHTS; i += WARP) STORE_EIGHT(i + gl_SubgroupInvocationID)
}

void store_eights_rolled(uint row0, uint column0, uint own) {
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < FM * EIGHTS; i += WARP) STORE_EIGHT(i)
}

// Matrices do not say which element lies where: they go through shared memory, row P of a subgroup's at a time. No loop
// over the rows with them inside: drivers do not unroll one around another that stays, and an array of matrices with an
// index that is not constant lies in memory.
#define PLACE(P) \
    [[unroll]] for (uint q = 0u; q < NREP; q++) { \
        coopMatStore(sums[P * NREP + q], tiles, own + q * FN / 4u, OUT_ROW, gl_CooperativeMatrixLayoutRowMajor); \
    }

#define STORE(P, ROWS) \
    if (P < MREP) { \
        PLACE(P) \
        subgroupBarrier(); \
        ROWS(corner.x + warp_m + P * FM, corner.y + warp_n, own); \
        subgroupBarrier(); \
    }

#define STORE_ALL(ROWS) \
    STORE(0u, ROWS) STORE(1u, ROWS) STORE(2u, ROWS) STORE(3u, ROWS)

// Row p of the matrices, and what stores any of them, once.
#define PLACE_AT(P) if (P < MREP && p == P) { PLACE(P) }

#define STORE_ROLLED(ROWS) \
    [[dont_unroll]] for (uint p = 0u; p < MREP; p++) { \
        PLACE_AT(0u) PLACE_AT(1u) PLACE_AT(2u) PLACE_AT(3u) \
        subgroupBarrier(); \
        ROWS(corner.x + warp_m + p * FM, corner.y + warp_n, own); \
        subgroupBarrier(); \
    }

// The element of a row at which turn p begins, beyond the step's first or the tile's.
#define A_COLUMN(p) (A_MIXED && (p) % 2u == 1u ? a_column ^ STEP : a_column)
#define B_COLUMN(p) (B_MIXED && (p) % 2u == 1u ? b_column ^ STEP : b_column + (p) % B_PIECES * B_ALONG * 8u)

// Loads an invocation's share of the steps of K that begin at `at`, zeros past the end. Rows past the end of M, and
// columns past that of N, repeat the last one or are zero: what they give is not stored.
#define FETCH { \
    uint a_step = (TRANSPOSE_A ? at * push.a_row : at) >> A_SHIFT, b_step = (TRANSPOSE_B ? at : at * push.b_row) >> B_SHIFT; \
    EACH_A { \
        uint n = TRANSPOSE_A ? (at + a_line + p * A_LINES < k_end() ? a_left : 0u) : left(k_end(), at + A_COLUMN(p)); \
        a_next[p] = a_eight((TRANSPOSE_A ? a_from[0] + p * a_jump : a_from[p]) + a_step, n); \
    } \
    EACH_B { \
        uint over = left(b_left, p % B_PIECES * B_ALONG * 8u); \
        uint n = TRANSPOSE_B ? left(k_end(), at + B_COLUMN(p)) : (at + b_line + b_after(p) < k_end() ? over : 0u); \
        b_next[p] = b_eight(b_from[p] + b_step + (b_left_out(at + B_COLUMN(p)) >> B_SHIFT), n); \
    } \
    at += STEP * SPAN; \
}

// Stores step H of those that were loaded.
#define PUT(H) { \
    if (A_MIXED) { \
        bool even = a_step_of(id) == H; \
        [[unroll]] for (uint p = 0u; p < A_TURNS; p += 2u) { \
            uint row = a_after(p) + (even ? 0u : 4u); \
            tiles[a_put + row * (A_UNITS + 1u)] = mix(a_next[p + 1u], a_next[p], bvec4(even)); \
        } \
    } else EACH_A if (p / (A_TURNS / SPAN) == H) { \
        tiles[a_put + (p - H * (A_TURNS / SPAN)) * A_LINES * (A_UNITS + 1u)] = a_next[p]; \
    } \
    if (B_MIXED) { \
        bool even = b_step_of(id) == H; \
        [[unroll]] for (uint p = 0u; p < B_TURNS; p += 2u) { \
            uint row = b_after(p) + (even ? 0u : 4u); \
            tiles[b_put + row * (B_UNITS + 1u)] = mix(b_next[p + 1u], b_next[p], bvec4(even)); \
        } \
    } else EACH_B if (p / (B_TURNS / SPAN) == H) { \
        uint turn = p - H * (B_TURNS / SPAN); \
        tiles[b_put + b_after(turn) * (B_UNITS + 1u) + turn % B_PIECES * B_ALONG] = b_next[p]; \
    } \
}

#define X_MATRIX coopmat<HALF, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA>
#define Y_MATRIX coopmat<HALF, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB>

// Load matrices of the S-th FK steps of K: those of all rows, those of the Q-th columns, all.
#define LOAD_X(X, S) \
    [[unroll]] for (uint p = 0u; p < MREP; p++) { \
        uint m = warp_m + p * FM; \
        if (TRANSPOSE_A) { \
            coopMatLoad(X[p], tiles, (S) * FK * (A_UNITS + 1u) + m / 8u, A_UNITS + 1u, \
                        gl_CooperativeMatrixLayoutColumnMajor); \
        } else { \
            coopMatLoad(X[p], tiles, m * (A_UNITS + 1u) + (S) * FK / 8u, A_UNITS + 1u, \
                        gl_CooperativeMatrixLayoutRowMajor); \
        } \
    }

#define LOAD_Y(Y, S, Q) { \
    uint n = warp_n + (Q) * FN; \
    if (TRANSPOSE_B) { \
        coopMatLoad(Y, tiles, A_SIZE + n * (B_UNITS + 1u) + (S) * FK / 8u, B_UNITS + 1u, \
                    gl_CooperativeMatrixLayoutColumnMajor); \
    } else { \
        coopMatLoad(Y, tiles, A_SIZE + (S) * FK * (B_UNITS + 1u) + n / 8u, B_UNITS + 1u, \
                    gl_CooperativeMatrixLayoutRowMajor); \
    } \
}

#define LOAD(X, Y, S) { \
    LOAD_X(X, S) \
    [[unroll]] for (uint q = 0u; q < NREP; q++) LOAD_Y(Y[q], S, q) \
}

#define COLUMN(X, Y, Q) \
    [[unroll]] for (uint p = 0u; p < MREP; p++) sums[p * NREP + Q] = coopMatMulAdd(X[p], Y, sums[p * NREP + Q]);

#define MULTIPLY(X, Y) [[unroll]] for (uint q = 0u; q < NREP; q++) { COLUMN(X, Y[q], q) }

// Two times FK steps of K, of which the first one's matrices are there, and those of the next after them. No loop: what
// has an index that is not constant lies in memory.
#define PAIR(S) \
    if (S + 2u < STEPS) { \
        LOAD(x1, y1, S + 1u) \
        MULTIPLY(x0, y0) \
        LOAD(x0, y0, S + 2u) \
        MULTIPLY(x1, y1) \
    }

// FK steps of K whose matrices are loaded where they are needed.
#define ALONE(S) \
    if (S < STEPS) { \
        LOAD_X(x0, S) \
        [[unroll]] for (uint q = 0u; q < NREP; q++) { \
            Y_MATRIX y; \
            LOAD_Y(y, S, q) \
            COLUMN(x0, y, q) \
        } \
    }

// Multiplies a step, and makes ready for the next one: H of those that are loaded at once.
#define MULTIPLY_STEP(H, LOADS) { \
    if (AHEAD > 0u) { \
        PAIR(0u) PAIR(2u) PAIR(4u) \
        LOAD(x1, y1, STEPS - 1u) \
        MULTIPLY(x0, y0) \
    } else { \
        ALONE(0u) ALONE(1u) ALONE(2u) ALONE(3u) ALONE(4u) ALONE(5u) ALONE(6u) ALONE(7u) \
    } \
    barrier(); \
    PUT(H) \
    barrier(); \
    if (LOADS) FETCH \
    if (AHEAD > 0u) { \
        LOAD(x0, y0, 0u) \
        MULTIPLY(x1, y1) \
    } \
}

void make(uvec2 corner) {
    uint id = gl_LocalInvocationID.x, warp = gl_SubgroupID;
    uint warp_m = warp % (TILE_M / WARP_M) * WARP_M, warp_n = warp / (TILE_M / WARP_M) * WARP_N;

    SUMS sums[MREP * NREP];
    [[unroll]] for (uint i = 0u; i < MREP * NREP; i++) sums[i] = SUMS(0.0);

    uint a_line = line_of(id, A_ACROSS, A_MIXED), a_column = id % A_ACROSS * 8u;
    uint b_line = line_of(id, B_ALONG, B_MIXED), b_column = id % B_ALONG * 8u;
    uint a_put = a_line * (A_UNITS + 1u) + id % A_ACROSS % A_UNITS;
    uint b_put = A_SIZE + b_line * (B_UNITS + 1u) + id % B_ALONG % B_UNITS;
    uint a_left = left(push.m, corner.x + a_column), b_left = left(push.n, corner.y + b_column);
    uint a_jump = A_LINES * push.a_row >> A_SHIFT, a_from[A_TURNS], b_from[B_TURNS];
    EACH_A {
        uint row = a_line + a_after(p);
        uint first = TRANSPOSE_A ? row * push.a_row + corner.x : min(corner.x + row, push.m - 1u) * push.a_row;
        a_from[p] = (a_origin() + first + A_COLUMN(p)) >> A_SHIFT;
    }
    EACH_B {
        uint row = b_line + b_after(p);
        uint first = TRANSPOSE_B ? b_begin(min(corner.y + row, push.n - 1u)) : row * push.b_row + corner.y;
        b_from[p] = (b_origin() + first + B_COLUMN(p)) >> B_SHIFT;
    }

    uvec4 a_next[A_TURNS], b_next[B_TURNS];
    X_MATRIX x0[MREP], x1[MREP];
    Y_MATRIX y0[NREP], y1[NREP];
    uint at = k_begin();
    FETCH
    PUT(0u)
    if (SPAN == 1u) FETCH
    barrier();
    if (AHEAD > 0u) LOAD(x0, y0, 0u)
    [[dont_unroll]] for (uint k0 = k_begin(); k0 < k_end(); k0 += STEP * SPAN) {
        if (SPAN == 2u) MULTIPLY_STEP(1u, true)
        MULTIPLY_STEP(0u, SPAN == 1u)
    }

    barrier();
    uint own = warp * FM * OUT_ROW;
    bool whole = O_EIGHTS && push.accumulate == 0u && corner.x + TILE_M <= push.m && corner.y + TILE_N <= push.n;
    if (ROLLED) {
        if (whole) STORE_ROLLED(store_eights_rolled) else STORE_ROLLED(store_rows)
    } else if (whole) {
        STORE_ALL(store_eights)
    } else {
        STORE_ALL(store_rows)
    }
}

#include "bands.glsl"

void main() {
    uint tiles_m = (push.m + TILE_M - 1u) / TILE_M;
    uint tiles_n = (push.n + TILE_N - 1u) / TILE_N;
    if (group_number() < tiles_m * tiles_n) {
        make(tile_of(group_number(), tiles_m, tiles_n) * uvec2(TILE_M, TILE_N));
    }
}

#endif
