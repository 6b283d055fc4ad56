// A pass of a stable radix sort of rows by four bits of their keys, in chunks of 4,096: counts how many elements of a
// chunk have each digit, or writes the elements where running sums of these counts say. Elements are keys, which order
// as whole numbers, and the places that they came from.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/grid.glsl"
#define PREFIX uint
#include "common/prefix.glsl"

layout(constant_id = 0) const uint KIND = 0u;  // of what the first pass reads: 0 uint, 1 int, 2 float
layout(constant_id = 1) const bool BEGINS = false;  // the first pass: makes keys and places of elements
layout(constant_id = 2) const bool LARGEST = false;  // the largest come first; NaN is last in any case
layout(constant_id = 3) const bool COUNTS = false;
layout(constant_id = 4) const bool ALONE = false;  // a row is one chunk: nobody counted

#include "common/order.glsl"

layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) readonly buffer Keys { uint keys[]; };
layout(set = 0, binding = 1, std430) readonly buffer Places { uint places[]; };
layout(set = 0, binding = 2, std430) buffer SortedKeys { uint sorted_keys[]; };
layout(set = 0, binding = 3, std430) buffer SortedPlaces { uint sorted_places[]; };
layout(set = 0, binding = 4, std430) buffer Counts { uint counts[]; };

layout(push_constant) uniform Push {
    uint count;   // elements of a row
    uint rows;
    uint chunks;  // of a row
    uint shift;   // of the digit
    uint keys_first;
    uint places_first;
    uint sorted_keys_first;
    uint sorted_places_first;
    uint counts_first;
} push;

// Of each digit below 8 in the low half, and of the one 8 above it in the high half; lanes of a digit side by side.
shared uint tally[2048];

uint added(uint x, uint y) { return x + y; }

uint key_of(uint raw) {
    return BEGINS ? ordered(raw) : raw;
}

void main() {
    uint group = group_number();
    uint row = group / push.chunks;
    uint chunk = group - row * push.chunks;
    if (row >= push.rows) return;
    uint lane = gl_LocalInvocationID.x;
    uint at = chunk * 4096u + lane * 16u;
    uint n = push.count > at ? min(push.count - at, 16u) : 0u;
    uint from = row * push.count + at;
    for (uint word = 0u; word < 8u; word++) tally[word * 256u + lane] = 0u;
    for (uint j = 0u; j < n; j++) {
        uint digit = (key_of(keys[push.keys_first + from + j]) >> push.shift) & 15u;
        tally[(digit & 7u) * 256u + lane] += 1u << ((digit >> 3) * 16u);
    }
    barrier();
    // Each lane adds up eight neighbours, and all lanes these.
    uint sum = 0u;
    for (uint word = 0u; word < 8u; word++) sum += tally[lane * 8u + word];
    PREFIXES(part, sum, added)
    uint whole = part[255];
    uint before = part[lane] - sum;
    for (uint word = 0u; word < 8u; word++) {
        uint own = tally[lane * 8u + word];
        tally[lane * 8u + word] = before;
        before += own;
    }
    barrier();
    uint low = whole & 0xFFFFu;  // elements of digits below 8 come first
    uint first = 0u;  // of the elements of a lane's digit among those of the chunk
    uint next = 0u;
    if (lane < 16u) {
        uint up = (lane >> 3) * 16u;
        first = ((tally[(lane & 7u) * 256u] >> up) & 0xFFFFu) + (lane > 7u ? low : 0u);
        uint follows = (lane & 7u) == 7u ? whole : tally[min((lane & 7u) + 1u, 7u) * 256u];
        next = ((follows >> up) & 0xFFFFu) + (lane > 7u ? low : 0u);
    }
    uint counted = push.counts_first + (row * 16u + lane) * push.chunks + chunk;
    if (COUNTS) {
        if (lane < 16u) counts[counted] = next - first;
    } else {
        barrier();
        if (lane < 16u) part[lane] = ALONE ? 0u : counts[counted] - next;  // what is added to a place in the chunk
        barrier();
        for (uint j = 0u; j < n; j++) {
            uint key = key_of(keys[push.keys_first + from + j]);
            uint digit = (key >> push.shift) & 15u;
            uint word = (digit & 7u) * 256u + lane;
            uint up = (digit >> 3) * 16u;
            uint to = ((tally[word] >> up) & 0xFFFFu) + (digit > 7u ? low : 0u) + part[digit] + row * push.count;
            tally[word] += 1u << up;
            sorted_keys[push.sorted_keys_first + to] = key;
            uint place = at + j;
            if (!BEGINS) place = places[push.places_first + from + j];
            sorted_places[push.sorted_places_first + to] = place;
        }
    }
}
