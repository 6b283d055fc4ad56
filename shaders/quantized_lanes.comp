// variants of kinds: KIND
// Product of one row by quantised weights (N, K) for CPU drivers whose subgroups are the eight lanes of a vector: each lane makes
// a column, and reads other elements of the row, which go to all of them by broadcasts. Columns past the end are made from the
// last one, and not stored.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require

#define DOTS 0
#define FORMS
#define EPILOGUE
#define SCALES
#define SCALES_BINDING 5
#include "common/kinds.glsl"
#if KIND == MIXED
#define B_TYPE KIND_CODE
#endif
#include "common/matmul.glsl"
#include "common/pairs.glsl"
#include "common/quantized.glsl"

layout(local_size_x = 8) in;

layout(set = 0, binding = 1, std430) readonly buffer B_Pairs { u64vec2 b_pair[]; };

#if KIND == MIXED
#define WHOLE_OF(i) whole4(packed[(i) & 3u], above, i)
#define SUMS_CHUNKS HAS_LEAST
#define HALVES_APART IS_Q6_K
#define ANY_CHUNK (IS_Q5_K || HAS_PAIRS)
#else
#define WHOLE_OF(i) whole_of(packed, i)
#define SUMS_CHUNKS (KIND == Q4_K)
#define HALVES_APART false
#define ANY_CHUNK (KIND == Q4_K)
#endif

vec4 broadcast4(float x, bool upper) {
    vec4 low = vec4(subgroupBroadcast(x, 0), subgroupBroadcast(x, 1), subgroupBroadcast(x, 2), subgroupBroadcast(x, 3));
    vec4 high = vec4(subgroupBroadcast(x, 4), subgroupBroadcast(x, 5), subgroupBroadcast(x, 6), subgroupBroadcast(x, 7));
    return upper ? high : low;
}

float total(vec4 parts) {
    return (parts.x + parts.y) + (parts.z + parts.w);
}

void main() {
    uint lane = gl_LocalInvocationID.x, column0 = group_number() * 8u;
    if (column0 >= push.n) {
        return;
    }
    uint column = min(column0 + lane, push.n - 1u), chunks = column * push.b_row;
#if KIND == MIXED
    uint from = push.b_first + column * row_units(push.b_row);
#else
    uint from = push.b_first + chunks;
#endif
    uint scales_from = push.scales_first * CHUNKS + chunks;
    float sum = 0.0;
    SCALE_BITS bits;
    for (uint chunk = 0u; chunk < push.b_row; chunk++) {
        uvec4 packed = words(b_pair[from + chunk]);
        if (chunk % CHUNKS == 0u) bits = scale_bits(scales_from + chunk);
#if KIND == MIXED
        uvec2 above;
        LOAD_ABOVE(b_word, b_word2, from, push.b_row, chunk, above)
        LOAD_INNER(b_word, from, push.b_row, chunk, bits.y)
#endif
        vec2 scale = chunk_scale(bits, ANY_CHUNK ? chunk : scales_from + chunk);
        vec4 parts = vec4(0.0);
        float mine = 0.0;
        [[unroll]] for (uint t = 0u; t < CHUNK / 8u; t++) {
            float x = a_at(push.a_first + chunk * CHUNK + 8u * t + lane);
            parts += broadcast4(x, false) * WHOLE_OF(2u * t);
            parts += broadcast4(x, true) * WHOLE_OF(2u * t + 1u);
            if (SUMS_CHUNKS) mine += x;
            if (HALVES_APART && t == 1u) {
                sum += scale.x * total(parts);
                scale.x = scale.y;
                parts = vec4(0.0);
            }
        }
        sum += scale.x * total(parts);
        if (SUMS_CHUNKS) sum -= scale.y * subgroupAdd(mine);
    }
    vec4 low = broadcast4(sum, false), high = broadcast4(sum, true);
    if (lane < 2u) store_row4(0u, column0 + 4u * lane, lane == 0u ? low : high);
}
