// The body of matrix products for up to 8 rows of a: `matvec` makes and stores this group's columns.
//
// Such a product is bound by reading b once, so that each invocation has several loads of 16 bytes in flight before it
// uses any. The caller defines TRANSPOSED, and
//   of a transposed b: MOST_ROWS of a; COLUMNS that an invocation makes, side by side; TURNS, how many loads of each are in
//   flight; SUBGROUPS, whether subgroups add up (in their order). SPAN invocations stride over K together;
//   FOLDED, COLUMNS being 2: also what folded.glsl does;
//   of b (K, N): THREADS of a group. SPAN invocations stand side by side, each at four or eight columns; every such slice
//   of the group takes four rows of b at a time.
//
// Loops have constant bounds and guards inside, so that the compiler here unrolls them: drivers keep arrays of sums in
// memory when they have to find out by themselves.
#ifndef VKPAR_MATVEC_GLSL
#define VKPAR_MATVEC_GLSL

#ifndef SUBGROUPS
#define SUBGROUPS 0
#endif
#if SUBGROUPS
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#if TRANSPOSED
#define THREADS 256
#define HOLDS_RESIDUAL
#else
#define MOST_ROWS 8
#endif

#include "matmul.glsl"

layout(local_size_x = THREADS) in;
layout(constant_id = 7) const uint ROWS = 4;  // of a, 1 to MOST_ROWS
layout(constant_id = 8) const uint SPAN = 32;
layout(constant_id = 9) const bool A_EIGHTS = false;  // first element and row length are multiples of 8, and so on
layout(constant_id = 10) const bool B_EIGHTS = false;

const uint CHUNK = b_half ? 8u : 4u;  // elements of b in 16 bytes
const bool a_whole = A_EIGHTS && a_half && b_half && !TRANSPOSE_A;
const bool b_whole = b_half ? B_EIGHTS : B_WIDE;  // chunks begin at multiples of 16 bytes, and rows are whole chunks

#define EACH_ROW [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) if (r < ROWS)

// Elements i..i+CHUNK-1 of b, packed; zero from the n-th on.
uvec4 b_chunk(uint i, uint n) {
    uvec4 packed = uvec4(0u);
    if (b_whole) {
        if (n > 0u) packed = b_word4[b_half ? i >> 3 : i >> 2];
    } else if (b_half) {
        packed.xy = b_packed4(i, n).xy;
        packed.zw = b_packed4(i + 4u, n - min(n, 4u)).xy;
    } else {
        packed = b_packed4(i, n);
    }
    return packed;
}

vec4 b_low(uvec4 packed) {
    return b_unpack4(packed);
}

uint a_index(uint row, uint k) {
    return a_origin() + (TRANSPOSE_A ? k * push.a_row + row : row * push.a_row + k);
}

uint a_step() {
    return TRANSPOSE_A ? push.a_row : 1u;
}

// Four steps of K of a row of a from element i on, the first n of them; zero for the others.
vec4 a_four(uint i, uint n) {
    vec4 x;
    if (TRANSPOSE_A) {
        x = vec4(0.0);
        [[unroll]] for (uint e = 0u; e < 4u; e++) if (e < n) x[e] = a_at(i + e * push.a_row);
    } else {
        x = a_at4(i, n);
    }
    return x;
}

// Nothing where a chunk holds four.
vec4 b_high(uvec4 packed) {
    return b_unpack4(uvec4(packed.zw, 0u, 0u));
}

#if TRANSPOSED
#ifdef FOLDED
#include "folded.glsl"
#else
#define TEAM COLUMNS

uint column_of(uint first, uint c) {
    return min(first + c, push.n - 1u);
}
#endif

const uint WIDTH = THREADS / SPAN * TEAM;
const uint STEP = SPAN * CHUNK;
const uint TURNS_LEFT = MOST_ROWS > 1 ? 1u : TURNS;  // where chunks are not whole: for eight rows it would be much code

#ifdef FOLDED
const uint SUMS = COLUMNS + (NORMED ? 1u : 0u);  // of a row: the last one is that of squares
#else
const uint SUMS = COLUMNS;
#endif

#if SUBGROUPS
shared float parts[ROWS * SUMS * THREADS / 4u];  // subgroups have four invocations or more
#else
shared float parts[ROWS * SUMS * THREADS];
#endif

// Of this invocation; not arguments, of which drivers copy the rows that there are not, too.
uint column_at[COLUMNS];
float sums[MOST_ROWS * COLUMNS];
#ifdef FOLDED
float squares[MOST_ROWS];
#endif

// Elements of a chunk that begins at k.
uint left(uint k) {
    return k_end() - min(k, k_end());
}

// Adds the products of `turns` chunks from k on, STEP apart: all of them `whole`, or those that there are.
void multiply(uint k, uint turns, bool whole) {
    uvec4 packed[TURNS * COLUMNS];
    [[unroll]] for (uint j = 0u; j < turns; j++) {
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
            uint i = column_at[c] + k + j * STEP;
            if (whole) {
                packed[j * COLUMNS + c] = b_word4[b_half ? i >> 3 : i >> 2];
            } else {
                packed[j * COLUMNS + c] = b_chunk(i, left(k + j * STEP));
            }
        }
    }
    [[unroll]] for (uint j = 0u; j < turns; j++) {
        uint n = whole ? 8u : left(k + j * STEP);
        if (n > 0u) {
#ifdef FOLDED
            uvec4 scales[2] = uvec4[2](uvec4(0u), uvec4(0u));
            if (NORMED) {
                scales[0] = norm_packed4(push.norm_first + k + j * STEP, n);
                if (b_half) scales[1] = norm_packed4(push.norm_first + k + j * STEP + 4u, n - min(n, 4u));
            }
#endif
            EACH_ROW {
                uint i = a_index(r, k + j * STEP);
                vec4 low, high = vec4(0.0);
                if (a_whole && n > 7u) {
                    uvec4 eight = a_word4[i >> 3];
                    low = a_unpack4(eight);
                    high = a_unpack4(uvec4(eight.zw, 0u, 0u));
                } else {
                    low = a_four(i, n);
                    if (b_half) high = a_four(i + 4u * a_step(), n - min(n, 4u));
                }
#ifdef FOLDED
                if (NORMED) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) squares[r] += low[e] * low[e];
                    if (b_half) [[unroll]] for (uint e = 0u; e < 4u; e++) squares[r] += high[e] * high[e];
                    low *= norm_unpack4(scales[0]);
                    high *= norm_unpack4(scales[1]);
                }
#endif
                [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
                    // Not dot(), whose result costs another addition.
                    vec4 y = b_low(packed[j * COLUMNS + c]);
                    [[unroll]] for (uint e = 0u; e < 4u; e++) sums[r * COLUMNS + c] += low[e] * y[e];
                    if (b_half) {
                        y = b_high(packed[j * COLUMNS + c]);
                        [[unroll]] for (uint e = 0u; e < 4u; e++) sums[r * COLUMNS + c] += high[e] * y[e];
                    }
                }
            }
        }
    }
}

// One of the sums of a row that this invocation has.
float sum_at(uint r, uint s) {
#ifdef FOLDED
    return s < COLUMNS ? sums[r * COLUMNS + s] : squares[r];
#else
    return sums[r * COLUMNS + s];
#endif
}

// Makes `summed_at` say what a sum of a team is.
#if SUBGROUPS
void add_up() {
    uint id = gl_LocalInvocationID.x, stride = THREADS / gl_SubgroupSize;
    EACH_ROW {
        [[unroll]] for (uint s = 0u; s < SUMS; s++) {
            float sum = subgroupAdd(sum_at(r, s));
            if (subgroupElect()) parts[(r * SUMS + s) * stride + id / gl_SubgroupSize] = sum;
        }
    }
    barrier();
}

float summed_at(uint r, uint s, uint team) {
    uint stride = THREADS / gl_SubgroupSize, count = SPAN / gl_SubgroupSize;
    uint first = (r * SUMS + s) * stride + team * count;
    float sum = parts[first];
    for (uint i = 1u; i < count; i++) sum += parts[first + i];
    return sum;
}
#else
void add_up() {
    uint id = gl_LocalInvocationID.x;
    EACH_ROW {
        [[unroll]] for (uint s = 0u; s < SUMS; s++) parts[(r * SUMS + s) * THREADS + id] = sum_at(r, s);
    }
    for (uint count = SPAN; count > 1u; count = max(count / 8u, 1u)) {
        uint next = max(count / 8u, 1u);
        barrier();
        if (id % SPAN < next) {
            EACH_ROW {
                [[unroll]] for (uint s = 0u; s < SUMS; s++) {
                    uint first = (r * SUMS + s) * THREADS + id;
                    float sum = parts[first];
                    [[unroll]] for (uint i = 1u; i < 8u; i++) if (i * next < count) sum += parts[first + i * next];
                    parts[first] = sum;
                }
            }
        }
    }
    barrier();
}

float summed_at(uint r, uint s, uint team) {
    return parts[(r * SUMS + s) * THREADS + team * SPAN];
}
#endif

float summed(uint r, uint column) {
    return summed_at(r, column % COLUMNS, column / COLUMNS);
}

void make(uint column0) {
    uint id = gl_LocalInvocationID.x;
    uint column = column0 + id / SPAN * TEAM;
    // Past the end: the last column again, which is not stored.
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) column_at[c] = b_origin() + column_of(column, c) * push.b_row;
    [[unroll]] for (uint i = 0u; i < MOST_ROWS * COLUMNS; i++) sums[i] = 0.0;
#ifdef FOLDED
    [[unroll]] for (uint i = 0u; i < MOST_ROWS; i++) squares[i] = 0.0;
#endif
    uint r = id / (WIDTH / 4u), stored = column0 + id % (WIDTH / 4u) * 4u;  // of what this invocation stores
#ifdef FORMS
    if (r < ROWS) hold_residual(r, stored);
#endif
    uint k = k_begin() + id % SPAN * CHUNK;
    if (b_whole) {
        for (; k + (TURNS - 1u) * STEP < k_end(); k += TURNS * STEP) multiply(k, TURNS, true);
    }
    for (; k < k_end(); k += TURNS_LEFT * STEP) multiply(k, TURNS_LEFT, false);
    add_up();
    if (r < ROWS) {
        uint c = stored - column0;
#ifdef FOLDED
        store_row4(r, stored, folded(r, c, NORMED ? summed_at(r, COLUMNS, 0u) : 0.0));
#else
        store_row4(r, stored, vec4(summed(r, c), summed(r, c + 1u), summed(r, c + 2u), summed(r, c + 3u)));
#endif
    }
}
#else
const uint WIDTH = SPAN * CHUNK;
const uint QUADS = WIDTH / 4u;
const uint SLICES = THREADS / SPAN;
const uint TOGETHER = THREADS > 512 ? 1u : 512u / THREADS;  // rows that are added up at once

shared vec4 parts[TOGETHER * THREADS * 2u];

// Of this invocation; not arguments, of which drivers copy the rows that there are not, too.
vec4 low[MOST_ROWS], high[MOST_ROWS];

// Adds the products of rows k..k+3 of b, which begin at `at`: all of them `whole`, or those that
// there are.
void multiply(uint at, uint count, uint k, bool whole) {
    uint n = whole ? 4u : k_end() - k;
    uvec4 packed[4];
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint first = at + (k + i) * push.b_row;
        if (whole) {
            packed[i] = b_word4[b_half ? first >> 3 : first >> 2];
        } else {
            packed[i] = b_chunk(first, i < n ? count : 0u);
        }
    }
    EACH_ROW {
        vec4 x = a_four(a_index(r, k), n);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            low[r] += x[i] * b_low(packed[i]);
            if (b_half) high[r] += x[i] * b_high(packed[i]);
        }
    }
}

// Adds up rows first .. first + TOGETHER - 1 over the slices: what a slice summed stands in TOGETHER * QUADS
// neighbours, a row's QUADS side by side.
void add_up(uint first) {
    uint id = gl_LocalInvocationID.x, lane = id % SPAN, slice = id / SPAN;
    const uint STRIDE = TOGETHER * QUADS;
    barrier();
    EACH_ROW {
        if (r >= first && r < first + TOGETHER) {
            uint i = slice * STRIDE + (r - first) * QUADS + lane * (QUADS / SPAN);
            parts[i] = low[r];
            if (b_half) parts[i + 1u] = high[r];
        }
    }
    for (uint count = SLICES; count > 1u; count = max(count / 8u, 1u)) {
        uint next = max(count / 8u, 1u);
        barrier();
        for (uint i = id; i < next * STRIDE; i += THREADS) {
            vec4 sum = parts[i];
            [[unroll]] for (uint j = 1u; j < 8u; j++) if (j * next < count) sum += parts[i + j * next * STRIDE];
            parts[i] = sum;
        }
    }
    barrier();
}

void make(uint column0) {
    uint id = gl_LocalInvocationID.x;
    uint column = column0 + id % SPAN * CHUNK;
    // Past the end: the last columns again, or nothing. Either is not stored.
    uint at = b_origin() + (b_whole ? min(column, push.n - CHUNK) : column);
    uint count = b_whole ? CHUNK : push.n - min(column, push.n);
    [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) low[r] = high[r] = vec4(0.0);
    uint k = k_begin() + id / SPAN * 4u;
    if (b_whole) {
        for (; k + 3u < k_end(); k += SLICES * 4u) multiply(at, count, k, true);
    }
    for (; k < k_end(); k += SLICES * 4u) multiply(at, count, k, false);
    [[unroll]] for (uint first = 0u; first < MOST_ROWS; first += TOGETHER) {
        if (first < ROWS) {
            add_up(first);
            if (id < TOGETHER * QUADS && first + id / QUADS < ROWS) {
                store_row4(first + id / QUADS, column0 + id % QUADS * 4u, parts[id]);
            }
        }
    }
}
#endif

// The first of the columns that this group makes.
uint matvec_first() {
    return group_number() * WIDTH;
}

// Makes and stores all that this group makes; groups that fold_groups adds past the end make nothing.
void matvec() {
    uint column0 = matvec_first();
    if (column0 < push.n) {
        make(column0);
    }
}

#endif
