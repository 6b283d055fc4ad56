// Matrix product of float32 for CPU drivers whose subgroups are the eight lanes of a vector: 8 rows x 64 columns a
// subgroup. Each lane reads other elements of the rows, which go to all of them by broadcasts, and pairs of columns.
// K is a multiple of 8 and the columns are one of 4, 8 of them at least. Rows and columns past the end are computed from
// the last ones: their rows are not written, their columns are written once more, by the lane of a whole eight.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "common/grid.glsl"

layout(local_size_x = 8) in;

layout(set = 0, binding = 0, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { u64vec2 b[]; };
layout(set = 0, binding = 2, std430) buffer O { u64vec2 o[]; };

layout(push_constant) uniform Push {
    uint m;
    uint n;
    uint k;
    uint a_first;  // element of each binding at which the operand begins; those of b and o are multiples of four
    uint b_first;
    uint o_first;
    uint a_row;  // elements from one row to the next
    uint b_row;
    uint o_row;
    uint a_batch;  // from one product of a batch, which z counts, to the next
    uint b_batch;
    uint o_batch;
} push;

vec4 four(u64vec2 pairs) {
    return uintBitsToFloat(uvec4(unpackUint2x32(pairs.x), unpackUint2x32(pairs.y)));
}

u64vec2 stored(vec4 sums) {
    uvec4 words = floatBitsToUint(sums);
    return u64vec2(packUint2x32(words.xy), packUint2x32(words.zw));
}

#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define BEGIN(R) \
    uint at##R = push.a_first + gl_WorkGroupID.z * push.a_batch + min(row + R, push.m - 1u) * push.a_row + lane; \
    vec4 low##R = vec4(0.0), high##R = vec4(0.0);
#define READ_A(R) float x##R = a[at##R + k];
#define READ_B(K) \
    vec4 y##K = four(b[from]), z##K = four(b[from + 1u]); \
    from += push.b_row >> 2;
#define TERM(R, K) \
    x = subgroupBroadcast(x##R, K); \
    low##R += x * y##K; \
    high##R += x * z##K;
#define ROW(R) TERM(R, 0) TERM(R, 1) TERM(R, 2) TERM(R, 3) TERM(R, 4) TERM(R, 5) TERM(R, 6) TERM(R, 7)
#define WRITE(R) \
    if (row + R < push.m) { \
        uint to = (push.o_first + gl_WorkGroupID.z * push.o_batch + (row + R) * push.o_row + column) >> 2; \
        o[to] = stored(low##R); \
        o[to + 1u] = stored(high##R); \
    }

void main() {
    uint groups_m = (push.m + 7u) / 8u;  // one after the other takes the same columns of b, which stay in caches
    uint group = group_number();
    uint lane = gl_LocalInvocationID.x;
    uint column = min(group / groups_m * 64u + lane * 8u, push.n - 8u);
    uint row = group % groups_m * 8u;
    EACH(BEGIN)
    for (uint k = 0u; k < push.k; k += 8u) {
        EACH(READ_A)
        uint from = (push.b_first + gl_WorkGroupID.z * push.b_batch + k * push.b_row + column) >> 2;
        EACH(READ_B)
        float x;
        EACH(ROW)
    }
    EACH(WRITE)
}
