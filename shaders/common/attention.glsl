// What the kernels of attention share: what they bind, where rows lie, which keys a query sees.
#ifndef VKPAR_ATTENTION_GLSL
#define VKPAR_ATTENTION_GLSL

#include "elements.glsl"
#include "grid.glsl"

layout(constant_id = 1) const uint WIDTH = 64;    // elements of a row
layout(constant_id = 2) const uint Q_TYPE = 0;
layout(constant_id = 3) const uint O_TYPE = 0;
layout(constant_id = 4) const bool WIDE = false;  // rows of k and v begin at multiples of 16 bytes, and so on
layout(constant_id = 5) const bool Q_WIDE = false;
layout(constant_id = 6) const bool O_WIDE = false;
layout(constant_id = 7) const bool CAUSAL = false;
layout(constant_id = 8) const bool MASKED = false;
layout(constant_id = 9) const uint M_TYPE = 0;
layout(constant_id = 10) const uint LENGTHS = 0;  // 1 where an array says how many keys count, 2 where it is signed
layout(constant_id = 11) const bool SPLIT = false;  // the result is one part's sums
layout(constant_id = 12) const bool WINDOWED = false;  // a query sees the last ones alone of the keys that it would see

const uint CHUNKS = (WIDTH + 7u) / 8u;

ELEMENTS_IN(q, 0, Q_TYPE, Q_WIDE)
ELEMENTS_IN(k, 1, K_TYPE, WIDE)
ELEMENTS_IN(v, 2, K_TYPE, WIDE)
ELEMENTS_IN(m, 3, M_TYPE, false)
layout(set = 0, binding = 4, std430) readonly buffer Lengths { uint lengths[]; };
ELEMENTS_OUT(o, 5, O_TYPE, O_WIDE)

layout(push_constant) uniform Push {
    uint batches;
    uint kv_heads;
    uint grouped;  // heads of q that share one of k
    uint tokens;   // of q
    uint keys;     // of k
    uint blocks;   // of queries that share a head of k
    uint splits;   // parts of the keys
    float scale;
    uint q_first;
    uint q_batch;
    uint q_head;
    uint q_row;
    uint k_first;
    uint k_batch;
    uint k_head;
    uint k_row;
    uint v_first;
    uint v_batch;
    uint v_head;
    uint v_row;
    uint o_first;
    uint o_batch;
    uint o_head;
    uint o_row;
    uint m_first;
    uint m_batch;
    uint m_head;
    uint m_row;
    uint m_key;
    uint l_first;
    uint l_batch;
    uint window;   // keys that a query sees at most
} push;

const float LOWEST = -3.4028234663852886e38;
#define UNSEEN uintBitsToFloat(0xFF800000u)
#define NOT uintBitsToFloat(0x7FC00000u)

// Queries that share a head of k are numbered token by token.
uint token_of(uint row) {
    return row / push.grouped;
}

uint head_of(uint kv, uint row) {
    return kv * push.grouped + row % push.grouped;
}

uint query_at(uint batch, uint kv, uint row) {
    return push.q_first + batch * push.q_batch + head_of(kv, row) * push.q_head + token_of(row) * push.q_row;
}

uint result_at(uint batch, uint kv, uint row) {
    return push.o_first + batch * push.o_batch + head_of(kv, row) * push.o_head + token_of(row) * push.o_row;
}

// Rows past the last one, whose results nobody stores, take its mask.
uint mask_at(uint batch, uint kv, uint row, uint key) {
    row = min(row, push.tokens * push.grouped - 1u);
    uint head = head_of(kv, row), token = token_of(row);
    return push.m_first + batch * push.m_batch + head * push.m_head + token * push.m_row + key * push.m_key;
}

// The row's number among all.
uint row_number(uint batch, uint kv, uint row) {
    return (batch * push.kv_heads * push.grouped + head_of(kv, row)) * push.tokens + token_of(row);
}

// How many keys of a sequence count.
uint keys_of(uint batch) {
    uint count = push.keys;
    if (LENGTHS != 0u) {
        uint given = lengths[push.l_first + batch * push.l_batch];
        count = LENGTHS == 2u && (given >> 31) != 0u ? 0u : min(given, push.keys);
    }
    return count;
}

// How many of the first `keys` a query sees.
uint seen_by(uint row, uint keys) {
    uint hidden = CAUSAL ? push.tokens - 1u - min(token_of(row), push.tokens - 1u) : 0u;
    return keys - min(keys, hidden);
}

// The first key that a query sees.
uint first_seen(uint row, uint keys) {
    uint seen = seen_by(row, keys);
    return WINDOWED ? seen - min(seen, push.window) : 0u;
}

// Whether a query whose keys end at `end` sees one.
bool sees(uint row, uint keys, uint key, uint end) {
    return key < end && (!WINDOWED || key >= first_seen(row, keys));
}

// Whether a score makes its row NaN: by bits, since some drivers take NaN and infinities for numbers.
bool spoils(float s) {
    int bits = floatBitsToInt(s);
    return (bits & 0x7FFFFFFF) + (bits >> 31) >= 0x7F800000;  // -inf does not
}

// What a row is: nothing where no key was seen, NaN where the sum is.
vec4 quotient(vec4 made, float total) {
    bool lost = (floatBitsToUint(total) & 0x7FFFFFFFu) > 0x7F800000u;
    return lost ? vec4(NOT) : total > 0.0 ? made / total : vec4(0.0);
}

#endif
