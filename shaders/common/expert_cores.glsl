// Products of halves by the matrices of their experts by matrix cores, for tiles of 32 pairs that share an expert, as
// expert_groups.comp lists them. What a matrix is in memory, expert_product.glsl says; weights become halves on the way.
//
// A work-group of four subgroups makes 256 columns of the weights, of which GATED makes 128 of the result: a subgroup has
// gates and what these let through at the same places. While it multiplies 32 steps of K from shared memory, the next ones
// are loaded. The caller defines QUANTIZED and KIND for matrices in blocks; others are halves.
#ifndef VKPAR_EXPERT_CORES_GLSL
#define VKPAR_EXPERT_CORES_GLSL

#include "elements.glsl"
#include "gate.glsl"
#include "grid.glsl"
#ifdef QUANTIZED
#include "kinds.glsl"
#if KIND == MIXED
layout(constant_id = 1) const uint KIND_CODE = 0;
#endif
#endif

layout(constant_id = 2) const uint O_TYPE = 0;
layout(constant_id = 5) const bool O_WIDE = false;
layout(constant_id = 6) const bool GATED = false;

layout(local_size_x = 128) in;
ELEMENTS_IN(a, 0, F16, true)
ELEMENTS_IN(b, 1, F16, true)
ELEMENTS_OUT(o, 2, O_TYPE, O_WIDE)
layout(set = 0, binding = 3, std430) readonly buffer Chosen { uint chosen[]; };

layout(push_constant) uniform Push {
    uint pairs;
    uint n;
    uint k;  // a multiple of 32
    uint share;
    uint first;
    uint experts;
    uint tiles;
    uint a_first;
    uint b_first;
    uint o_first;
    uint chosen_first;
    uint scales_first;
} push;

#ifdef QUANTIZED
#define SCALES_BINDING 4
#include "quantized.glsl"
#else
const uint CHUNK = 8u;
#endif

const uint NONE = 0xFFFFFFFFu;
const uint TILE = 32u;
const uint LINES = 256u;           // of weights
const uint WIDTH = GATED ? 128u : 256u;
const uint STEP = 32u;
const uint PER = STEP / CHUNK;     // chunks of a line in a step
const uint ROW = 5u;               // in 16 bytes, of which one keeps rows on different banks
const uint EACH = LINES / 128u;    // lines of an invocation

#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define A_MATRIX coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define B_MATRIX coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>

shared uvec4 lines[LINES * ROW];  // of weights, and then the results of 16 pairs
shared uvec4 rows[TILE * ROW];
shared uint pair_of[TILE];

uint pack2(vec2 v) {
    return packFloat2x16(f16vec2(v));
}

void make(uint tile, uint column0) {
    uint id = gl_LocalInvocationID.x, expert = chosen[push.chosen_first + tile];
    if (id < TILE) pair_of[id] = chosen[push.chosen_first + push.tiles + tile * TILE + id];
    barrier();
    uint pair = pair_of[id / 4u];
    bool there = pair != NONE;
    uint a_from = (push.a_first + (there ? pair / push.share * push.k : 0u)) / 8u + id % 4u;
    uint chunks = push.k / CHUNK, matrix = expert * (GATED ? 2u * push.n : push.n), line[EACH];
    [[unroll]] for (uint i = 0u; i < EACH; i++) {
        uint at = id + i * 128u, column = min(column0 + at % WIDTH, push.n - 1u);
        line[i] = (matrix + column + (at < WIDTH ? 0u : push.n)) * chunks;
    }
    SUMS sums[8];
    [[unroll]] for (uint i = 0u; i < 8u; i++) sums[i] = SUMS(0.0);
    uvec4 x = uvec4(0u), packed[EACH * PER];
#ifdef QUANTIZED
    SCALE_BITS scales[EACH * PER];
#endif
#if defined(QUANTIZED) && KIND == MIXED
    uvec2 above[EACH];
    uint row[EACH];  // the units at which lines begin
    [[unroll]] for (uint i = 0u; i < EACH; i++) {
        above[i] = uvec2(0u);
        row[i] = push.b_first + line[i] / chunks * row_units(chunks);
    }
#define LOAD(S) { \
    if (there) x = a_word4[a_from + (S) * 4u]; \
    [[unroll]] for (uint i = 0u; i < EACH; i++) { \
        packed[i] = b_word4[row[i] + (S)]; \
        scales[i] = scale_bits(push.scales_first * CHUNKS + line[i] + (S)); \
        LOAD_ABOVE(b_word, b_word2, row[i], chunks, (S), above[i]) \
        LOAD_INNER(b_word, row[i], chunks, (S), scales[i].y) \
    } \
}
#elif defined(QUANTIZED)
#define LOAD(S) { \
    if (there) x = a_word4[a_from + (S) * 4u]; \
    [[unroll]] for (uint i = 0u; i < EACH; i++) [[unroll]] for (uint c = 0u; c < PER; c++) { \
        uint number = line[i] + (S) * PER + c; \
        packed[i * PER + c] = b_word4[push.b_first + number]; \
        scales[i * PER + c] = scale_bits(push.scales_first * CHUNKS + number); \
    } \
}
#else
#define LOAD(S) { \
    if (there) x = a_word4[a_from + (S) * 4u]; \
    [[unroll]] for (uint i = 0u; i < EACH; i++) [[unroll]] for (uint c = 0u; c < PER; c++) { \
        packed[i * PER + c] = b_word4[push.b_first / 8u + line[i] + (S) * PER + c]; \
    } \
}
#endif
    uint steps = push.k / STEP, own = gl_SubgroupID;
    LOAD(0u)
    [[dont_unroll]] for (uint s = 0u; s < steps; s++) {
        barrier();
        rows[id / 4u * ROW + id % 4u] = x;
        [[unroll]] for (uint i = 0u; i < EACH; i++) [[unroll]] for (uint c = 0u; c < PER; c++) {
            uint to = (id + i * 128u) * ROW + c * (CHUNK / 8u);
#ifdef QUANTIZED
            vec2 scale = chunk_scale(scales[i * PER + c], push.scales_first * CHUNKS + line[i] + s * PER + c);
            [[unroll]] for (uint q = 0u; q < FOURS; q += 2u) {
#if KIND == MIXED
                vec4 low = scaled(whole4(packed[i][q & 3u], above[i], q), scale, q);
                vec4 high = scaled(whole4(packed[i][(q + 1u) & 3u], above[i], q + 1u), scale, q + 1u);
#else
                vec4 low = scaled(whole_of(packed[i * PER + c], q), scale);
                vec4 high = scaled(whole_of(packed[i * PER + c], q + 1u), scale);
#endif
                lines[to + q / 2u] = uvec4(pack2(low.xy), pack2(low.zw), pack2(high.xy), pack2(high.zw));
            }
#else
            lines[to] = packed[i * PER + c];
#endif
        }
        barrier();
        if (s + 1u < steps) LOAD(s + 1u)
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            A_MATRIX left[2];
            [[unroll]] for (uint m = 0u; m < 2u; m++) {
                coopMatLoad(left[m], rows, m * 16u * ROW + h * 2u, ROW, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint f = 0u; f < 4u; f++) {
                B_MATRIX right;
                uint from = GATED ? (f >> 1) * 128u + own * 32u + (f & 1u) * 16u : own * 64u + f * 16u;
                coopMatLoad(right, lines, from * ROW + h * 2u, ROW, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint m = 0u; m < 2u; m++) sums[m * 4u + f] = coopMatMulAdd(left[m], right, sums[m * 4u + f]);
            }
        }
    }
    const uint QUADS = WIDTH / 4u;
    [[unroll]] for (uint m = 0u; m < 2u; m++) {
        barrier();
        if (GATED) {
            [[unroll]] for (uint f = 0u; f < 2u; f++) {
                [[unroll]] for (uint i = 0u; i < sums[m * 4u + f].length(); i++) {
                    sums[m * 4u + f][i] = gated(vec4(sums[m * 4u + f][i]), vec4(sums[m * 4u + 2u + f][i])).x;
                }
                coopMatStore(sums[m * 4u + f], lines, own * 8u + f * 4u, QUADS, gl_CooperativeMatrixLayoutRowMajor);
            }
        } else {
            [[unroll]] for (uint f = 0u; f < 4u; f++) {
                coopMatStore(sums[m * 4u + f], lines, own * 16u + f * 4u, QUADS, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        barrier();
        for (uint i = id; i < 16u * QUADS; i += 128u) {
            uint to = pair_of[m * 16u + i / QUADS], column = column0 + i % QUADS * 4u;
            if (to != NONE && column < push.n) {
                o_store4(push.o_first + to * push.n + column, min(push.n - column, 4u), o_pack4(lines[i]));
            }
        }
    }
}

void expert_cores() {
    uint across = (push.n + WIDTH - 1u) / WIDTH, group = group_number(), tile = group / across;
    if (tile >= push.tiles || chosen[push.chosen_first + tile] >= push.experts) return;
    make(tile, group % across * WIDTH);
}

#endif
