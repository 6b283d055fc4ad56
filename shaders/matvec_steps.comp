// Sixteen steps of K of products of few float32 rows, for CPU drivers whose subgroups are the eight lanes of a vector: ROWS
// rows x four columns a lane. There is no loop and no branch, so that such drivers know that all lanes read and write.
// Groups along z make the parts of K, which others add up. K is a multiple of 16, the columns are one of 4. Rows and columns
// past the end are computed from the last ones, and columns are written once more.
// variants: rows1: ROWS=1 | rows4: ROWS=4
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "common/grid.glsl"
#include "common/pairs.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 8;  // a multiple of 8

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
    uint a_batch;  // from one product of a batch to the next
    uint b_batch;
    uint o_batch;
    uint o_part;  // from one part of K to the next
} push;

#if ROWS == 1
#define EACH(DO) DO(0)
#else
#define EACH(DO) DO(0) DO(1) DO(2) DO(3)
#endif
#define STEPS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
// Rows that there are not: the last one, which all of them write.
#define ROW(R) min(R, push.m - 1u)
#define BEGIN(R) \
    uint at##R = a_first + ROW(R) * push.a_row; \
    float x##R, x##R##_next; \
    vec4 sum##R = vec4(0.0);
#define READ(R) \
    x##R = a[at##R]; \
    x##R##_next = a[at##R + 8u];
#define NEXT(R) x##R = x##R##_next;
#define READ_B(K) \
    vec4 y##K = four(b[from]); \
    from += push.b_row >> 2;
#define READ_B_AGAIN(K) \
    y##K = four(b[from]); \
    from += push.b_row >> 2;
#define TERM(R, K) sum##R += subgroupBroadcast(x##R, K) * y##K;
#define TERMS(R) TERM(R, 0) TERM(R, 1) TERM(R, 2) TERM(R, 3) TERM(R, 4) TERM(R, 5) TERM(R, 6) TERM(R, 7)
#define WRITE(R) o[(o_first + ROW(R) * push.o_row) >> 2] = stored(sum##R);

void main() {
    uint parts = push.k / 16u, batch = gl_WorkGroupID.z / parts, part = gl_WorkGroupID.z % parts;
    uint id = gl_LocalInvocationID.x;
    uint column = min((group_number() * THREADS + id) * 4u, push.n - 4u);
    uint a_first = push.a_first + batch * push.a_batch + part * 16u + id % 8u;
    uint o_first = push.o_first + batch * push.o_batch + part * push.o_part + column;
    uint from = (push.b_first + batch * push.b_batch + part * 16u * push.b_row + column) >> 2;
    EACH(BEGIN)
    EACH(READ)
    STEPS(READ_B)
    EACH(TERMS)
    EACH(NEXT)
    STEPS(READ_B_AGAIN)
    EACH(TERMS)
    EACH(WRITE)
}
