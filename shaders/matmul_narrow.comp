// Product of float32 by a matrix of few columns, COLUMNS of them, for CPU drivers whose subgroups are the eight lanes
// of a vector: 32 rows a subgroup. Each lane makes four whole rows, and reads these; b is read by all lanes alike,
// eight elements at once from the first one to the last. ACROSS: a is stored transposed. K is a multiple of 8, the rows
// are one of 4; operands and rows of a begin at multiples of 8, of a transposed one of 4. Rows of b and of the output
// lie side by side. Lanes past the end make the last four rows once more.
// variants: along: ACROSS=0 | across: ACROSS=1
// variants: plain: BIASED=0 | biased: BIASED=1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_EXT_control_flow_attributes : require
#include "common/eights.glsl"

layout(local_size_x = 8) in;
layout(constant_id = 1) const uint COLUMNS = 8u;

#if ACROSS
layout(set = 0, binding = 0, std430) readonly buffer A { u64vec2 a[]; };
#else
layout(set = 0, binding = 0, std430) readonly buffer A { u64vec4 a[]; };
#endif
layout(set = 0, binding = 1, std430) readonly buffer B { u64vec4 b[]; };
layout(set = 0, binding = 2, std430) buffer O { u64vec2 o[]; };
#if BIASED
layout(set = 0, binding = 3, std430) readonly buffer C { float bias[]; };
#endif

float sums[4u * COLUMNS];  // of four rows, one after the other

void main() {
    uint row = min((group_number() * 8u + gl_LocalInvocationID.x) * 4u, push.m - 4u);
    uint from = (push.b_first + gl_WorkGroupID.z * push.b_batch) >> 3;
    uint a_first = push.a_first + gl_WorkGroupID.z * push.a_batch;
#if BIASED
    [[unroll]] for (uint i = 0u; i < 4u * COLUMNS; i++) sums[i] = bias[push.bias_first + i % COLUMNS];
#else
    [[unroll]] for (uint i = 0u; i < 4u * COLUMNS; i++) sums[i] = 0.0;
#endif
    for (uint k = 0u; k < push.k; k += 8u) {
        float x[32];  // eight steps of K: four rows each
#if ACROSS
        [[unroll]] for (uint t = 0u; t < 8u; t++) {
            u64vec2 words = a[(a_first + row + (k + t) * push.a_row) >> 2];
            vec4 rows = uintBitsToFloat(uvec4(unpackUint2x32(words.x), unpackUint2x32(words.y)));
            [[unroll]] for (uint r = 0u; r < 4u; r++) x[4u * t + r] = rows[r];
        }
#else
        [[unroll]] for (uint r = 0u; r < 4u; r++) {
            Eight steps = eight(a[(a_first + (row + r) * push.a_row + k) >> 3]);
            [[unroll]] for (uint t = 0u; t < 4u; t++) x[4u * t + r] = steps.low[t], x[4u * t + 16u + r] = steps.high[t];
        }
#endif
        [[unroll]] for (uint e = 0u; e < COLUMNS; e++) {
            Eight y = eight(b[from + e]);
            [[unroll]] for (uint j = 0u; j < 8u; j++) {
                uint step = (8u * e + j) / COLUMNS, column = (8u * e + j) % COLUMNS;
                float factor = j < 4u ? y.low[j] : y.high[j - 4u];
                [[unroll]] for (uint r = 0u; r < 4u; r++) sums[r * COLUMNS + column] += x[4u * step + r] * factor;
            }
        }
        from += COLUMNS;
    }
    uint to = (push.o_first + gl_WorkGroupID.z * push.o_batch + row * COLUMNS) >> 2;
    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
        uvec4 words = floatBitsToUint(activated(vec4(sums[4u * i], sums[4u * i + 1u], sums[4u * i + 2u], sums[4u * i + 3u])));
        o[to + i] = u64vec2(packUint2x32(words.xy), packUint2x32(words.zw));
    }
}
