// What a reduction does with elements: SUM (of floats, or with WORDS of wrapping integers), EXTREME (max or min) or
// PLACE (where the first extreme is). Needed before: elements.glsl, the input `a` and the output `o`, push constants
// `flip` and `divisor`.
//
// Extremes go by keys: whole numbers in the order of the elements, the largest wins, NaN is above all. Bits decide, so
// that the result is the same on every driver, subnormal numbers included.
#ifndef VKPAR_FOLD_GLSL
#define VKPAR_FOLD_GLSL

const uint NAN_KEY = 0xFFFFFFFFu;
const bool FLOATS = A_TYPE != I32;

#if defined(SUM)
#ifdef WORDS
#define FOUR uvec4
#define ONE uint
#else
#define FOUR vec4
#define ONE float
#endif

FOUR nothing(uint at) {
    return FOUR(0);
}

// Four packed elements, of which the first n count; those after them are zero.
FOUR taken(uvec4 packed, uint n, uint at) {
#if defined(WORDS)
    return packed;
#elif defined(SIGNED)
    return vec4(ivec4(packed));
#elif defined(UNSIGNED)
    return vec4(packed);
#else
    return a_unpack4(packed);
#endif
}

FOUR both(FOUR a, FOUR b) {
    return a + b;
}

FOUR then(FOUR a, FOUR b) {
    return a + b;
}

ONE both(ONE a, ONE b) {
    return a + b;
}

ONE across(FOUR a) {
    return (a.x + a.y) + (a.z + a.w);
}

uvec4 finished(FOUR a) {
#ifdef WORDS
    return a;
#else
    return floatBitsToUint(push.divisor > 0.0 ? a / push.divisor : a);
#endif
}
#else

// Bits of elements, those of halves as float32.
uvec4 bits_of(uvec4 packed) {
    uvec4 bits = packed;
    if (a_half) {
        bits = floatBitsToUint(a_unpack4(packed));
    }
    return bits;
}

uvec4 keys_of(uvec4 bits) {
    uvec4 key = bits ^ push.flip;
    if (FLOATS) {
        key = bits ^ (uvec4(ivec4(bits) >> 31) | 0x80000000u) ^ push.flip;
        key = mix(key, uvec4(NAN_KEY), greaterThan(bits & 0x7FFFFFFFu, uvec4(0x7F800000u)));
    }
    return key;
}

bvec4 first_of(uint n) {
    return lessThan(uvec4(0u, 1u, 2u, 3u), uvec4(n));
}
#endif

#ifdef EXTREME
#define FOUR uvec4
#define ONE uint

FOUR nothing(uint at) {
    return uvec4(0u);
}

FOUR taken(uvec4 packed, uint n, uint at) {
    return mix(uvec4(0u), keys_of(bits_of(packed)), first_of(n));
}

FOUR both(FOUR a, FOUR b) {
    return max(a, b);
}

FOUR then(FOUR a, FOUR b) {
    return max(a, b);
}

ONE both(ONE a, ONE b) {
    return max(a, b);
}

ONE across(FOUR a) {
    return max(max(a.x, a.y), max(a.z, a.w));
}

uvec4 finished(FOUR a) {
    uvec4 bits = a ^ push.flip;
    if (FLOATS) {
        bits ^= ~uvec4(ivec4(bits) >> 31) | 0x80000000u;
        bits = mix(bits, uvec4(0x7FC00000u), equal(a, uvec4(NAN_KEY)));
    }
    return bits;
}
#endif

#ifdef PLACE
#define FOUR Four
#define ONE One

struct Four {
    uvec4 key;
    uvec4 at;
};

struct One {
    uint key;
    uint at;
};

// Less than every element from place `at` on: the least keys, at the places of the first ones or, past the last number,
// at that.
FOUR nothing(uint at) {
    uvec4 places = at + STEP * uvec4(0u, 1u, 2u, 3u);
    return Four(uvec4(0u), mix(places, uvec4(0xFFFFFFFFu), lessThan(places, uvec4(push.place))));
}

// Zeros of either sign are equal. `at` is the place of the first element; STEP apart lie the others.
FOUR taken(uvec4 packed, uint n, uint at) {
    uvec4 bits = bits_of(packed);
    if (FLOATS) {
        bits = mix(bits, uvec4(0u), equal(bits, uvec4(0x80000000u)));
    }
    bvec4 some = first_of(n);
    uvec4 places = at + STEP * uvec4(0u, 1u, 2u, 3u);
    return Four(mix(uvec4(0u), keys_of(bits), some), mix(uvec4(0xFFFFFFFFu), places, some));
}

ONE both(ONE a, ONE b) {
    bool second = b.key > a.key || (b.key == a.key && b.at < a.at);
    return One(second ? b.key : a.key, second ? b.at : a.at);
}

FOUR both(FOUR a, FOUR b) {
    uvec4 lower = uvec4(lessThan(b.at, a.at)) * uvec4(equal(b.key, a.key));
    bvec4 second = notEqual(lower + uvec4(greaterThan(b.key, a.key)), uvec4(0u));
    return Four(mix(a.key, b.key, second), mix(a.at, b.at, second));
}

// As both() of b that lies after a in all places.
FOUR then(FOUR a, FOUR b) {
    bvec4 second = greaterThan(b.key, a.key);
    return Four(mix(a.key, b.key, second), mix(a.at, b.at, second));
}

ONE across(FOUR a) {
    return both(both(One(a.key.x, a.at.x), One(a.key.y, a.at.y)), both(One(a.key.z, a.at.z), One(a.key.w, a.at.w)));
}
#endif

#endif
