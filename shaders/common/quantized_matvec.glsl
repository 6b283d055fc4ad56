// Products of up to 8 rows of a by quantised weights (N, K).
//
// SPAN invocations stride over K together for COLUMNS columns, and TURNS chunks of each are in flight before any is used.
// What PASSES such steps need of the rows of a lies in shared memory, as floats, for all the group's columns: it has
// several times as many bytes as the chunks. It lies so that neighbours, which read chunks apart, do so from different
// banks.
//
// For one row the whole numbers of a chunk are multiplied first and the sum is scaled; for more, the weights are made.
// The caller defines KIND, MOST_ROWS, MOST_TURNS and SUBGROUPS (whether subgroups add up, in their order); with FOLDED
// and NORM_BINDING, what folded.glsl does is done, too. With DOTS, for one row and one turn, whole numbers are multiplied as
// quantized_dots.glsl says.
#ifndef VKPAR_QUANTIZED_MATVEC_GLSL
#define VKPAR_QUANTIZED_MATVEC_GLSL

#if SUBGROUPS
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

#ifndef DOTS
#define DOTS 0
#endif

#define FORMS
#define EPILOGUE
#define HOLDS_RESIDUAL
#define SCALES
#define SCALES_BINDING 5
#include "kinds.glsl"
#if KIND == MIXED
#define B_TYPE KIND_CODE
#endif
#include "matmul.glsl"
#include "quantized.glsl"

#if DOTS
layout(local_size_x_id = 23) in;
layout(constant_id = 23) const uint THREADS = 512;
layout(constant_id = 24) const bool EVEN = false;  // rows have even numbers of scales, of which the first is at an even place
layout(constant_id = 25) const uint EACH = 2;       // fours of a row's elements of which an invocation makes whole numbers: 2 or 4
#else
layout(local_size_x = 256) in;
const uint THREADS = 256u;
const bool EVEN = false;
#endif
layout(constant_id = 7) const uint ROWS = 1;  // of a, 1 to MOST_ROWS
layout(constant_id = 8) const uint SPAN = 32;
layout(constant_id = 9) const uint COLUMNS = 4;  // 1 to 4
layout(constant_id = 10) const uint TURNS = 2;   // 1 to MOST_TURNS
layout(constant_id = 18) const uint PASSES = 1;

#ifdef FOLDED
#include "folded.glsl"
// What a norm loads beside several chunks leaves room for fewer groups on a unit: an eighth of the time on an H200.
const bool HOLDS_FIRST = TURNS > 1u;
#else
const bool HOLDS_FIRST = false;
#define TEAM COLUMNS

uint column_of(uint first, uint c) {
    return min(first + c, push.n - 1u);
}
#endif

const uint MOST_COLUMNS = 4u;
const uint WIDTH = THREADS / SPAN * TEAM;     // a multiple of 4
const uint AHEAD = SPAN * TURNS;              // chunks of a column that are loaded together

#define EACH_ROW [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) if (r < ROWS)
#define EACH_COLUMN [[unroll]] for (uint c = 0u; c < MOST_COLUMNS; c++) if (c < COLUMNS)
#define EACH_TURN [[unroll]] for (uint j = 0u; j < MOST_TURNS; j++) if (j < TURNS)

// Of this invocation.
uint chunk_at[MOST_COLUMNS];  // its columns' first chunks
uint scale_at[MOST_COLUMNS];  // and those by the number that scales have
uvec4 packed[MOST_TURNS * MOST_COLUMNS];
SCALE_BITS scales[MOST_TURNS * MOST_COLUMNS];
#if KIND == MIXED
uvec2 above[MOST_TURNS * MOST_COLUMNS];
#define WHOLE_OF(at, i) whole4(packed[at][(i) & 3u], above[at], i)
#define SCALED(whole, scale, i) scaled(whole, scale, i)
#else
#define WHOLE_OF(at, i) whole_of(packed[at], i)
#define SCALED(whole, scale, i) scaled(whole, scale)
#endif
float sums[MOST_ROWS * MOST_COLUMNS];
#ifdef FOLDED
float squares[MOST_ROWS];  // of what it brought to shared memory
#endif

// Loads chunks from number `first` of their rows on; nothing where there is none. Branches hold loads and nothing that
// waits for them. Where LAST_AGAIN, there are no branches: the row's last chunk stands for those that there are not, whose
// elements of a are zero; if its scales are infinite, the sum is NaN. Loads stay ahead of the barriers in hold() one way in one kernel, and the other way in
// another: NVIDIA's compiler moves them.
#if DOTS && (KIND == Q4_K || KIND == MIXED) && !defined(FOLDED)
#define LAST_AGAIN 1
#else
#define LAST_AGAIN 0
#endif

void load(uint first) {
    EACH_TURN {
#if LAST_AGAIN
        uint chunk = min(first + j * SPAN + gl_LocalInvocationID.x % SPAN, push.b_row - 1u);
#else
        uint chunk = first + j * SPAN + gl_LocalInvocationID.x % SPAN;
#endif
        EACH_COLUMN {
#if !LAST_AGAIN
            packed[j * MOST_COLUMNS + c] = uvec4(0u);
            scales[j * MOST_COLUMNS + c] = SCALE_BITS(0u);
#if KIND == MIXED
            above[j * MOST_COLUMNS + c] = uvec2(0u);
#endif
            if (chunk < push.b_row)
#endif
            {
                packed[j * MOST_COLUMNS + c] = b_word4[chunk_at[c] + chunk];
                scales[j * MOST_COLUMNS + c] = scale_bits(scale_at[c] + chunk);
#if KIND == MIXED
                LOAD_ABOVE(b_word, b_word2, chunk_at[c], push.b_row, chunk, above[j * MOST_COLUMNS + c])
                LOAD_INNER(b_word, chunk_at[c], push.b_row, chunk, scales[j * MOST_COLUMNS + c].y)
#endif
            }
        }
    }
}

// The scale of a chunk of a row.
vec2 scale_in(uint j, uint c, uint chunk) {
#if KIND == MIXED
    return chunk_scale(scales[j * MOST_COLUMNS + c], IS_Q5_K || HAS_PAIRS || EVEN ? chunk : scale_at[c] + chunk);
#else
    return chunk_scale(scales[j * MOST_COLUMNS + c], KIND == Q4_K || EVEN ? chunk : scale_at[c] + chunk);
#endif
}

#if DOTS
#include "quantized_dots.glsl"
#else
const uint QUADS = AHEAD * PASSES * FOURS;  // of a row of a that lie in shared memory: 256 or more
const uint MOST_HELD = 8u;                  // of all rows, over THREADS

shared vec4 held[ROWS * QUADS];  // and then the sums of all invocations
#if MOST_ROWS == 1 && KIND == Q4_K
#define SUMS_CHUNKS true
shared float chunk_sums[AHEAD * PASSES];  // of a
#elif MOST_ROWS == 1 && KIND == MIXED
#define SUMS_CHUNKS HAS_LEAST
shared float chunk_sums[HAS_LEAST ? AHEAD * PASSES : 1u];
#endif

// Where four neighbours of a lie.
uint place(uint row, uint quad) {
    return row * QUADS + (quad ^ ((quad >> 3) & 7u));
}

// Brings the elements of a that belong to chunks from `first` on to shared memory.
void hold(uint first) {
    uint id = gl_LocalInvocationID.x, k0 = first * CHUNK;
    uvec4 found[MOST_HELD];
#ifdef FOLDED
    uvec4 scaling[MOST_HELD];
#endif
    [[unroll]] for (uint t = 0u; t < MOST_HELD; t++) {
        if (t * THREADS < ROWS * QUADS) {
            uint i = t * THREADS + id, row = i / QUADS, k = k0 + i % QUADS * 4u;
            found[t] = a_packed4(push.a_first + row * push.a_row + k, row < ROWS && k < push.k ? 4u : 0u);
#ifdef FOLDED
            if (NORMED) scaling[t] = norm_packed4(push.norm_first + k, k < push.k ? 4u : 0u);
#endif
        }
    }
    barrier();
    [[unroll]] for (uint t = 0u; t < MOST_HELD; t++) {
        uint i = t * THREADS + id;
        if (t * THREADS < ROWS * QUADS && i < ROWS * QUADS) {
            vec4 x = a_unpack4(found[t]);
#ifdef FOLDED
            if (NORMED) {
                EACH_ROW {
                    if (r == i / QUADS) squares[r] += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
                }
                x *= norm_unpack4(scaling[t]);
            }
#endif
            held[place(i / QUADS, i % QUADS)] = x;
        }
    }
    barrier();
#ifdef SUMS_CHUNKS
    if (SUMS_CHUNKS) {
        for (uint i = id; i < AHEAD * PASSES; i += THREADS) {
            vec4 sum = vec4(0.0);
            [[unroll]] for (uint q = 0u; q < FOURS; q++) sum += held[place(0u, i * FOURS + q)];
            chunk_sums[i] = (sum.x + sum.y) + (sum.z + sum.w);
        }
        barrier();
    }
#endif
}

// Adds the products of the chunks that were loaded from number `first` on, `at` chunks behind where what is held begins.
void multiply(uint first, uint at) {
    uint lane = gl_LocalInvocationID.x % SPAN;
    EACH_TURN {
        uint apart = j * SPAN + lane, quad0 = (at + apart) * FOURS;
        vec2 scale[MOST_COLUMNS];
        EACH_COLUMN scale[c] = scale_in(j, c, first + apart);
#if MOST_ROWS == 1
        float part[MOST_COLUMNS];
        EACH_COLUMN part[c] = 0.0;
        [[unroll]] for (uint q = 0u; q < FOURS; q++) {
            vec4 x = held[place(0u, quad0 + q)];
            EACH_COLUMN {
                vec4 y = WHOLE_OF(j * MOST_COLUMNS + c, q);
                // Not dot(), whose result costs another addition.
                [[unroll]] for (uint e = 0u; e < 4u; e++) part[c] += x[e] * y[e];
            }
#if KIND == MIXED
            if (IS_Q6_K && q == 3u) {
                EACH_COLUMN {
                    sums[c] += scale[c].x * part[c];
                    scale[c].x = scale[c].y;
                    part[c] = 0.0;
                }
            }
#endif
        }
        EACH_COLUMN {
            sums[c] += scale[c].x * part[c];
#ifdef SUMS_CHUNKS
            if (SUMS_CHUNKS) sums[c] -= scale[c].y * chunk_sums[at + apart];
#endif
        }
#else
        [[unroll]] for (uint q = 0u; q < FOURS; q++) {
            vec4 y[MOST_COLUMNS];
            EACH_COLUMN y[c] = SCALED(WHOLE_OF(j * MOST_COLUMNS + c, q), scale[c], q);
            EACH_ROW {
                vec4 x = held[place(r, quad0 + q)];
                EACH_COLUMN {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) sums[r * MOST_COLUMNS + c] += x[e] * y[c][e];
                }
            }
        }
#endif
    }
}
#endif

// The sums of this invocation's columns; of columns that there are not, zero.
vec4 sums_of(uint r) {
    vec4 sum = vec4(0.0);
    EACH_COLUMN sum[c] = sums[r * MOST_COLUMNS + c];
    return sum;
}

// Adds up over K; what an output is, stands in the first place of each row's and team's after that.
#if SUBGROUPS
const uint PLACES = THREADS / 4u;  // of a row: subgroups have four invocations or more

void add_up() {
    uint id = gl_LocalInvocationID.x, count = SPAN / gl_SubgroupSize;
    barrier();
    EACH_ROW {
        vec4 sum = subgroupAdd(sums_of(r));
        if (subgroupElect()) held[r * PLACES + id / gl_SubgroupSize] = sum;
#ifdef FOLDED
        if (NORMED) {
            float square = subgroupAdd(squares[r]);
            if (subgroupElect()) held[(ROWS + r) * PLACES + id / gl_SubgroupSize].x = square;
        }
#endif
    }
    barrier();
}

#ifdef FOLDED
void add_up_squares() {}

float summed_squares(uint r) {
    float sum = held[(ROWS + r) * PLACES].x;
    for (uint i = 1u; i < THREADS / gl_SubgroupSize; i++) sum += held[(ROWS + r) * PLACES + i].x;
    return sum;
}
#endif

float summed(uint r, uint column) {
    uint count = SPAN / gl_SubgroupSize, first = r * PLACES + column / COLUMNS * count;
    float sum = held[first][column % COLUMNS];
    for (uint i = 1u; i < count; i++) sum += held[first + i][column % COLUMNS];
    return sum;
}
#else
void add_up() {
    uint id = gl_LocalInvocationID.x;
    barrier();
    EACH_ROW held[r * THREADS + id] = sums_of(r);
    for (uint count = SPAN; count > 1u; count = max(count / 8u, 1u)) {
        uint next = max(count / 8u, 1u);
        barrier();
        if (id % SPAN < next) {
            EACH_ROW {
                uint first = r * THREADS + id;
                vec4 sum = held[first];
                [[unroll]] for (uint i = 1u; i < 8u; i++) if (i * next < count) sum += held[first + i * next];
                held[first] = sum;
            }
        }
    }
    barrier();
}

float summed(uint r, uint column) {
    return held[r * THREADS + column / COLUMNS * SPAN][column % COLUMNS];
}

#ifdef FOLDED
float all_squares[MOST_ROWS];

// Before the other sums, which take all that there is of shared memory.
void add_up_squares() {
    uint id = gl_LocalInvocationID.x;
    barrier();
    EACH_ROW held[r * THREADS + id].x = squares[r];
    for (uint count = THREADS; count > 1u; count = max(count / 8u, 1u)) {
        uint next = max(count / 8u, 1u);
        barrier();
        if (id < next) {
            EACH_ROW {
                float sum = held[r * THREADS + id].x;
                [[unroll]] for (uint i = 1u; i < 8u; i++) if (i * next < count) sum += held[r * THREADS + id + i * next].x;
                held[r * THREADS + id].x = sum;
            }
        }
    }
    barrier();
    EACH_ROW all_squares[r] = held[r * THREADS].x;
}

float summed_squares(uint row) {
    float sum = 0.0;
    EACH_ROW if (r == row) sum = all_squares[r];
    return sum;
}
#endif
#endif

// Makes and stores the columns of this group.
void quantized_matvec() {
    uint column0 = group_number() * WIDTH;
    if (column0 >= push.n) {
        return;
    }
    uint id = gl_LocalInvocationID.x, row = id / (WIDTH / 4u), at = id % (WIDTH / 4u) * 4u;
    bool stores = row < ROWS;
#if DOTS
    fetch(0u);  // before the weights, whose loads take longer: what is made of a is ready when they arrive
#endif
    if (stores) hold_residual(row, column0 + at);
    // Past the end: the last column again, which is not stored.
    EACH_COLUMN {
#if KIND == MIXED
        uint column = column_of(column0 + id / SPAN * TEAM, c), chunk = column * push.b_row;
        chunk_at[c] = push.b_first + column * row_units(push.b_row);
#else
        uint chunk = column_of(column0 + id / SPAN * TEAM, c) * push.b_row;
        chunk_at[c] = push.b_first + chunk;
#endif
        scale_at[c] = push.scales_first * CHUNKS + chunk;
    }
    [[unroll]] for (uint i = 0u; i < MOST_ROWS * MOST_COLUMNS; i++) sums[i] = 0.0;
#ifdef FOLDED
    [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) squares[r] = 0.0;
#endif
    for (uint pass = 0u, first = 0u; first < push.b_row; pass = (pass + 1u) % PASSES, first += AHEAD) {
        if (pass == 0u && HOLDS_FIRST) hold(first);
        load(first);
        if (pass == 0u && !HOLDS_FIRST) hold(first);
        multiply(first, pass * AHEAD);
    }
#ifdef FOLDED
    if (NORMED) add_up_squares();
    add_up();
    if (stores) store_row4(row, column0 + at, folded(row, at, NORMED ? summed_squares(row) : 0.0));
#else
    add_up();
    if (stores) {
        store_row4(row, column0 + at, vec4(summed(row, at), summed(row, at + 1u), summed(row, at + 2u), summed(row, at + 3u)));
    }
#endif
}

#endif
