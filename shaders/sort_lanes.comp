// What sort.comp does, a pass a dispatch, for CPU drivers, which pay for each invocation at every barrier: a lane goes
// through neighbours, counts their digits for itself, and writes each element where it goes.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/sort.glsl"

layout(local_size_x_id = 6) in;
layout(constant_id = 6) const uint THREADS = 8u;
layout(constant_id = 7) const uint ITEMS = 2048u;  // neighbours of a lane
const uint CHUNK = THREADS * ITEMS;

shared uint tally[256u * THREADS];  // of a digit all lanes, side by side
shared uint part[THREADS];

// Turns counts into where in a chunk the elements go that have a digit, those of a lane after those of lanes before it.
void add_up(uint lane) {
    uint sum = 0u;
    for (uint i = lane * 256u; i < lane * 256u + 256u; i++) sum += tally[i];
    part[lane] = sum;
    barrier();
    uint before = 0u;
    for (uint other = 0u; other < lane; other++) before += part[other];
    for (uint i = lane * 256u; i < lane * 256u + 256u; i++) {
        uint own = tally[i];
        tally[i] = before;
        before += own;
    }
}

// Counts a lane's digits, or turns counts into where elements go, after those of other chunks.
void follow(uint row, uint chunk, uint lane) {
    for (uint digit = lane; digit < 256u; digit += THREADS) {
        uint at = digit * THREADS;
        uint sum = 0u;
        for (uint i = 0u; i < THREADS; i++) sum += tally[at + i];
        if (COUNTS) {
            counts[count_at(row, digit, chunk)] = sum;
        } else {
            uint before = counts[count_at(row, digit, chunk)] - sum;
            for (uint i = 0u; i < THREADS; i++) {
                uint own = tally[at + i];
                tally[at + i] = before;
                before += own;
            }
        }
    }
}

void main() {
    uint group = group_number();
    uint row = group / push.chunks;
    uint chunk = group - row * push.chunks;
    if (row >= push.rows) return;
    uint lane = gl_LocalInvocationID.x;
    uint most = (min(push.count, CHUNK) + THREADS - 1u) / THREADS;
    uint at = chunk * CHUNK + lane * most;
    uint end = min(push.count, chunk * CHUNK + CHUNK);
    uint n = end > at ? min(end - at, most) : 0u;
    uint from = row * push.count + at;
    for (uint i = lane; i < 256u * THREADS; i += THREADS) tally[i] = 0u;
    barrier();
    for (uint j = 0u; j < n; j++) tally[digit_of(keys[push.keys_first + from + j], push.shift) * THREADS + lane]++;
    barrier();
    if (ALONE) {
        add_up(lane);
    } else {
        follow(row, chunk, lane);
    }
    if (COUNTS) return;
    barrier();
    for (uint j = 0u; j < n; j++) {
        uint raw = keys[push.keys_first + from + j];
        uint cell = digit_of(raw, push.shift) * THREADS + lane;
        uint to = row * push.count + tally[cell];
        tally[cell]++;
        if (KEYS) sorted_keys[push.sorted_keys_first + to] = raw;
        if (PLACES) sorted_places[push.sorted_places_first + to] = BEGINS ? at + j : places[push.places_first + from + j];
    }
}
