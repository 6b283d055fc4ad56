// Random elements, four of one counter an invocation: words, numbers from low up to high, or normal ones.
// variants: bits: KIND=0 | uniform: KIND=1 | normal: KIND=2
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/elements.glsl"
#include "common/functions.glsl"
#include "common/grid.glsl"
#include "common/philox.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint O_TYPE = F32;
layout(constant_id = 1) const bool O_WIDE = false;

ELEMENTS_OUT(o, 0, O_TYPE, O_WIDE)

layout(push_constant) uniform Push {
    uint count;
    uint first;  // even for halves
    uvec2 key;
    uvec2 block;  // the number of the first four elements
    float low;    // or the mean
    float range;  // or the standard deviation
} push;

// Whole numbers of so many bits that the type holds them all, times a power of two: exact, below 1.
vec4 fractions(uvec4 bits) {
    vec4 made = vec4(bits >> 8) * 5.9604645e-8;
    if (o_f16) made = vec4(bits >> 21) * 4.8828125e-4;
    if (o_bf16) made = vec4(bits >> 24) * 0.00390625;
    return made;
}

// Box and Muller: two normal numbers of two words.
vec2 normal(uvec2 bits) {
    float r = sqrt(-2.0 * f_log((float(bits.x >> 8) + 1.0) * 5.9604645e-8));
    float angle = 6.2831853 * (float(bits.y >> 8) * 5.9604645e-8);
    return r * vec2(f_cos(angle), f_sin(angle));
}

void main() {
    uint block = group_number() * 256u + gl_LocalInvocationID.x;
    uint i = block * 4u;
    if (i >= push.count) {
        return;
    }
    uint carry;
    uint low = uaddCarry(push.block.x, block, carry);
    uvec4 bits = philox(uvec4(low, push.block.y + carry, 0u, 0u), push.key);
    uvec4 packed = bits;
#if KIND == 1
    precise vec4 scaled = fractions(bits) * push.range;
    precise vec4 moved = scaled + push.low;
    packed = o_pack4(floatBitsToUint(moved));
#elif KIND == 2
    packed = o_pack4(floatBitsToUint(vec4(normal(bits.xy), normal(bits.zw)) * push.range + push.low));
#endif
    o_store4(push.first + i, min(push.count - i, 4u), packed);
}
