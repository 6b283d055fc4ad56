// Product of float32 of few steps of K, STEPS of them, by a transposed matrix, for CPU drivers whose subgroups are the
// eight lanes of a vector: 32 rows x 64 columns a subgroup. Each lane makes eight columns, whose rows of b it holds;
// rows of a are read by all lanes alike, eight elements at once from the first one to the last. The columns are a
// multiple of 8, operands begin at multiples of 8, and rows of both lie side by side. Rows past the end are not
// written. Lanes past the last column make the last eight once more.
// variants: plain: BIASED=0 | biased: BIASED=1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_EXT_control_flow_attributes : require
#include "common/eights.glsl"

layout(local_size_x = 8) in;
layout(constant_id = 1) const uint STEPS = 8u;

layout(set = 0, binding = 0, std430) readonly buffer A { u64vec4 a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { u64vec4 b[]; };
layout(set = 0, binding = 2, std430) buffer O { u64vec4 o[]; };
#if BIASED
layout(set = 0, binding = 3, std430) readonly buffer C { u64vec4 bias[]; };
#endif

void main() {
    uint groups_m = (push.m + 31u) / 32u;
    uint group = group_number();
    uint row = group % groups_m * 32u;
    uint column = min(group / groups_m * 64u + gl_LocalInvocationID.x * 8u, push.n - 8u);
    uint from = (push.b_first + gl_WorkGroupID.z * push.b_batch + column * STEPS) >> 3;
    uint at = (push.a_first + gl_WorkGroupID.z * push.a_batch + row * STEPS) >> 3;
    uint to = (push.o_first + gl_WorkGroupID.z * push.o_batch + row * push.o_row + column) >> 3;
    float y[8u * STEPS];
    [[unroll]] for (uint e = 0u; e < STEPS; e++) {
        Eight read = eight(b[from + e]);
        [[unroll]] for (uint j = 0u; j < 4u; j++) y[8u * e + j] = read.low[j], y[8u * e + 4u + j] = read.high[j];
    }
    Eight more = Eight(vec4(0.0), vec4(0.0));
#if BIASED
    more = eight(bias[(push.bias_first + column) >> 3]);
#endif
    uint end = min(row + 32u, push.m);
    for (; row < end; row += 8u) {
        float x[8u * STEPS];
        [[unroll]] for (uint e = 0u; e < STEPS; e++) {
            Eight read = eight(a[at + e]);
            [[unroll]] for (uint j = 0u; j < 4u; j++) x[8u * e + j] = read.low[j], x[8u * e + 4u + j] = read.high[j];
        }
        at += STEPS;
        [[unroll]] for (uint r = 0u; r < 8u; r++) {
            Eight sum = more;
            [[unroll]] for (uint t = 0u; t < STEPS; t++) {
                float factor = x[r * STEPS + t];
                sum.low += factor * vec4(y[t], y[STEPS + t], y[2u * STEPS + t], y[3u * STEPS + t]);
                sum.high += factor * vec4(y[4u * STEPS + t], y[5u * STEPS + t], y[6u * STEPS + t], y[7u * STEPS + t]);
            }
            if (row + r < end) o[to] = stored(finished(sum));
            to += push.o_row >> 3;
        }
    }
}
