// What the kernels on rows share: `lanes` invocations a row, several rows a group.
//
// EACH_FOUR names `k`, where four elements begin in the row, `n`, how many are there (more than 4 mean 4), and `j`, where
// KEPT kernels hold the four: KEEP of them an invocation, for itself alone. The others read the row again each time.
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
} push;

const uint Y_TYPE = Y_FULL ? F32 : X_TYPE;
const float LOWEST = -3.4028234663852886e38;

#define EACH_FOUR \
    for (uint j = gl_LocalInvocationID.x, k = lane() * 4u, rest = left(k), n = WHOLE ? 4u : rest; rest > 0u; \
         j += GROUP, k += push.lanes * 4u, rest = left(k), n = WHOLE ? 4u : rest)

#ifdef KEPT
shared vec4 kept[GROUP * KEEP];
#endif

uint lane() {
    return gl_LocalInvocationID.x % push.lanes;
}

uint row() {
    return group_number() * (GROUP / push.lanes) + gl_LocalInvocationID.x / push.lanes;
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
