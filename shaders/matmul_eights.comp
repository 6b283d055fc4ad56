// Matrix product of float32 for CPU drivers whose subgroups are the eight lanes of a vector, in eights of elements: 16
// rows x 64 columns a subgroup, or as many of other sizes. Each lane makes ROWS rows of eight columns, which it reads
// at once. Rows of a are read by all lanes alike: a read of eight elements takes less than the broadcasts of four that
// one lane has read. ACROSS: a is stored transposed. Whole eights: the columns, where operands and their rows begin,
// and K, or where a is transposed its rows; K is a multiple of 4 then. Rows and columns past the end are computed from
// the last ones: their rows are not written, their columns are written once more, by the lane of a whole eight.
// variants: along: ACROSS=0 | across: ACROSS=1
// variants: plain: BIASED=0 | biased: BIASED=1
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_EXT_control_flow_attributes : require
#include "common/eights.glsl"

layout(local_size_x = 8) in;

layout(set = 0, binding = 0, std430) readonly buffer A { u64vec4 a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { u64vec4 b[]; };
layout(set = 0, binding = 2, std430) buffer O { u64vec4 o[]; };
#if BIASED
layout(set = 0, binding = 3, std430) readonly buffer C { u64vec4 bias[]; };
#endif

layout(constant_id = 1) const uint ROWS = 16u;  // of a lane, a multiple of 8
layout(constant_id = 2) const uint LANES = 8u;  // lanes beside each other, 8, 4 or 2: fewer for few columns
vec4 low[ROWS], high[ROWS];

// Adds the products of one element of a and eight of b.
void add(uint row, float x, Eight y) {
    low[row] += x * y.low;
    high[row] += x * y.high;
}

void main() {
    const uint height = ROWS * (8u / LANES);
    uint groups_m = (push.m + height - 1u) / height;  // neighbours share columns of b
    uint group = group_number();
    uint lane = gl_LocalInvocationID.x;
    uint row = group % groups_m * height + lane / LANES * ROWS;
    uint column = min((group / groups_m * LANES + lane % LANES) * 8u, push.n - 8u);
    uint from = (push.b_first + gl_WorkGroupID.z * push.b_batch + column) >> 3;
    uint a_first = push.a_first + gl_WorkGroupID.z * push.a_batch;
    uint b_row = push.b_row >> 3, a_row = push.a_row >> 3;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) low[r] = high[r] = vec4(0.0);
#if ACROSS
    uint at[ROWS / 8u];
    [[unroll]] for (uint e = 0u; e < ROWS / 8u; e++) at[e] = (a_first + min(row + 8u * e, push.m - 8u)) >> 3;
    for (uint k = 0u; k < push.k; k += 4u) {
        [[unroll]] for (uint t = 0u; t < 4u; t++) {
            Eight y = eight(b[from]);
            from += b_row;
            [[unroll]] for (uint e = 0u; e < ROWS / 8u; e++) {
                Eight x = eight(a[at[e] + (k + t) * a_row]);
                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                    add(8u * e + r, x.low[r], y);
                    add(8u * e + r + 4u, x.high[r], y);
                }
            }
        }
    }
#else
    uint at[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) at[r] = (a_first >> 3) + min(row + r, push.m - 1u) * a_row;
    for (uint k = 0u; k < push.k >> 3; k++) {
        Eight y[8];
        [[unroll]] for (uint t = 0u; t < 8u; t++) {
            y[t] = eight(b[from]);
            from += b_row;
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            Eight x = eight(a[at[r] + k]);
            [[unroll]] for (uint t = 0u; t < 4u; t++) add(r, x.low[t], y[t]);
            [[unroll]] for (uint t = 0u; t < 4u; t++) add(r, x.high[t], y[t + 4u]);
        }
    }
#endif
    Eight more = Eight(vec4(0.0), vec4(0.0));
#if BIASED
    more = eight(bias[(push.bias_first + column) >> 3]);
#endif
    uint to = (push.o_first + gl_WorkGroupID.z * push.o_batch + row * push.o_row + column) >> 3;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        if (row + r < push.m) o[to] = stored(finished(Eight(low[r] + more.low, high[r] + more.high)));
        to += push.o_row >> 3;
    }
}
