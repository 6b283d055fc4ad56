// The K first elements of chunks of rows, by keys and, of equal ones, by places; a work-group does a chunk. Elements
// are dealt to 1,536 hands, six a lane. The K hands whose best elements come first have all that is wanted, since each
// other element has K before it; the last of these best elements is found digit by digit, four bits at a time. What
// those hands have up to it is cut to K in the same way, or, of a whole row, counted out: as many come before an element
// as its number is. What atomics give out are sums, and cells whose order decides nothing. Elements of 64 bits are two
// words, the lower one first.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/grid.glsl"

layout(constant_id = 0) const uint KIND = 0u;  // of elements: 0 uint, 1 int, 2 float
layout(constant_id = 1) const bool LARGEST = false;  // the largest come first; NaN is last in any case
layout(constant_id = 2) const bool BEGINS = true;  // all elements are asked, not those at places that are left of them
layout(constant_id = 3) const bool ENDS = true;  // all of a row: in order, and with values
layout(constant_id = 4) const uint THREADS = 256u;
layout(constant_id = 5) const uint WORDS = 1u;  // of an element
layout(constant_id = 6) const uint EACH = 1u;   // cells that an invocation puts in order at once
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
    uint chunk;   // elements of a chunk, of some one less: each has K
    uint k;
    uint elements;  // of a row
    uint a_first;
    uint left_first;
    uint values_first;
    uint places_first;
} push;

const bool PAIRS = WORDS == 2u;
const uint DIGITS = 8u * WORDS;  // of keys, before eight of places
const uint BINS = 16u * (DIGITS + 8u);
const uint HANDS = 6u * THREADS;
const bool LEADS = EACH > 1u;  // one lane looks for digits: where lanes run one after the other, all take longer
shared uint bins[BINS];  // how many elements have each digit, a turn after the other
shared uint given[3];  // cells that were given out: of chosen, of keys and their places, of what is left
shared uvec3 told;
shared uint chosen[2u * THREADS];
shared uint keys[HANDS];
shared uint lows[PAIRS ? HANDS : 1u];  // what keys of pairs go on with
shared uint cell_places[HANDS];

// A key, of pairs with its lower word, and where the element lies in its row.
struct Element {
    uint key;
    uint low;
    uint place;
};

uint row, begin, size, lane;  // of the work-group: where its chunk begins, and how much there is

// The first word of an element.
uint word_of(uint place) {
    return push.a_first + (row * push.elements + place) * WORDS;
}

// An element of the chunk; behind its end one that comes last.
Element element(uint spot) {
    uint place = begin + min(spot, size - 1u);
    if (!BEGINS) place = left[push.left_first + row * push.count + place];
    uint word = word_of(place);
    uvec2 key = uvec2(0u);
    if (PAIRS) key = ordered_pair(uvec2(a[word], a[word + 1u]));
    else key.y = ordered(a[word]);
    return spot < size ? Element(key.y, key.x, place) : Element(LAST, LAST, LAST);
}

bool is_less(Element x, Element y) {
    bool less = x.key < y.key;
    if (PAIRS) less = less || x.key == y.key && x.low < y.low;
    return less;
}

bool are_equal(Element x, Element y) {
    bool same = x.key == y.key;
    if (PAIRS) same = same && x.low == y.low;
    return same;
}

bool comes(Element x, Element last) {
    return is_less(x, last) || are_equal(x, last) && x.place <= last.place;
}

void tally(Element x, Element last, uint turn, uint shift) {
    bool by_place = turn >= DIGITS;
    bool by_low = PAIRS && turn > 7u;
    uint word = (by_place ? x.place : by_low ? x.low : x.key) >> shift;
    uint known = (by_place ? last.place : by_low ? last.low : last.key) >> shift;
    bool among = by_place ? are_equal(x, last) : !by_low || x.key == last.key;
    if (among && (word >> 4) == (known >> 4)) atomicAdd(bins[turn * 16u + (word & 15u)], 1u);
}

// The last of the K first of what all lanes have, or one between it and the next. Bins are cleared.
Element last_of(Element some[6]) {
    Element last = Element(0u, 0u, 0u);
    uint wanted = push.k;  // among those whose digits so far are those of the last one
    uint held = 0u;
    for (uint turn = 0u; held != wanted; turn++) {
        uint shift = 4u * (7u - (turn & 7u));
        [[unroll]] for (uint j = 0u; j < 6u; j++) tally(some[j], last, turn, shift);
        barrier();
        uint digit = 0u;
        if (!LEADS || lane == 0u) {
            held = bins[turn * 16u];
            while (held < wanted) {
                wanted -= held;
                digit++;
                held = bins[turn * 16u + digit];
            }
        }
        if (LEADS) {
            if (lane == 0u) told = uvec3(digit, held, wanted);
            barrier();
            uvec3 known = told;
            digit = known.x;
            held = known.y;
            wanted = known.z;
        }
        uint found = digit << shift;
        if (held == wanted) found |= (1u << shift) - 1u;  // all that have the digits so far
        if (turn >= DIGITS) {
            last.place |= found;
        } else {
            if (PAIRS && turn > 7u) last.low |= found;
            else last.key |= found;
            if (held == wanted) {
                last.place = LAST;
                if (turn < 8u) last.low = LAST;
            }
        }
    }
    return last;
}

void clear() {
    for (uint bin = lane; bin < BINS; bin += THREADS) bins[bin] = 0u;
}

Element cell_of(uint at) {
    return Element(keys[at], PAIRS ? lows[at] : 0u, cell_places[at]);
}

// Leaves the places of the K first of all cells, in whatever order.
void leave(uint cells, uint to) {
    Element some[6];
    [[unroll]] for (uint j = 0u; j < 6u; j++) {
        uint at = lane + j * THREADS;
        some[j] = Element(LAST, LAST, LAST);
        if (at < cells) some[j] = cell_of(at);
    }
    Element last = last_of(some);
    [[unroll]] for (uint j = 0u; j < 6u; j++) {
        if (lane + j * THREADS < cells && comes(some[j], last)) {
            places[push.places_first + to + atomicAdd(given[2], 1u)] = some[j].place;
        }
    }
}

// Stores the K first of all cells in order: each goes behind as many as come before it.
void order(uint cells, uint to) {
    for (uint from = lane * EACH; from < cells; from += THREADS * EACH) {
        Element own[EACH];
        uint before[EACH];
        uint equal[EACH];  // itself among them
        [[unroll]] for (uint j = 0u; j < EACH; j++) {
            own[j] = cell_of(min(from + j, cells - 1u));
            before[j] = equal[j] = 0u;
        }
        for (uint other = 0u; other < cells; other++) {
            Element x = Element(keys[other], PAIRS ? lows[other] : 0u, 0u);
            [[unroll]] for (uint j = 0u; j < EACH; j++) {
                before[j] += is_less(x, own[j]) ? 1u : 0u;
                equal[j] += are_equal(x, own[j]) ? 1u : 0u;
            }
        }
        uint most = 1u;
        [[unroll]] for (uint j = 0u; j < EACH; j++) most = max(most, equal[j]);
        for (uint other = most > 1u ? 0u : cells; other < cells; other++) {
            Element x = cell_of(other);
            [[unroll]] for (uint j = 0u; j < EACH; j++) {
                before[j] += are_equal(x, own[j]) && x.place < own[j].place ? 1u : 0u;
            }
        }
        [[unroll]] for (uint j = 0u; j < EACH; j++) {
            if (from + j < cells && before[j] < push.k) {
                uint cell = to + before[j];
                uint word = word_of(own[j].place);
                places[push.places_first + cell] = own[j].place;
                values[push.values_first + cell * WORDS] = a[word];
                if (PAIRS) values[push.values_first + cell * WORDS + 1u] = a[word + 1u];
            }
        }
    }
}

void main() {
    uint group = group_number();
    row = group / push.chunks;
    if (row >= push.rows) return;
    uint number = group - row * push.chunks, longer = push.count - push.chunks * (push.chunk - 1u);
    begin = number * (push.chunk - 1u) + min(number, longer);
    size = push.chunk - (number < longer ? 0u : 1u);
    uint turns = (push.chunk + HANDS - 1u) / HANDS;
    lane = gl_LocalInvocationID.x;
    clear();
    if (lane < 3u) given[lane] = 0u;

    Element best[6];
    [[unroll]] for (uint j = 0u; j < 6u; j++) best[j] = Element(LAST, LAST, LAST);
    for (uint turn = 0u; turn < turns; turn++) {
        [[unroll]] for (uint j = 0u; j < 6u; j++) {
            Element x = element(turn * HANDS + lane + j * THREADS);
            bool first = is_less(x, best[j]);
            first = first || are_equal(x, best[j]) && x.place < best[j].place;
            best[j].place = first ? x.place : best[j].place;
            if (PAIRS) best[j].low = first ? x.low : best[j].low;
            best[j].key = min(x.key, best[j].key);
        }
    }
    barrier();

    Element last = last_of(best);
    [[unroll]] for (uint j = 0u; j < 6u; j++) {
        if (comes(best[j], last)) chosen[atomicAdd(given[0], 1u)] = lane + j * THREADS;
    }
    barrier();

    if (!ENDS) clear();
    for (uint at = lane; at < push.k * turns; at += THREADS) {
        uint turn = at / push.k;
        Element x = element(chosen[at - turn * push.k] + turn * HANDS);
        if (comes(x, last)) {
            uint cell = atomicAdd(given[1], 1u);
            keys[cell] = x.key;
            if (PAIRS) lows[cell] = x.low;
            cell_places[cell] = x.place;
        }
    }
    barrier();

    if (ENDS) order(given[1], group * push.k);
    else leave(given[1], group * push.k);
}
