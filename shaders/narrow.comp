// Conversions from and to whole numbers of 8, 16 and 64 bits and truth values, four elements an invocation: elements are
// packed in words, so that no device needs storage of these sizes. Whole numbers wrap, as C's do; floats lose their
// fraction, what is out of range becomes the nearest number of the type, and NaN 0. Of truth, all but 0 is 1.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/grid.glsl"
#include "common/functions.glsl"

layout(constant_id = 0) const uint A_BITS = 32u;
layout(constant_id = 1) const uint O_BITS = 32u;
layout(constant_id = 2) const uint A_KIND = 0u;  // 0: unsigned, 1: signed, 2: float, 3: truth
layout(constant_id = 3) const uint O_KIND = 0u;

layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) readonly buffer Elements { uint a[]; };
layout(set = 0, binding = 1, std430) buffer Results { uint o[]; };

layout(push_constant) uniform Push {
    uint count;
    uint a_word;  // words at which elements and results begin
    uint o_word;
} push;

// The low and the high half of an element as a whole number of 64 bits.
uvec2 element(uint i) {
    uint low;
    uint high = 0u;
    if (A_BITS == 8u) {
        low = (a[push.a_word + (i >> 2)] >> ((i & 3u) * 8u)) & 0xFFu;
    } else if (A_BITS == 16u) {
        low = (a[push.a_word + (i >> 1)] >> ((i & 1u) * 16u)) & 0xFFFFu;
    } else if (A_BITS == 32u) {
        low = a[push.a_word + i];
    } else {
        low = a[push.a_word + 2u * i];
        high = a[push.a_word + 2u * i + 1u];
    }
    if (A_KIND == 1u && A_BITS < 64u) {
        low = uint(bitfieldExtract(int(low), 0, int(min(A_BITS, 32u))));
        high = (low >> 31) != 0u ? 0xFFFFFFFFu : 0u;
    }
    return uvec2(low, high);
}

float float_of(uvec2 value) {
    float made;
    if (A_BITS < 64u) {
        made = A_KIND == 1u ? float(int(value.x)) : f_float_of_uint(value.x);
    } else {
        bool below = A_KIND == 1u && (value.y >> 31) != 0u;
        uvec2 size = below ? uvec2(~value.x + 1u, ~value.y + (value.x == 0u ? 1u : 0u)) : value;
        // The upper 32 bits, whose last one stands for all that are cut off: one rounding.
        int shift = size.y == 0u ? 0 : findMSB(size.y) + 1;
        uint top = size.x;
        if (shift == 32) {
            top = size.y | (size.x != 0u ? 1u : 0u);
        } else if (shift > 0) {
            uint cut = size.x & ((1u << shift) - 1u);
            top = (size.x >> shift) | (size.y << (32 - shift)) | (cut != 0u ? 1u : 0u);
        }
        uint bits = floatBitsToUint(f_float_of_uint(top));
        made = uintBitsToFloat(bits + (bits == 0u ? 0u : uint(shift) << 23));
        made = below ? -made : made;
    }
    return made;
}

uvec2 whole_of(float x) {
    uint size = f_size_bits(x);
    bool below = (floatBitsToUint(x) >> 31) != 0u;
    int power = f_power_of(size);
    uint whole = f_whole_of(size);
    uvec2 made = uvec2(0u);
    if (size <= 0x7F800000u && size >= 0x3F800000u) {
        if (power <= 0) made.x = whole >> min(-power, 31);
        else if (power < 32) made = uvec2(whole << power, power > 8 ? whole >> (32 - power) : 0u);
        else made.y = power < 41 ? whole << (power - 32) : 0u;
    }
    uint bits = O_KIND == 1u ? O_BITS - 1u : O_BITS;  // what the type has for sizes
    uint length = size < 0x3F800000u ? 0u : uint(power + 24);
    uvec2 most = bits >= 63u ? uvec2(0xFFFFFFFFu, bits == 63u ? 0x7FFFFFFFu : 0xFFFFFFFFu)
                             : uvec2(bits >= 32u ? 0xFFFFFFFFu : (1u << (bits & 31u)) - 1u, 0u);
    bool outside = length > bits && size <= 0x7F800000u;
    made = outside ? most : made;
    if (below && O_KIND == 1u && outside) made = uvec2(~most.x, ~most.y);
    else if (below && O_KIND == 1u) made = uvec2(~made.x + 1u, ~made.y + (made.x == 0u ? 1u : 0u));
    else if (below) made = uvec2(0u);
    return made;
}

uvec2 converted(uint i) {
    uvec2 value = uvec2(0u);
    if (i < push.count) value = element(i);
    if (O_KIND == 3u) {
        uint bits = A_KIND == 2u ? value.x & 0x7FFFFFFFu : value.x | value.y;
        value = uvec2(bits != 0u ? 1u : 0u, 0u);
    } else if (O_KIND == 2u) {
        if (A_KIND != 2u) value.x = floatBitsToUint(float_of(value));
    } else if (A_KIND == 2u) {
        value = whole_of(uintBitsToFloat(value.x));
    }
    return value;
}

void main() {
    uint i = (group_number() * 256u + gl_LocalInvocationID.x) * 4u;
    if (i >= push.count) return;
    uint n = push.count - i;
    uvec2 v0 = converted(i);
    uvec2 v1 = converted(i + 1u);
    uvec2 v2 = converted(i + 2u);
    uvec2 v3 = converted(i + 3u);
    if (O_BITS == 8u) {
        o[push.o_word + (i >> 2)] = (v0.x & 0xFFu) | ((v1.x & 0xFFu) << 8) | ((v2.x & 0xFFu) << 16) | (v3.x << 24);
    } else if (O_BITS == 16u) {
        uint to = push.o_word + (i >> 1);
        o[to] = (v0.x & 0xFFFFu) | (v1.x << 16);
        if (n > 2u) o[to + 1u] = (v2.x & 0xFFFFu) | (v3.x << 16);
    } else if (O_BITS == 32u) {
        uint to = push.o_word + i;
        o[to] = v0.x;
        if (n > 1u) o[to + 1u] = v1.x;
        if (n > 2u) o[to + 2u] = v2.x;
        if (n > 3u) o[to + 3u] = v3.x;
    } else {
        uint to = push.o_word + 2u * i;
        o[to] = v0.x;
        o[to + 1u] = v0.y;
        if (n > 1u) o[to + 2u] = v1.x;
        if (n > 1u) o[to + 3u] = v1.y;
        if (n > 2u) o[to + 4u] = v2.x;
        if (n > 2u) o[to + 5u] = v2.y;
        if (n > 3u) o[to + 6u] = v3.x;
        if (n > 3u) o[to + 7u] = v3.y;
    }
}
