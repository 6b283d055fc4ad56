// What a reduction makes of two terms, and an average of a finished sum: four words at a time, which hold four elements
// of 32 bits, eight or sixteen narrower integers, or two of 64 bits, the low word first.
// Needed before: wire.glsl, OP, ORDER, AVERAGE and `factor`. Narrow integers stay packed and those of 64 bits in two
// words, because no type of theirs is everywhere. Selections in place of loops and branches: see halfs.glsl.
#ifndef VKPAR_COMBINE_GLSL
#define VKPAR_COMBINE_GLSL

// The codes of vkpar/comm/wires.py.
const uint OP_SUM = 0u, OP_PROD = 1u, OP_MAX = 2u, OP_MIN = 3u;
const uint ORDER_UINT = 2u;  // 0: floats, 1: signed integers

const bool IS_PACKED = ELEM == ELEM_I8 || ELEM == ELEM_I16;
const bool IS_PAIRED = ELEM == ELEM_I64 || ELEM == ELEM_F64;

// ---- elements of 32 bits ----

// Signed integers in the order of what the bits stand for. NaN wins: it is the largest for max, the smallest for min.
ivec4 key(uvec4 bits) {
    if (IS_WORDS) {
        return ivec4(ORDER == ORDER_UINT ? bits ^ 0x80000000u : bits);
    }
    ivec4 ordered = ivec4(bits ^ (uvec4(ivec4(bits) >> 31) & 0x7FFFFFFFu));
    int nan = OP == OP_MAX ? 0x7FFFFFFF : -0x7FFFFFFF - 1;
    return mix(ordered, ivec4(nan), greaterThan(bits & 0x7FFFFFFFu, uvec4(0x7F800000u)));
}

uvec4 extreme(uvec4 a, uvec4 b) {
    ivec4 x = key(a), y = key(b);
    return mix(a, b, OP == OP_MAX ? greaterThan(y, x) : lessThan(y, x));
}

uvec4 combined_words(uvec4 a, uvec4 b) {
    if (OP == OP_MAX || OP == OP_MIN) {
        return extreme(a, b);
    }
    if (IS_WORDS) {
        return OP == OP_PROD ? a * b : a + b;
    }
    vec4 x = uintBitsToFloat(a), y = uintBitsToFloat(b);
    return floatBitsToUint(OP == OP_PROD ? x * y : x + y);
}

// Rounded toward zero.
uvec4 divided_words(uvec4 v, uint divisor) {
    uvec4 sign = ORDER == ORDER_UINT ? uvec4(0u) : uvec4(ivec4(v) >> 31);
    return ((((v ^ sign) - sign) / divisor) ^ sign) - sign;
}

// ---- several integers a word: each is computed as a word, and cut to its bits ----

const uint WIDTH = ELEM == ELEM_I8 ? 8u : 16u;
const uint LOW_BITS = ELEM == ELEM_I8 ? 0x7F7F7F7Fu : 0x7FFF7FFFu;  // all but each integer's highest

// The integers that shifting left by `up` brings to the words' ends.
uvec4 unpacked(uvec4 v, uint up) {
    uvec4 top = v << up;
    return ORDER == ORDER_UINT ? top >> (32u - WIDTH) : uvec4(ivec4(top) >> int(32u - WIDTH));
}

uvec4 packed_at(uvec4 values, uint up) {
    return (values << (32u - WIDTH)) >> up;
}

uvec4 combined_at(uvec4 a, uvec4 b, uint up) {
    return packed_at(combined_words(unpacked(a, up), unpacked(b, up)), up);
}

uvec4 divided_at(uvec4 v, uint divisor, uint up) {
    return packed_at(divided_words(unpacked(v, up), divisor), up);
}

uvec4 combined_packed(uvec4 a, uvec4 b) {
    if (OP == OP_SUM) {
        return ((a & LOW_BITS) + (b & LOW_BITS)) ^ ((a ^ b) & ~LOW_BITS);
    }
    uvec4 result = combined_at(a, b, 0u) | combined_at(a, b, 16u);
    return WIDTH == 16u ? result : result | combined_at(a, b, 8u) | combined_at(a, b, 24u);
}

uvec4 divided_packed(uvec4 v, uint divisor) {
    uvec4 result = divided_at(v, divisor, 0u) | divided_at(v, divisor, 16u);
    return WIDTH == 16u ? result : result | divided_at(v, divisor, 8u) | divided_at(v, divisor, 24u);
}

// ---- elements of 64 bits: x and z are the low words, y and w the high ones ----

uvec4 of_pairs(uvec2 low, uvec2 high) {
    return uvec4(low.x, high.x, low.y, high.y);
}

uvec4 sum_of_pairs(uvec4 a, uvec4 b) {
    uvec2 low = a.xz + b.xz;
    return of_pairs(low, a.yw + b.yw + uvec2(lessThan(low, a.xz)));
}

uvec4 product_of_pairs(uvec4 a, uvec4 b) {
    uvec2 high, low;
    umulExtended(a.xz, b.xz, high, low);
    return of_pairs(low, high + a.xz * b.yw + a.yw * b.xz);
}

uvec4 negated_pairs(uvec4 v) {
    return sum_of_pairs(~v, uvec4(1u, 0u, 1u, 0u));
}

// Both words of each pair, all bits set where its number is negative.
uvec4 signs_of_pairs(uvec4 v) {
    return uvec4(ivec4(v.yyww) >> 31);
}

bvec2 are_nan(uvec4 v) {
    uvec2 high = v.yw & 0x7FFFFFFFu;
    bvec2 above = greaterThan(high, uvec2(0x7FF00000u));
    bvec2 just = equal(high, uvec2(0x7FF00000u)), some = notEqual(v.xz, uvec2(0u));
    return bvec2(above.x || (just.x && some.x), above.y || (just.y && some.y));
}

// Unsigned numbers in the order of what the bits stand for, NaN as in key().
uvec4 key_of_pairs(uvec4 v) {
    const uvec4 TOP = uvec4(0u, 0x80000000u, 0u, 0x80000000u);
    if (ELEM == ELEM_I64) {
        return ORDER == ORDER_UINT ? v : v ^ TOP;
    }
    uint nan = OP == OP_MAX ? 0xFFFFFFFFu : 0u;
    return mix(v ^ (signs_of_pairs(v) | TOP), uvec4(nan), are_nan(v).xxyy);
}

bvec2 are_less(uvec4 a, uvec4 b) {
    bvec2 high = lessThan(a.yw, b.yw), same = equal(a.yw, b.yw), low = lessThan(a.xz, b.xz);
    return bvec2(high.x || (same.x && low.x), high.y || (same.y && low.y));
}

uvec4 extreme_of_pairs(uvec4 a, uvec4 b) {
    uvec4 x = key_of_pairs(a), y = key_of_pairs(b);
    bvec2 second = OP == OP_MAX ? are_less(x, y) : are_less(y, x);
    return mix(a, b, second.xxyy);
}

// Schoolbook, 16 bits at a time: the divisor is a number of ranks, below 2^16.
uvec4 divided_pairs(uvec4 v, uint divisor) {
    uvec4 sign = ORDER == ORDER_UINT ? uvec4(0u) : signs_of_pairs(v);
    uvec4 magnitude = mix(v, negated_pairs(v), notEqual(sign, uvec4(0u)));
    uvec2 low = magnitude.xz, high = magnitude.yw;
    uvec2 q3 = high / divisor, rest = high - q3 * divisor;
    uvec2 part = (rest << 16) | (low >> 16);
    uvec2 q1 = part / divisor;
    part = ((part - q1 * divisor) << 16) | (low & 0xFFFFu);
    uvec4 quotient = of_pairs((q1 << 16) | (part / divisor), q3);
    return mix(quotient, negated_pairs(quotient), notEqual(sign, uvec4(0u)));
}

#ifdef DOUBLES
uvec2 combined_doubles(uvec2 a, uvec2 b) {
    double x = packDouble2x32(a), y = packDouble2x32(b);
    precise double result = OP == OP_PROD ? x * y : x + y;
    return unpackDouble2x32(result);
}

uvec2 scaled_double(uvec2 v, uvec2 by) {
    precise double result = packDouble2x32(v) * packDouble2x32(by);
    return unpackDouble2x32(result);
}
#endif

uvec4 combined_pairs(uvec4 a, uvec4 b) {
    if (OP == OP_MAX || OP == OP_MIN) {
        return extreme_of_pairs(a, b);
    }
#ifdef DOUBLES
    return uvec4(combined_doubles(a.xy, b.xy), combined_doubles(a.zw, b.zw));
#else
    return OP == OP_PROD ? product_of_pairs(a, b) : sum_of_pairs(a, b);
#endif
}

// ---- any elements ----

uvec4 combined(uvec4 a, uvec4 b) {
    if (IS_PACKED) {
        return combined_packed(a, b);
    }
    return IS_PAIRED ? combined_pairs(a, b) : combined_words(a, b);
}

// A finished result: an average divided, and a double that is no number made the one that all drivers agree on.
uvec4 finished(uvec4 v) {
#ifdef DOUBLES
    if (AVERAGE) {
        v = uvec4(scaled_double(v.xy, factor), scaled_double(v.zw, factor));
    }
    return mix(v, uvec4(0u, 0x7FF80000u, 0u, 0x7FF80000u), are_nan(v).xxyy);
#else
    if (AVERAGE && !IS_WORDS) {
        return floatBitsToUint(uintBitsToFloat(v) * uintBitsToFloat(factor.x));
    }
#ifdef ANY
    if (AVERAGE && IS_WORDS) {
        return IS_PACKED ? divided_packed(v, factor.x)
                         : IS_PAIRED ? divided_pairs(v, factor.x) : divided_words(v, factor.x);
    }
#endif
    return v;
#endif
}

#endif
