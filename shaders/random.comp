// Random elements, four of one counter an invocation: words, numbers from low up to high, or normal ones.
// variants: bits: KIND=0 | uniform: KIND=1 | normal: KIND=2
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/elements.glsl"
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

// What follows is made of sums and products of float32 alone, none of them contracted, which all drivers round alike.

// -2 log(n / 2^24), n from 1 to 2^24; the polynomial is that of Cephes' logf.
float twice_log(uint n) {
    uint bits = floatBitsToUint(float(n));
    uint above = (bits & 0x7FFFFFu) > 0x3504F3u ? 1u : 0u;  // than the root of 2
    precise float power = float(int(bits >> 23) - 151 + int(above));
    precise float f = uintBitsToFloat((bits & 0x7FFFFFu) | (0x3F800000u - (above << 23))) - 1.0;
    precise float p = 7.0376836292e-2;
    p = p * f - 1.1514610310e-1;
    p = p * f + 1.1676998740e-1;
    p = p * f - 1.2420140846e-1;
    p = p * f + 1.4249322787e-1;
    p = p * f - 1.6668057665e-1;
    p = p * f + 2.0000714765e-1;
    p = p * f - 2.4999993993e-1;
    p = p * f + 3.3333331174e-1;
    precise float square = f * f;
    precise float y = p * f;
    y = y * square;
    y = y - power * 2.12194440e-4;
    y = y - square * 0.5;
    precise float made = f + y;
    made = made + power * 0.693359375;
    made = made * -2.0;
    return made;
}

// The root of a number from 2^-24 up, or of 0.
float root(float x) {
    precise float one = uintBitsToFloat(0x5F3759DFu - (floatBitsToUint(x) >> 1));  // over the root
    precise float middle = x * 0.5;
    for (uint turn = 0u; turn < 3u; turn++) {
        precise float square = one * one;
        precise float left = 1.5 - middle * square;
        one = one * left;
    }
    precise float made = x * one;
    return made;
}

// Cosine and sine of so many 2^24ths of a turn; the polynomials are those of Cephes' sinf and cosf.
vec2 circle(uint part) {
    uint quarter = (part + 0x200000u) >> 22;
    precise float x = float(int(part) - int(quarter << 22)) * 3.7450703e-7;
    precise float z = x * x;
    precise float s = z * -1.9515295891e-4 + 8.3321608736e-3;
    s = s * z - 1.6666654611e-1;
    s = s * z;
    s = s * x + x;
    precise float c = z * 2.443315711809948e-5 - 1.388731625493765e-3;
    c = c * z + 4.166664568298827e-2;
    c = c * z;
    c = c * z - z * 0.5;
    c = c + 1.0;
    vec2 made = (quarter & 1u) == 0u ? vec2(c, s) : vec2(s, c);
    uvec2 signs = uvec2((quarter + 1u) >> 1, quarter >> 1) << 31;  // of cosines in the second and third quarter, of sines
    return uintBitsToFloat(floatBitsToUint(made) ^ signs);
}

// Box and Muller: two normal numbers of two words.
vec2 normal(uvec2 bits) {
    float r = root(twice_log((bits.x >> 8) + 1u));
    precise vec2 made = circle(bits.y >> 8) * r;
    return made;
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
    precise vec4 scaled = vec4(normal(bits.xy), normal(bits.zw)) * push.range;
    precise vec4 moved = scaled + push.low;
    packed = o_pack4(floatBitsToUint(moved));
#endif
    o_store4(push.first + i, min(push.count - i, 4u), packed);
}
