// What a reduction does with elements: SUM (of floats, or with WORDS of wrapping integers), EXTREME (max or min) or
// PLACE (where the first extreme is). Needed before: elements.glsl, the input `a` and the output `o`, push constants
// `flip`, `place` and `divisor`.
//
// Invocations add elements to a State, each quarter of a four to one of its own; FOUR is what that comes to, ONE what a
// quarter does, and PART, one of these, what a unit of invocations makes.
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
#define State FOUR

State none(uint at) {
    return State(0);
}

State taken(uvec4 packed) {
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

// Of four fours: `at` is the place of the first one, `apart` lie the others.
State of_fours(uvec4 packed[4], uint at, uint apart) {
    return (taken(packed[0]) + taken(packed[1])) + (taken(packed[2]) + taken(packed[3]));
}

// Of one four, of which the first n count; those after them are zero.
State of_some(uvec4 packed, uint n, uint at) {
    return taken(packed);
}

State then(State a, State b) {
    return a + b;
}

FOUR ended(State state) {
    return state;
}

PART nothing() {
    return PART(0);
}

FOUR both(FOUR a, FOUR b) {
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
#include "extreme.glsl"
#endif

#ifdef EXTREME
#define FOUR uvec4
#define ONE uint

PART nothing() {
    return PART(0u);
}

FOUR ended(State state) {
    return mix(uvec4(state.high) ^ SIGN, uvec4(NAN_KEY), has_nan(state));
}

FOUR both(FOUR a, FOUR b) {
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
        bits ^= ~uvec4(ivec4(bits) >> 31) | SIGN;
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

// Where a state had no element, the least key at a place after all that have one.
FOUR ended(State state) {
    uvec4 places = state.at + STEP * uvec4(0u, 1u, 2u, 3u);
    return Four(uvec4(state.high) ^ SIGN, mix(places, uvec4(0xFFFFFFFFu), lessThan(places, uvec4(push.place))));
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

// No elements: of PART, what a unit of invocations makes.
PART nothing() {
    return PART(PART_WORD(0u), PART_WORD(0xFFFFFFFFu));
}

ONE across(FOUR a) {
    return both(both(One(a.key.x, a.at.x), One(a.key.y, a.at.y)), both(One(a.key.z, a.at.z), One(a.key.w, a.at.w)));
}
#endif

#endif
