// Product of few float32 rows by a transposed matrix for CPU drivers whose subgroups are the eight lanes of a vector: ROWS
// rows x 8 columns a subgroup. Each lane reads one column of the product, by pairs of steps of K, and other elements of the
// rows, which go to all of them by broadcasts. K is a multiple of 8, and rows of b begin at multiples of 4. Rows and columns
// past the end are computed from the last ones, and not written.
// variants: rows1: ROWS=1 | rows4: ROWS=4
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "common/grid.glsl"
#include "common/pairs.glsl"

layout(local_size_x = 8) in;

layout(set = 0, binding = 0, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { u64vec2 b[]; };
layout(set = 0, binding = 2, std430) buffer O { float o[]; };

layout(push_constant) uniform Push {
    uint m;
    uint n;
    uint k;
    uint a_first;  // element of each binding at which the operand begins
    uint b_first;
    uint o_first;
    uint a_row;  // elements from one row to the next
    uint b_row;
    uint o_row;
    uint a_batch;  // from one product of a batch, which z counts, to the next
    uint b_batch;
    uint o_batch;
} push;

#if ROWS == 1
#define EACH(DO) DO(0)
#else
#define EACH(DO) DO(0) DO(1) DO(2) DO(3)
#endif
#define BEGIN(R) \
    uint at##R = push.a_first + gl_WorkGroupID.z * push.a_batch + min(R, push.m - 1u) * push.a_row + lane; \
    vec4 low##R = vec4(0.0), high##R = vec4(0.0);
#define READ(R) float x##R = a[at##R + k];
#define OF(R, K) subgroupBroadcast(x##R, K)
#define TERMS(R) \
    low##R += vec4(OF(R, 0), OF(R, 1), OF(R, 2), OF(R, 3)) * y; \
    high##R += vec4(OF(R, 4), OF(R, 5), OF(R, 6), OF(R, 7)) * z;
#define WRITE(R) \
    if (R < push.m && column < push.n) { \
        vec4 sums = low##R + high##R; \
        uint to = push.o_first + gl_WorkGroupID.z * push.o_batch + R * push.o_row + column; \
        o[to] = (sums.x + sums.y) + (sums.z + sums.w); \
    }

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint column = group_number() * 8u + lane;
    uint from = (push.b_first + gl_WorkGroupID.z * push.b_batch + min(column, push.n - 1u) * push.b_row) >> 2;
    EACH(BEGIN)
    for (uint k = 0u; k < push.k; k += 8u) {
        EACH(READ)
        vec4 y = four(b[from]), z = four(b[from + 1u]);
        from += 2u;
        EACH(TERMS)
    }
    EACH(WRITE)
}
