// Passes of a stable radix sort of rows by eight bits of their keys, in chunks of THREADS * ITEMS elements, 4,096 at most:
// counts how many elements of a chunk have each digit, or sorts a chunk in shared memory and writes runs of equal digits
// where running sums of the counts say. A row that is one chunk stays in shared memory for all passes. The elements move,
// and become keys, which order as whole numbers, when they are asked; so equal keys of several elements do no harm.
// A lane has every WARP-th element from its first one on, and counts with the WARP lanes beside it: those that have its
// digit tell each other by bits, of a subgroup or of words in shared memory. The rest needs no subgroups.
// variants: warps: WARPS | masks:
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef WARPS
#extension GL_KHR_shader_subgroup_ballot : require
#endif
#include "common/sort.glsl"

layout(local_size_x_id = 6) in;
layout(constant_id = 6) const uint THREADS = 256u;
layout(constant_id = 7) const uint ITEMS = 16u;  // 16 at most where words are masks
#ifdef WARPS
layout(constant_id = 8) const uint WARP = 32u;
const uint HELD = THREADS * ITEMS;
#else
const uint WARP = 32u;
const uint HELD = 16u * THREADS;
#endif
const uint CHUNK = THREADS * ITEMS;
const uint CELLS = 256u * (THREADS / WARP);

shared uint held[HELD];    // masks of the lanes that have a digit, for every other element; then what goes to places
shared uint cells[CELLS];  // elements of the digits of WARP lanes, and then the places of the next ones
shared uint part[256];

uint lane, own_cells, first;

#ifdef WARPS
#define MEET subgroupMemoryBarrierShared(); subgroupBarrier();

// The lanes beside this one that have its digit.
uint equal_lanes(uint digit, uint cell, uint j) {
    uint found = 0xFFFFFFFFu;
    [[unroll]] for (uint bit = 0u; bit < 8u; bit++) {
        bool has = ((digit >> bit) & 1u) != 0u;
        found &= subgroupBallot(has).x ^ (has ? 0u : 0xFFFFFFFFu);
    }
    MEET
    return found & (0xFFFFFFFFu >> (32u - WARP));
}

void forget(uint cell, uint j) {}
#else
#define MEET barrier();

uint equal_lanes(uint digit, uint cell, uint j) {
    uint at = (j & 1u) * CELLS + cell;
    atomicOr(held[at], 1u << (lane % WARP));
    MEET
    return held[at];
}

void forget(uint cell, uint j) { held[(j & 1u) * CELLS + cell] = 0u; }
#endif

void clear() {
    [[unroll]] for (uint i = 0u; i < 256u / WARP; i++) cells[lane + i * THREADS] = 0u;
#ifndef WARPS
    [[unroll]] for (uint i = 0u; i < 512u / WARP; i++) held[lane + i * THREADS] = 0u;
#endif
    barrier();
}

void count(uint row, uint chunk, uint n, uint from) {
    clear();
    uint raw[ITEMS];
    [[unroll]] for (uint j = 0u; j < ITEMS; j++) raw[j] = keys[from + min(first + j * WARP, n - 1u)];
    [[unroll]] for (uint j = 0u; j < ITEMS; j++) {
        if (first + j * WARP < n) atomicAdd(cells[own_cells + digit_of(raw[j], push.shift)], 1u);
    }
    barrier();
    for (uint digit = lane; digit < 256u; digit += THREADS) {
        uint sum = 0u;
        [[unroll]] for (uint i = 0u; i < CELLS; i += 256u) sum += cells[i + digit];
        counts[count_at(row, digit, chunk)] = sum;
    }
}

// Turns the counts of digits into where their first elements go.
void add_up() {
    const uint each = 256u / THREADS;
    uint sum = 0u;
    [[unroll]] for (uint i = 0u; i < each; i++) {
        [[unroll]] for (uint j = 0u; j < CELLS; j += 256u) {
            uint own = cells[j + lane * each + i];
            cells[j + lane * each + i] = sum;
            sum += own;
        }
    }
    part[lane] = sum;
    barrier();
    for (uint apart = 1u; apart < THREADS; apart <<= 2) {
        uint mine = part[lane];
        [[unroll]] for (uint i = 1u; i < 4u; i++) mine += lane >= i * apart ? part[max(lane, i * apart) - i * apart] : 0u;
        barrier();
        part[lane] = mine;
        barrier();
    }
    uint before = part[lane] - sum;
    [[unroll]] for (uint i = 0u; i < each; i++) {
        [[unroll]] for (uint j = 0u; j < CELLS; j += 256u) cells[j + lane * each + i] += before;
    }
    barrier();
}

void main() {
    uint group = group_number();
    uint row = group / push.chunks;
    uint chunk = group - row * push.chunks;
    if (row >= push.rows) return;
    lane = gl_LocalInvocationID.x;
    own_cells = lane / WARP * 256u;
    first = lane / WARP * (WARP * ITEMS) + lane % WARP;
    uint start = chunk * CHUNK;
    uint n = min(push.count - start, CHUNK);
    uint from = row * push.count;
    if (COUNTS) {
        count(row, chunk, n, push.keys_first + from + start);
        return;
    }
    uint raw[ITEMS];
    uint spot[ITEMS];  // of an element: where it goes in the chunk, 12 bits; its digit; and the place that it came from
    [[unroll]] for (uint j = 0u; j < ITEMS; j++) {
        uint at = first + j * WARP;
        raw[j] = keys[push.keys_first + from + start + min(at, n - 1u)];
        spot[j] = ALONE ? at << 20 : 0u;
    }
    uint shift = push.shift;
    do {
        clear();
        [[unroll]] for (uint j = 0u; j < ITEMS; j++) {
            // What is behind the end of a row comes behind all that is there, since the sort is stable.
            uint digit = first + j * WARP < n ? digit_of(raw[j], shift) : 255u;
            uint cell = own_cells + digit;
            uint equal = equal_lanes(digit, cell, j);
            uint before = cells[cell];
            MEET
            uint below = bitCount(equal & ((1u << (lane % WARP)) - 1u));
            if (below == 0u) {
                cells[cell] = before + bitCount(equal);
                forget(cell, j);
            }
            spot[j] |= digit << 12 | before + below;
        }
        barrier();
        add_up();
        [[unroll]] for (uint j = 0u; j < ITEMS; j++) {
            spot[j] += cells[own_cells + ((spot[j] >> 12) & 255u)];
            held[spot[j] & 4095u] = raw[j];
        }
        if (!ALONE) {  // what is added to a place in the chunk
            for (uint digit = lane; digit < 256u; digit += THREADS) {
                uint end = digit < 255u ? cells[min(digit, 254u) + 1u] : n;
                part[digit] = counts[count_at(row, digit, chunk)] - end;
            }
        }
        barrier();
        [[unroll]] for (uint j = 0u; j < ITEMS; j++) raw[j] = held[first + j * WARP];
        if (PLACES) {
            barrier();
            [[unroll]] for (uint j = 0u; j < ITEMS; j++) {
                uint place = start + first + j * WARP;
                if (ALONE) {
                    place = spot[j] >> 20;
                } else if (!BEGINS) {
                    place = places[push.places_first + from + start + min(first + j * WARP, n - 1u)];
                }
                held[spot[j] & 4095u] = place;
            }
            barrier();
            [[unroll]] for (uint j = 0u; j < ITEMS; j++) {
                uint place = held[first + j * WARP];
                spot[j] = ALONE ? place << 20 : place;
            }
        } else {
            [[unroll]] for (uint j = 0u; j < ITEMS; j++) spot[j] = 0u;
        }
        barrier();
        shift += 8u;
    } while (ALONE && shift < push.bits);
    [[unroll]] for (uint j = 0u; j < ITEMS; j++) {
        uint at = first + j * WARP;
        if (at < n) {
            uint to = from + at;
            if (!ALONE) to += part[digit_of(raw[j], push.shift)];
            if (KEYS) sorted_keys[push.sorted_keys_first + to] = raw[j];
            if (PLACES) sorted_places[push.sorted_places_first + to] = ALONE ? spot[j] >> 20 : spot[j];
        }
    }
}
