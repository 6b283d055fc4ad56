// What kernels of a stable radix sort of rows by eight bits of their keys at a time share; see sort.comp.
#ifndef VKPAR_SORT_GLSL
#define VKPAR_SORT_GLSL

#include "grid.glsl"

layout(constant_id = 0) const uint KIND = 0u;  // of elements: 0 uint, 1 int, 2 float
layout(constant_id = 1) const bool LARGEST = false;  // the largest come first; NaN is last in any case
layout(constant_id = 2) const bool BEGINS = false;  // the first pass: elements lie at their places
layout(constant_id = 3) const uint PHASE = 1u;  // 0: how many elements of a chunk have each digit; 1: order; 2: of rows alone; 3: short rows, all compared with all
layout(constant_id = 4) const bool KEYS = true;  // elements are stored
layout(constant_id = 5) const bool PLACES = true;  // the places are stored that they came from

const bool COUNTS = PHASE == 0u;
const bool ALONE = PHASE == 2u;  // a row is one chunk: nobody counted
#include "order.glsl"

layout(set = 0, binding = 0, std430) readonly buffer Keys { uint keys[]; };
layout(set = 0, binding = 1, std430) readonly buffer Places { uint places[]; };
layout(set = 0, binding = 2, std430) buffer SortedKeys { uint sorted_keys[]; };
layout(set = 0, binding = 3, std430) buffer SortedPlaces { uint sorted_places[]; };
layout(set = 0, binding = 4, std430) buffer Counts { uint counts[]; };

layout(push_constant) uniform Push {
    uint count;   // elements of a row
    uint rows;
    uint chunks;  // of a row
    uint shift;   // of the first digit
    uint bits;    // of a key: those below are of a digit of this dispatch
    uint flip;    // bits of keys that order the other way
    uint keys_first;
    uint places_first;
    uint sorted_keys_first;
    uint sorted_places_first;
    uint counts_first;
} push;

uint digit_of(uint raw, uint shift) {
    return ((ordered(raw) ^ push.flip) >> shift) & 255u;
}

// Where the count of a digit stands, and the running sum that becomes of it: a row's digits one after the other.
uint count_at(uint row, uint digit, uint chunk) {
    return push.counts_first + (row * 256u + digit) * push.chunks + chunk;
}

#endif
