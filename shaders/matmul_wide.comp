// Matrix product of float32 for CPU drivers whose subgroups are the eight lanes of a vector: ROWS rows x 64 columns a
// subgroup. Each lane reads other rows, whose elements go to all of them by broadcasts, and pairs of columns. A turn is four
// steps of K: the code of more does not fit a processor's instruction cache, and rereads of b outweigh that of fewer rows.
// K and the columns are multiples of 4, the columns 8 at least. Rows and columns past the end are computed from the last
// ones: their rows are not written, their columns are written once more, by the lane of a whole eight.
// variants: rows8: ROWS=8 | rows16: ROWS=16
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "common/grid.glsl"
#include "common/pairs.glsl"

layout(local_size_x = 8) in;

layout(set = 0, binding = 0, std430) readonly buffer A { u64vec2 a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { u64vec2 b[]; };
layout(set = 0, binding = 2, std430) buffer O { u64vec2 o[]; };

layout(push_constant) uniform Push {
    uint m;
    uint n;
    uint k;
    uint a_first;  // element of each binding at which the operand begins; these and what follows are multiples of four
    uint b_first;
    uint o_first;
    uint a_row;  // elements from one row to the next
    uint b_row;
    uint o_row;
    uint a_batch;  // from one product of a batch, which z counts, to the next
    uint b_batch;
    uint o_batch;
} push;

// DO(row, eight of rows in which it is, lane that reads it)
#define EIGHT(DO) DO(0, 0, 0) DO(1, 0, 1) DO(2, 0, 2) DO(3, 0, 3) DO(4, 0, 4) DO(5, 0, 5) DO(6, 0, 6) DO(7, 0, 7)
#define NEXT(DO) DO(8, 1, 0) DO(9, 1, 1) DO(10, 1, 2) DO(11, 1, 3) DO(12, 1, 4) DO(13, 1, 5) DO(14, 1, 6) DO(15, 1, 7)
#if ROWS == 8
#define EIGHTS(DO) DO(0)
#define EACH(DO) EIGHT(DO)
#else
#define EIGHTS(DO) DO(0) DO(1)
#define EACH(DO) EIGHT(DO) NEXT(DO)
#endif
#define STEPS(DO) DO(0) DO(1) DO(2) DO(3)

#define AT(E) uint at##E = (a_first + min(row + 8u * E + lane, push.m - 1u) * push.a_row) >> 2;
#define BEGIN(R, E, LANE) vec4 low##R = vec4(0.0), high##R = vec4(0.0);
#define READ_A(E) vec4 x##E = four(a[at##E + (k >> 2)]);
#define READ_B(K) \
    vec4 y##K = four(b[from]), z##K = four(b[from + 1u]); \
    from += push.b_row >> 2;
#define TERM(R, E, LANE, K) \
    x = subgroupBroadcast(x##E[K], LANE); \
    low##R += x * y##K; \
    high##R += x * z##K;
#define ROW(R, E, LANE) TERM(R, E, LANE, 0) TERM(R, E, LANE, 1) TERM(R, E, LANE, 2) TERM(R, E, LANE, 3)
#define WRITE(R, E, LANE) \
    if (row + R < push.m) { \
        uint to = (push.o_first + gl_WorkGroupID.z * push.o_batch + (row + R) * push.o_row + column) >> 2; \
        o[to] = stored(low##R); \
        o[to + 1u] = stored(high##R); \
    }

void main() {
    uint groups_m = (push.m + ROWS - 1u) / ROWS;  // one after the other takes the same columns of b, which stay in caches
    uint group = group_number();
    uint lane = gl_LocalInvocationID.x;
    uint column = min(group / groups_m * 64u + lane * 8u, push.n - 8u);
    uint row = group % groups_m * ROWS;
    uint a_first = push.a_first + gl_WorkGroupID.z * push.a_batch;
    uint from = (push.b_first + gl_WorkGroupID.z * push.b_batch + column) >> 2;
    EIGHTS(AT)
    EACH(BEGIN)
    for (uint k = 0u; k < push.k; k += 4u) {
        STEPS(READ_B)
        EIGHTS(READ_A)
        float x;
        EACH(ROW)
    }
    EACH(WRITE)
}
