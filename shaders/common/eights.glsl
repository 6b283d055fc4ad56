// What kernels share that move eight floats at a time: CPU drivers that read and write storage buffers lane by lane take
// less time for four words of 64 bits than for two and two.
#ifndef VKPAR_EIGHTS_GLSL
#define VKPAR_EIGHTS_GLSL

#include "functions.glsl"
#include "grid.glsl"

layout(constant_id = 0) const bool RELU = false;

layout(push_constant) uniform Push {
    uint m;
    uint n;
    uint k;
    uint a_first;  // element of each binding at which the operand begins
    uint b_first;
    uint o_first;
    uint a_row;  // elements from one row to the next, as they are stored
    uint b_row;
    uint o_row;
    uint a_batch;  // from one product of a batch, which z counts, to the next
    uint b_batch;
    uint o_batch;
#if BIASED
    uint bias_first;  // one element for each column is added
#endif
} push;

struct Eight {
    vec4 low;
    vec4 high;
};

Eight eight(u64vec4 words) {
    uvec4 low = uvec4(unpackUint2x32(words.x), unpackUint2x32(words.y));
    uvec4 high = uvec4(unpackUint2x32(words.z), unpackUint2x32(words.w));
    return Eight(uintBitsToFloat(low), uintBitsToFloat(high));
}

u64vec4 stored(Eight x) {
    uvec4 low = floatBitsToUint(x.low), high = floatBitsToUint(x.high);
    return u64vec4(packUint2x32(low.xy), packUint2x32(low.zw), packUint2x32(high.xy), packUint2x32(high.zw));
}

vec4 activated(vec4 x) {
    return RELU ? vec4(f_relu_float(x.x), f_relu_float(x.y), f_relu_float(x.z), f_relu_float(x.w)) : x;
}

Eight finished(Eight x) {
    return Eight(activated(x.low), activated(x.high));
}

#endif
