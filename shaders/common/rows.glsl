// What the kernels on rows share: `lanes` invocations a row, several rows a group.
//
// EACH_FOUR names `k`, where four elements begin in the row, `n`, how many are there (more than 4 mean 4), and `j`, where
// KEPT kernels hold the four: KEEP of them an invocation, in registers. The others read the row again each time.
// Rows past the end are empty: all invocations take part in what is done together.
#ifndef VKPAR_ROWS_GLSL
#define VKPAR_ROWS_GLSL

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 256;
layout(constant_id = 1) const uint KEEP = 1;
layout(constant_id = 2) const bool X_WIDE = false;  // rows begin at multiples of 4, and so on
layout(constant_id = 3) const bool Y_WIDE = false;
layout(constant_id = 4) const bool Y_FULL = false;  // y is float32, whatever x is
layout(constant_id = 5) const bool WHOLE = false;   // rows are multiples of 4

layout(push_constant) uniform Push {
    uint rows;
    uint extent;  // of a row
    uint lanes;   // a power of two
    uint x_first;
    uint y_first;
    uint w_first;
    uint b_first;
    uint h_first;
    float value;  // eps, or a scale
#ifdef GATHERS
    uint tail;       // 16-byte units from a slot's start to its scales
    uvec2 factor;    // the bits of what an average multiplies a sum by
    uint slots[16];  // first 16-byte units of those that arrived
    uint awaits;     // bits 2 i and 2 i + 1: for so many transfers on lane i the kernel waits itself
#endif
} push;

const uint Y_TYPE = Y_FULL ? F32 : X_TYPE;
const float LOWEST = -3.4028234663852886e38;

#ifdef KEPT
vec4 kept[KEEP];
#define EACH_FOUR \
    [[unroll]] for (uint j = 0u, k = lane() * 4u, rest = left(k), n = WHOLE ? 4u : rest; j < KEEP; \
                    j++, k += push.lanes * 4u, rest = left(k), n = WHOLE ? 4u : rest) \
        if (rest > 0u)
#else
#define EACH_FOUR \
    for (uint j = gl_LocalInvocationID.x, k = lane() * 4u, rest = left(k), n = WHOLE ? 4u : rest; rest > 0u; \
         j += GROUP, k += push.lanes * 4u, rest = left(k), n = WHOLE ? 4u : rest)
#endif

uint lane() {
    return gl_LocalInvocationID.x & (push.lanes - 1u);
}

uint row() {
    int shift = findLSB(push.lanes);
    return group_number() * (GROUP >> shift) + (gl_LocalInvocationID.x >> shift);
}

// Elements of this row from its k-th on.
uint left(uint k) {
    return row() < push.rows && k < push.extent ? push.extent - k : 0u;
}

bvec4 first_of(uint n) {
    return lessThan(uvec4(0u, 1u, 2u, 3u), uvec4(n));
}

float across(vec4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

shared float terms[1024];

#ifdef KEPT
// What the invocations of a row have is combined eight at a time, so that barriers are few. The tree is fixed.
#define ACROSS_ROW(BOTH) \
    uint id = gl_LocalInvocationID.x; \
    uint first = id - lane(); \
    uint terms_left = push.lanes; \
    barrier(); \
    terms[id] = mine; \
    while (terms_left > 8u) { \
        terms_left = max(terms_left / 8u, 1u); \
        barrier(); \
        if (lane() < terms_left) { \
            float sum = terms[id]; \
            [[unroll]] for (uint i = 1u; i < 8u; i++) sum = BOTH(sum, terms[id + i * terms_left]); \
            terms[id] = sum; \
        } \
    } \
    barrier(); \
    float all = terms[first]; \
    [[unroll]] for (uint i = 1u; i < 8u; i++) { \
        if (i < terms_left) all = BOTH(all, terms[first + i]); \
    } \
    return all;

float plus(float a, float b) {
    return a + b;
}

float sum_of_row(float mine) {
    ACROSS_ROW(plus)
}

float max_of_row(float mine) {
    ACROSS_ROW(max)
}
#else
// The sum of what the invocations of a row have; all of them get it. The tree is fixed.
float sum_of_row(float mine) {
    uint id = gl_LocalInvocationID.x;
    barrier();
    terms[id] = mine;
    for (uint half_way = push.lanes / 2u; half_way >= 1u; half_way >>= 1) {
        barrier();
        if (lane() < half_way) {
            terms[id] += terms[id + half_way];
        }
    }
    barrier();
    return terms[id - lane()];
}

float max_of_row(float mine) {
    uint id = gl_LocalInvocationID.x;
    barrier();
    terms[id] = mine;
    for (uint half_way = push.lanes / 2u; half_way >= 1u; half_way >>= 1) {
        barrier();
        if (lane() < half_way) {
            terms[id] = max(terms[id], terms[id + half_way]);
        }
    }
    barrier();
    return terms[id - lane()];
}
#endif

#endif
