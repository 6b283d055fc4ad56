// What sort.comp does, a pass a dispatch, for CPU drivers, which pay for each invocation at every barrier and for each
// word of shared memory: an invocation has a chunk for itself, counts the digits of its elements in an array of its own,
// and writes each element where it goes. Short rows are done at once, by comparing all with all.
// Elements of 64 bits are two words, the lower one first.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/sort.glsl"

layout(local_size_x_id = 6) in;
layout(constant_id = 6) const uint THREADS = 8u;
layout(constant_id = 7) const uint ITEMS = 2048u;  // of a chunk; of a row that is compared
layout(constant_id = 8) const uint WORDS = 1u;     // of an element

const bool COMPARES = PHASE == 3u;
const uint SHORT = COMPARES ? ITEMS : 1u;

uint tally[256];

uvec2 element(uint at) {
    uint word = push.keys_first + at * WORDS;
    return uvec2(keys[word], WORDS == 2u ? keys[word + 1u] : 0u);
}

// An element's key, which orders by its upper word and then by its lower one.
uvec2 key_of(uvec2 raw) {
    if (WORDS == 1u) {
        uint key = ordered(raw.x) ^ push.flip;
        return uvec2(push.bits < 32u ? key & ((1u << push.bits) - 1u) : key, 0u);
    }
    return ordered_pair(raw);
}

uint digit_at(uvec2 raw, uint shift) {
    if (WORDS == 1u) return digit_of(raw.x, shift);
    uvec2 key = key_of(raw);
    return ((shift < 32u ? key.x : key.y) >> (shift & 31u)) & 255u;
}

void store(uint to, uvec2 raw, uint place) {
    uint word = push.sorted_keys_first + to * WORDS;
    if (KEYS) sorted_keys[word] = raw.x;
    if (KEYS && WORDS == 2u) sorted_keys[word + 1u] = raw.y;
    if (PLACES) sorted_places[push.sorted_places_first + to] = place;
}

// An element goes behind all that are less, and behind the equal ones that come before it.
void compare(uint from) {
    uint low[SHORT], high[SHORT];
    for (uint i = 0u; i < SHORT; i++) {
        uvec2 key = key_of(element(from + i));
        low[i] = key.x;
        high[i] = key.y;
    }
    for (uint i = 0u; i < SHORT; i++) {
        uint rank = 0u;
        for (uint j = 0u; j < SHORT; j++) {
            bool less = low[j] < low[i] || low[j] == low[i] && j < i;
            if (WORDS == 2u) less = high[j] < high[i] || high[j] == high[i] && less;
            rank += less ? 1u : 0u;
        }
        store(from + rank, element(from + i), i);
    }
}

void main() {
    uint number = group_number() * THREADS + gl_LocalInvocationID.x;
    uint row = number / push.chunks;
    uint chunk = number - row * push.chunks;
    if (row >= push.rows) return;
    uint from = row * push.count;
    if (COMPARES) {
        compare(from);
        return;
    }
    uint at = chunk * ITEMS;
    uint end = min(push.count, at + ITEMS);
    if (COUNTS || ALONE) {
        for (uint digit = 0u; digit < 256u; digit++) tally[digit] = 0u;
        for (uint i = at; i < end; i++) tally[digit_at(element(from + i), push.shift)]++;
    }
    if (COUNTS) {
        for (uint digit = 0u; digit < 256u; digit++) counts[count_at(row, digit, chunk)] = tally[digit];
        return;
    }
    uint before = 0u;
    for (uint digit = 0u; digit < 256u; digit++) {
        uint own = tally[digit];
        if (!ALONE) {  // the running sum up to the one before this one
            uint cell = digit * push.chunks + chunk;
            before = cell > 0u ? counts[push.counts_first + row * 256u * push.chunks + cell - 1u] : 0u;
        }
        tally[digit] = before;
        before += own;
    }
    for (uint i = at; i < end; i++) {
        uvec2 raw = element(from + i);
        uint digit = digit_at(raw, push.shift);
        uint to = tally[digit];
        tally[digit] = to + 1u;
        store(from + to, raw, BEGINS || !PLACES ? i : places[push.places_first + from + i]);
    }
}
