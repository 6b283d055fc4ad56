// The K first elements of chunks of rows, by keys and, of equal ones, by places; a work-group does a chunk. Elements
// are dealt to 1,536 hands, six a lane. The K hands whose best elements come first have all that is wanted, since each
// other element has K before it; the last of these best elements is found digit by digit, four bits at a time. What
// those hands have up to it is counted out: as many come before an element as its number is. What atomics give out are
// sums, and cells whose order decides nothing.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/grid.glsl"

layout(constant_id = 0) const uint KIND = 0u;  // of elements: 0 uint, 1 int, 2 float
layout(constant_id = 1) const bool LARGEST = false;  // the largest come first; NaN is last in any case
layout(constant_id = 2) const bool BEGINS = true;  // all elements are asked, not those at places that are left of them
layout(constant_id = 3) const bool ENDS = true;  // stores values, too
layout(constant_id = 4) const uint THREADS = 256u;
#include "common/order.glsl"

layout(local_size_x_id = 4) in;
layout(set = 0, binding = 0, std430) readonly buffer Elements { uint a[]; };
layout(set = 0, binding = 1, std430) readonly buffer Left { uint left[]; };
layout(set = 0, binding = 2, std430) buffer Values { uint values[]; };
layout(set = 0, binding = 3, std430) buffer Places { uint places[]; };

layout(push_constant) uniform Push {
    uint count;   // of a row: elements that are asked
    uint rows;
    uint chunks;  // of a row
    uint chunk;   // elements of a chunk
    uint k;
    uint elements;  // of a row
    uint a_first;
    uint left_first;
    uint values_first;
    uint places_first;
} push;

const uint HANDS = 6u * THREADS;
shared uint bins[192];  // how many elements have each digit, a turn after the other
shared uint given[2];   // cells that were given out: of chosen, of keys and spots
shared uint chosen[2u * THREADS];
shared uint keys[HANDS];
shared uint spots[HANDS];

uint row, begin, size;  // of the work-group: where its chunk begins, and how much there is

// Where an element of the chunk lies in its row, LAST where there is none.
uint place_of(uint spot) {
    uint at = begin + min(spot, size - 1u);
    if (!BEGINS) at = left[push.left_first + row * push.count + at];
    return spot < size ? at : LAST;
}

uint key_of(uint spot) {
    uint place = place_of(spot);
    uint key = ordered(a[push.a_first + row * push.elements + min(place, push.elements - 1u)]);
    return place == LAST ? LAST : key;
}

void keep(inout uint best, inout uint place, uint spot) {
    uint key = key_of(spot);
    place = key < best ? spot : place;
    best = min(key, best);
}

bool comes(uint key, uint spot, uint last_key, uint last_spot) {
    return key < last_key || key == last_key && spot <= last_spot;
}

void tally(uint key, uint spot, uint last_key, uint last_spot, uint turn, uint shift) {
    bool by_spot = turn > 7u;
    uint word = (by_spot ? spot : key) >> shift;
    uint known = (by_spot ? last_spot : last_key) >> shift;
    if ((!by_spot || key == last_key) && (word >> 4) == (known >> 4)) atomicAdd(bins[turn * 16u + (word & 15u)], 1u);
}

void choose(bool wanted, uint hand) {
    if (wanted) chosen[atomicAdd(given[0], 1u)] = hand;
}

void main() {
    uint group = group_number();
    row = group / push.chunks;
    if (row >= push.rows) return;
    begin = (group - row * push.chunks) * push.chunk;
    size = min(push.count - begin, push.chunk);
    uint turns = (push.chunk + HANDS - 1u) / HANDS;
    uint lane = gl_LocalInvocationID.x;
    for (uint bin = lane; bin < 192u; bin += THREADS) bins[bin] = 0u;
    if (lane < 2u) given[lane] = 0u;

    uvec3 low = uvec3(lane, lane + THREADS, lane + 2u * THREADS);
    uvec3 high = low + 3u * THREADS;
    uvec3 low_spots = low, high_spots = high, low_keys = uvec3(LAST), high_keys = uvec3(LAST);
    for (uint turn = 0u; turn < turns; turn++) {
        uint from = turn * HANDS;
        keep(low_keys.x, low_spots.x, from + low.x);
        keep(low_keys.y, low_spots.y, from + low.y);
        keep(low_keys.z, low_spots.z, from + low.z);
        keep(high_keys.x, high_spots.x, from + high.x);
        keep(high_keys.y, high_spots.y, from + high.y);
        keep(high_keys.z, high_spots.z, from + high.z);
    }
    barrier();

    uint last_key = 0u;
    uint last_spot = 0u;
    uint wanted = push.k;  // among those whose digits so far are those of the last one
    uint held = 0u;
    for (uint turn = 0u; held != wanted; turn++) {
        uint shift = ((turn > 7u ? 11u : 7u) - turn) * 4u;
        tally(low_keys.x, low_spots.x, last_key, last_spot, turn, shift);
        tally(low_keys.y, low_spots.y, last_key, last_spot, turn, shift);
        tally(low_keys.z, low_spots.z, last_key, last_spot, turn, shift);
        tally(high_keys.x, high_spots.x, last_key, last_spot, turn, shift);
        tally(high_keys.y, high_spots.y, last_key, last_spot, turn, shift);
        tally(high_keys.z, high_spots.z, last_key, last_spot, turn, shift);
        barrier();
        uint digit = 0u;
        held = bins[turn * 16u];
        while (held < wanted) {
            wanted -= held;
            digit++;
            held = bins[turn * 16u + digit];
        }
        uint found = digit << shift;
        uint rest = held == wanted ? (1u << shift) - 1u : 0u;  // all that have the digits so far
        if (turn > 7u) {
            last_spot |= found | rest;
        } else {
            last_key |= found | rest;
            if (held == wanted) last_spot = LAST;
        }
    }
    choose(comes(low_keys.x, low_spots.x, last_key, last_spot), low.x);
    choose(comes(low_keys.y, low_spots.y, last_key, last_spot), low.y);
    choose(comes(low_keys.z, low_spots.z, last_key, last_spot), low.z);
    choose(comes(high_keys.x, high_spots.x, last_key, last_spot), high.x);
    choose(comes(high_keys.y, high_spots.y, last_key, last_spot), high.y);
    choose(comes(high_keys.z, high_spots.z, last_key, last_spot), high.z);
    barrier();

    for (uint at = lane; at < push.k * turns; at += THREADS) {
        uint turn = at / push.k;
        uint spot = chosen[at - turn * push.k] + turn * HANDS;
        uint key = key_of(spot);
        if (comes(key, spot, last_key, last_spot)) {
            uint cell = atomicAdd(given[1], 1u);
            keys[cell] = key;
            spots[cell] = spot;
        }
    }
    barrier();

    uint cells = given[1];
    for (uint at = lane; at < cells; at += THREADS) {
        uint key = keys[at];
        uint spot = spots[at];
        uint before = 0u;
        uint equal = 0u;  // itself among them
        for (uint other = 0u; other < cells; other++) {
            before += keys[other] < key ? 1u : 0u;
            equal += keys[other] == key ? 1u : 0u;
        }
        for (uint other = equal > 1u ? 0u : cells; other < cells; other++) {
            before += keys[other] == key && spots[other] < spot ? 1u : 0u;
        }
        if (before < push.k) {
            uint to = group * push.k + before;
            uint place = place_of(spot);
            places[push.places_first + to] = place;
            if (ENDS) values[push.values_first + to] = a[push.a_first + row * push.elements + place];
        }
    }
}
