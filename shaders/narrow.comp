// Conversions from and to whole numbers of 8, 16 and 64 bits, floats of 64 and truth values, four elements an invocation:
// elements are packed in words, so that no device needs storage of these sizes. Whole numbers wrap, as C's do; floats lose
// their fraction, what is out of range becomes the nearest number of the type, and NaN 0. Of truth, all but 0 is 1.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/grid.glsl"
#include "common/functions.glsl"

layout(constant_id = 0) const uint A_BITS = 32u;
layout(constant_id = 1) const uint O_BITS = 32u;
layout(constant_id = 2) const uint A_KIND = 0u;  // 0: unsigned, 1: signed, 2: float, 3: truth
// Or 4: of a float of 64 bits one of 32, whose last bit stands for all that is cut off, to be rounded once more.
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

uvec2 negative(uvec2 value) { return uvec2(~value.x + 1u, ~value.y + (value.x == 0u ? 1u : 0u)); }

uvec2 shifted_left(uvec2 v, uint by) {
    uvec2 w = by >= 32u ? uvec2(0u, v.x) : v;
    uint n = by & 31u;
    return uvec2(w.x << n, (w.y << n) | ((w.x >> 1) >> (31u - n)));
}

uvec2 shifted_right(uvec2 v, uint by) {
    uvec2 w = by >= 32u ? uvec2(v.y, 0u) : v;
    uint n = by & 31u;
    return uvec2((w.x >> n) | ((w.y << 1) << (31u - n)), w.y >> n);
}

float float_of(uvec2 value) {
    float made;
    if (A_BITS < 64u) {
        made = A_KIND == 1u ? float(int(value.x)) : f_float_of_uint(value.x);
    } else {
        bool below = A_KIND == 1u && (value.y >> 31) != 0u;
        uvec2 size = below ? negative(value) : value;
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

// A float of 64 bits, of a whole number.
uvec2 double_of(uvec2 value) {
    bool below = A_KIND == 1u && (value.y >> 31) != 0u;
    uvec2 size = below ? negative(value) : value;
    uint first = size.y != 0u ? uint(findMSB(size.y)) + 32u : uint(max(findMSB(size.x), 0));
    uvec2 made = shifted_left(size, 52u - min(first, 52u));
    if (first > 52u) {
        uint by = first - 52u;
        uint cut = size.x & ((1u << by) - 1u);
        uint middle = 1u << (by - 1u);
        made = shifted_right(size, by);
        bool up = cut > middle || (cut == middle && (made.x & 1u) != 0u);
        made.x += up ? 1u : 0u;
        made.y += up && made.x == 0u ? 1u : 0u;
    }
    made.y += (size.x | size.y) == 0u ? 0u : (first + 1022u) << 20;  // the first bit makes it one more
    made.y |= below ? 0x80000000u : 0u;
    return made;
}

// A float of 32 bits, cut off: its last bit is set where that made it less.
uint odd_of(uvec2 value) {
    uint size = value.y & 0x7FFFFFFFu;
    int power = int(size >> 20) - 896;  // of 32 bits
    uint top = ((size & 0xFFFFFu) << 3) | (value.x >> 29);
    bool cut = (value.x & 0x1FFFFFFFu) != 0u;
    uint made;
    if (size >= 0x7FF00000u) {
        made = (size & 0xFFFFFu) != 0u || value.x != 0u ? 0x7FC00000u : 0x7F800000u;
    } else if (power >= 255) {
        made = 0x7F7FFFFFu;
    } else if (power >= 1) {
        made = (uint(power) << 23) | top | (cut ? 1u : 0u);
    } else {
        uint by = uint(min(1 - power, 31));
        uint whole = top | (size >= 0x100000u ? 0x800000u : 0u);
        made = whole >> by;
        made |= cut || (made << by) != whole ? 1u : 0u;
    }
    return made | (value.y & 0x80000000u);
}

// What the type has of a size of so many bits before the point, cut off.
uvec2 fitting(uvec2 size, uint length, bool below) {
    uint bits = O_KIND == 1u ? O_BITS - 1u : O_BITS;  // what the type has for sizes
    uvec2 most = bits >= 63u ? uvec2(0xFFFFFFFFu, bits == 63u ? 0x7FFFFFFFu : 0xFFFFFFFFu)
                             : uvec2(bits >= 32u ? 0xFFFFFFFFu : (1u << (bits & 31u)) - 1u, 0u);
    bool outside = length > bits;
    uvec2 made = outside ? most : size;
    if (below && O_KIND == 1u && outside) made = uvec2(~most.x, ~most.y);
    else if (below && O_KIND == 1u) made = negative(made);
    else if (below) made = uvec2(0u);
    return made;
}

uvec2 whole_of_double(uvec2 value) {
    uint size = value.y & 0x7FFFFFFFu;
    int power = int(size >> 20) - 1075;
    uvec2 whole = uvec2(value.x, (size & 0xFFFFFu) | 0x100000u);
    uvec2 made = uvec2(0u);
    uint length = 0u;
    bool number = size < 0x7FF00000u || (size == 0x7FF00000u && value.x == 0u);
    if (number && size >= 0x3FF00000u) {
        length = uint(power + 53);
        made = power > 0 ? shifted_left(whole, min(uint(power), 63u)) : shifted_right(whole, uint(-power));
    }
    return fitting(made, length, (value.y >> 31) != 0u);
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
    return fitting(made, size < 0x3F800000u || size > 0x7F800000u ? 0u : uint(power + 24), below);
}

uvec2 converted(uint i) {
    uvec2 value = uvec2(0u);
    if (i < push.count) value = element(i);
    if (O_KIND == 3u) {
        uint bits = value.x | value.y;
        if (A_KIND == 2u && A_BITS == 64u) bits = value.x | (value.y & 0x7FFFFFFFu);
        else if (A_KIND == 2u) bits = value.x & 0x7FFFFFFFu;
        value = uvec2(bits != 0u ? 1u : 0u, 0u);
    } else if (O_KIND == 4u) {
        value.x = odd_of(value);
    } else if (O_KIND == 2u && O_BITS == 64u) {
        value = double_of(value);
    } else if (O_KIND == 2u) {
        if (A_KIND != 2u) value.x = floatBitsToUint(float_of(value));
    } else if (A_KIND == 2u && A_BITS == 64u) {
        value = whole_of_double(value);
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
