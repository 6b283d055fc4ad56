// Products of few rows by the matrices of the experts that each row takes, whose numbers stand in a buffer: no other weights
// are read. Matrices (N, K) lie one after the other; work-groups count rows, or rows and their experts, in z.
//
// Without FOLDED, the product of a row by all of its experts at once: K steps of each, one expert after the other, whose
// results are added up. With FOLDED and NORM_BINDING, the product by one expert, with what folded.glsl does, times the weight
// of the expert: what the other product takes.
//
// A subgroup makes COLUMNS, and strides over K in chunks of 16 bytes, TURNS of each column in flight before any is used. The
// work-group shares what these are multiplied by. The caller defines QUANTIZED and KIND for matrices in blocks.
#ifndef VKPAR_EXPERT_FEW_GLSL
#define VKPAR_EXPERT_FEW_GLSL

#extension GL_KHR_shader_subgroup_arithmetic : require

#define FORMS
#define EPILOGUE
#define HOLDS_RESIDUAL
#define SCALES
#define EXPERTS
#ifdef QUANTIZED
#include "kinds.glsl"
#if KIND == MIXED
#define B_TYPE KIND_CODE
#endif
#endif
#include "matmul.glsl"

layout(local_size_x = 256) in;
const uint THREADS = 256u;
layout(constant_id = 8) const uint SPAN = 32;    // invocations of a subgroup
layout(constant_id = 9) const uint COLUMNS = 2;  // 1, or 2
layout(constant_id = 10) const uint TURNS = 1;   // 1, or 2
layout(set = 0, binding = 6, std430) readonly buffer Choice { uint choice[]; };

#ifdef QUANTIZED
#define SCALES_BINDING 5
#include "quantized.glsl"
#else
const uint CHUNK = b_half ? 8u : 4u;
const uint FOURS = CHUNK / 4u;
#endif

#ifdef FOLDED
#include "folded.glsl"
#else
#define TEAM COLUMNS

uint column_of(uint first, uint c) {
    return min(first + c, push.n - 1u);
}
#endif

const uint MOST_COLUMNS = 2u;
const uint MOST_TURNS = 2u;
const uint MOST_EACH = 64u;
const uint TEAMS = THREADS / SPAN;
const uint WIDTH = TEAMS * TEAM;  // columns of a work-group, a multiple of 4

#define EACH_COLUMN [[unroll]] for (uint c = 0u; c < MOST_COLUMNS; c++) if (c < COLUMNS)
#define EACH_TURN [[unroll]] for (uint j = 0u; j < MOST_TURNS; j++) if (j < TURNS)

// Of the row, what the chunks on their way are multiplied by: a chunk of each invocation begins in another bank.
const uint STRIDE = FOURS | 1u;
shared vec4 staged[SPAN * TURNS * STRIDE];
shared float totals[TEAMS * MOST_COLUMNS];
#ifdef FOLDED
shared float squared[TEAMS];
#else
shared uint matrices[MOST_EACH];
#endif

float summed(uint r, uint column) {
    return totals[column / COLUMNS * MOST_COLUMNS + column % COLUMNS];
}

// What an invocation has of a chunk of a column.
struct Loaded {
    uvec4 packed;
#ifdef QUANTIZED
    SCALE_BITS scales;
#if KIND == MIXED
    uvec2 above;
#endif
#endif
};

Loaded coming[MOST_TURNS * MOST_COLUMNS];

// Loads an invocation's chunks of the columns `line`, the first of which is `first`, of `chunks` in a row of a matrix.
void load(uint first, uint end, uint chunks, uint matrix, uint line[MOST_COLUMNS]) {
    EACH_TURN {
        uint at = first + j * SPAN, place = at;
        bool reads = at < end;
#ifdef FOLDED
        uint rows = matrix;
#else
        uint expert = matrices[min(at / chunks, push.each - 1u)];
        uint rows = expert * push.b_row;
        place = at % chunks;
        if (expert >= push.experts) reads = false;
#endif
        EACH_COLUMN {
            coming[j * MOST_COLUMNS + c].packed = uvec4(0u);
            uint chunk = (rows + line[c]) * chunks + place;
#ifdef QUANTIZED
            coming[j * MOST_COLUMNS + c].scales = SCALE_BITS(0u);
#if KIND == MIXED
            coming[j * MOST_COLUMNS + c].above = uvec2(0u);
            if (reads) {
                uint row = push.b_first + (rows + line[c]) * row_units(chunks);
                coming[j * MOST_COLUMNS + c].packed = b_word4[row + place];
                coming[j * MOST_COLUMNS + c].scales = scale_bits(push.scales_first * CHUNKS + chunk);
                LOAD_ABOVE(b_word, b_word2, row, chunks, place, coming[j * MOST_COLUMNS + c].above)
                LOAD_INNER(b_word, row, chunks, place, coming[j * MOST_COLUMNS + c].scales.y)
            }
#else
            if (reads) {
                coming[j * MOST_COLUMNS + c].packed = b_word4[push.b_first + chunk];
                coming[j * MOST_COLUMNS + c].scales = scale_bits(push.scales_first * CHUNKS + chunk);
            }
#endif
#else
            if (reads) coming[j * MOST_COLUMNS + c].packed = b_word4[push.b_first / CHUNK + chunk];
#endif
        }
    }
}

void make(uint column0) {
    uint id = gl_LocalInvocationID.x, team = id / SPAN, lane = id % SPAN, z = gl_WorkGroupID.z;
    uint chunks = push.k / CHUNK;
#ifdef FOLDED
    uint a_from = push.a_first + z / push.each * push.a_row, end = chunks;
    uint expert = choice[push.choice_first + z] - push.first;
    bool there = expert < push.experts;
    uint matrix = there ? expert * push.b_row : 0u;
    if (!there) end = 0u;
#else
    const uint matrix = 0u;  // each chunk has its own
    uint a_from = push.a_first + z * push.a_row, end = chunks * push.each;
    for (uint j = id; j < push.each; j += THREADS) matrices[j] = choice[push.choice_first + z * push.each + j] - push.first;
    if (id < WIDTH / 4u) hold_residual(0u, column0 + id * 4u);
    barrier();
#endif
    uint line[MOST_COLUMNS];
    EACH_COLUMN line[c] = column_of(column0 + team * TEAM, c);
    float sums[MOST_COLUMNS];
    [[unroll]] for (uint c = 0u; c < MOST_COLUMNS; c++) sums[c] = 0.0;
#ifdef FOLDED
    float squares = 0.0;
#endif
    if (end > 0u) load(lane, end, chunks, matrix, line);
    for (uint begin = 0u; begin < end; begin += SPAN * TURNS) {
        uint first = begin + lane;
        Loaded now[MOST_TURNS * MOST_COLUMNS] = coming;
        if (begin > 0u) barrier();
        uint fours = min(end - begin, SPAN * TURNS) * FOURS;
        for (uint four = id; four < fours; four += THREADS) {
            uint at = begin * CHUNK + 4u * four;
            vec4 x = a_at4(a_from + at, 4u);
#ifdef FOLDED
            if (NORMED) {
                squares += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
                x *= norm_unpack4(norm_packed4(push.norm_first + at, 4u));
            }
#endif
            staged[four / FOURS * STRIDE + four % FOURS] = x;
        }
        barrier();
        if (begin + SPAN * TURNS < end) load(first + SPAN * TURNS, end, chunks, matrix, line);
        EACH_TURN {
            uint at = first + j * SPAN;
            if (at < end) {
                float part[MOST_COLUMNS];
#if defined(QUANTIZED) && KIND == MIXED
                float lower[MOST_COLUMNS];  // products of the first half of a chunk
                [[unroll]] for (uint c = 0u; c < MOST_COLUMNS; c++) lower[c] = 0.0;
#endif
                [[unroll]] for (uint c = 0u; c < MOST_COLUMNS; c++) part[c] = 0.0;
                vec4 x_sum = vec4(0.0);
                [[unroll]] for (uint q = 0u; q < FOURS; q++) {
                    vec4 x = staged[(lane + j * SPAN) * STRIDE + q];
                    x_sum += x;
                    EACH_COLUMN {
#ifndef QUANTIZED
                        uvec4 bits = now[j * MOST_COLUMNS + c].packed;
                        vec4 y = b_unpack4(q == 0u ? bits : uvec4(bits.zw, 0u, 0u));
#elif KIND == MIXED
                        vec4 y = whole4(now[j * MOST_COLUMNS + c].packed[q & 3u], now[j * MOST_COLUMNS + c].above, q);
#else
                        vec4 y = whole_of(now[j * MOST_COLUMNS + c].packed, q);
#endif
                        [[unroll]] for (uint e = 0u; e < 4u; e++) part[c] += x[e] * y[e];
                    }
#if defined(QUANTIZED) && KIND == MIXED
                    if (IS_Q6_K && q == 3u) {
                        EACH_COLUMN {
                            lower[c] = part[c];
                            part[c] = 0.0;
                        }
                    }
#endif
                }
                EACH_COLUMN {
#ifdef QUANTIZED
                    // The number of a chunk counts from a scale of the binding: whole rows before it change nothing.
#ifdef FOLDED
                    uint chunk = (matrix + line[c]) * chunks + at;
#else
                    uint chunk = (matrices[at / chunks] * push.b_row + line[c]) * chunks + at % chunks;
#endif
                    vec2 scale = chunk_scale(now[j * MOST_COLUMNS + c].scales, push.scales_first * CHUNKS + chunk);
#if KIND == MIXED
                    if (IS_Q6_K) {
                        sums[c] += scale.x * lower[c] + scale.y * part[c];
                    } else {
                        sums[c] += scale.x * part[c] - scale.y * ((x_sum.x + x_sum.y) + (x_sum.z + x_sum.w));
                    }
#else
                    sums[c] += scale.x * part[c] - scale.y * ((x_sum.x + x_sum.y) + (x_sum.z + x_sum.w));
#endif
#else
                    sums[c] += part[c];
#endif
                }
            }
        }
    }
    EACH_COLUMN {
        float sum = subgroupAdd(sums[c]);
        if (lane == 0u) totals[team * MOST_COLUMNS + c] = sum;
    }
#ifdef FOLDED
    if (NORMED) {
        float square = subgroupAdd(squares);
        if (lane == 0u) squared[team] = square;
    }
#endif
    barrier();
    if (id < WIDTH / 4u) {
        uint at = id * 4u;
#ifdef FOLDED
        float square = 0.0;
        if (NORMED) {
            for (uint other = 0u; other < TEAMS; other++) square += squared[other];
        }
        vec4 made = folded(0u, at, square);
        float weight = uintBitsToFloat(choice[push.choice_first + push.rows * push.each + z]);
        store_row4(0u, column0 + at, there ? made * weight : vec4(0.0));
#else
        store_row4(0u, column0 + at, vec4(summed(0u, at), summed(0u, at + 1u), summed(0u, at + 2u), summed(0u, at + 3u)));
#endif
    }
}

void expert_few() {
    uint column0 = group_number() * WIDTH;
    if (column0 < push.n) make(column0);
}

#endif
