// How invocations find extremes, or their places: a few instructions an element, since these bound a reduction on GPUs.
//
// Keys are compared as signed numbers here. Those of NaN lie beyond the infinities to either side, so that the largest
// and the least key tell whether there was one; with W64 each NaN has the largest key at once, without a branch.
#ifndef VKPAR_EXTREME_GLSL
#define VKPAR_EXTREME_GLSL

const uint SIGN = 0x80000000u;
const int LEAST = -2147483647 - 1, MOST = 2147483647;
const int INFINITE = 0x7F800000;

#ifdef W64
const bool NOTES_NAN = false;
#else
const bool NOTES_NAN = FLOATS;
#endif

struct State {
    ivec4 high;
    ivec4 low;  // the least keys, where NaN is noted by them
#ifdef PLACE
    uvec4 at;  // of the fours that `high` is from
#endif
};

// Bits of elements, those of halves as float32.
uvec4 bits_of(uvec4 packed) {
    uvec4 bits = packed;
    if (a_half) {
        bits = floatBitsToUint(a_unpack4(packed));
    }
    return bits;
}

bvec4 are_nan(uvec4 bits) {
    return greaterThan(bits & 0x7FFFFFFFu, uvec4(uint(INFINITE)));
}

ivec4 keys_of(uvec4 packed) {
    uvec4 bits = bits_of(packed), key = bits ^ SIGN ^ push.flip;
    if (FLOATS) {
        key = bits ^ (uvec4(ivec4(bits) >> 31) & 0x7FFFFFFFu) ^ push.flip;
        if (!NOTES_NAN) {
            key = mix(key, uvec4(uint(MOST)), are_nan(bits));
        }
    }
    return ivec4(key);
}

bvec4 has_nan(State state) {
    if (!FLOATS) {
        return bvec4(false);
    }
    uvec4 outside = uvec4(greaterThan(state.high, ivec4(INFINITE))) | uvec4(lessThan(state.low, ivec4(~INFINITE)));
    return notEqual(outside, uvec4(0u));
}

#ifdef EXTREME
State none(uint at) {
    return State(ivec4(LEAST), ivec4(MOST));
}

State of_fours(uvec4 packed[4], uint at, uint apart) {
    ivec4 a = keys_of(packed[0]), b = keys_of(packed[1]), c = keys_of(packed[2]), d = keys_of(packed[3]);
    State state = none(at);
    state.high = max(max(a, b), max(c, d));
    if (NOTES_NAN) {
        state.low = min(min(a, b), min(c, d));
    }
    return state;
}

State of_some(uvec4 packed, uint n, uint at) {
    bvec4 some = lessThan(uvec4(0u, 1u, 2u, 3u), uvec4(n));
    ivec4 key = keys_of(packed);
    return State(mix(ivec4(LEAST), key, some), mix(ivec4(MOST), key, some));
}

State then(State a, State b) {
    return State(max(a.high, b.high), min(a.low, b.low));
}
#else

State none(uint at) {
    return State(ivec4(LEAST), ivec4(MOST), uvec4(at));
}

// Zeros of either sign are equal; their keys are 0 and -1, whichever extreme is asked for.
State of_fours(uvec4 packed[4], uint at, uint apart) {
    ivec4 a = keys_of(packed[0]), b = keys_of(packed[1]), c = keys_of(packed[2]), d = keys_of(packed[3]);
    ivec4 high = max(max(a, b), max(c, d)), least = high;
    State state = none(at);
    if (FLOATS) {
        bvec4 zero = equal(max(high, -high - 1), ivec4(0));
        least = mix(high, ivec4(-1), zero);
        high = mix(high, ivec4(0), zero);
    }
    if (NOTES_NAN) {
        state.low = min(min(a, b), min(c, d));
    }
    state.high = high;
    state.at = mix(uvec4(at + 3u * apart), uvec4(at + 2u * apart), greaterThanEqual(c, least));
    state.at = mix(state.at, uvec4(at + apart), greaterThanEqual(b, least));
    state.at = mix(state.at, uvec4(at), greaterThanEqual(a, least));
    return state;
}

State of_some(uvec4 packed, uint n, uint at) {
    bvec4 some = lessThan(uvec4(0u, 1u, 2u, 3u), uvec4(n));
    ivec4 key = keys_of(packed), high = key;
    if (FLOATS) {
        high = mix(key, ivec4(0), equal(key, ivec4(-1)));
    }
    return State(mix(ivec4(LEAST), high, some), mix(ivec4(MOST), key, some), uvec4(at));
}

// b lies after a in all places.
State then(State a, State b) {
    bvec4 second = greaterThan(b.high, a.high);
    return State(mix(a.high, b.high, second), min(a.low, b.low), mix(a.at, b.at, second));
}
#endif

#endif
