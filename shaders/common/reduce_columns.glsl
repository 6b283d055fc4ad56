// Reduces along an axis that is not the last one: four neighbouring columns an invocation, `lanes` slices of a part of
// their rows a unit, and so many units a group that neighbours read neighbours. Sums go by a fixed tree of terms.
#ifndef VKPAR_REDUCE_COLUMNS_GLSL
#define VKPAR_REDUCE_COLUMNS_GLSL

#include "elements.glsl"
#include "grid.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 256;
layout(constant_id = 1) const bool A_WIDE = false;  // rows begin and end at multiples of 4
layout(constant_id = 2) const bool O_WIDE = false;

ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
#include "four.glsl"
ELEMENTS_OUT(o, 1, O_TYPE, O_WIDE)

layout(push_constant) uniform Push {
    uint blocks;  // matrices
    uint extent;  // rows of each
    uint columns;
    uint block;   // elements from one matrix to the next
    uint row;     // elements from one row to the next
    uint o_row;   // from one row of results to the next
    uint parts;   // of a matrix
    uint part;    // rows of a part
    uint lanes;   // a power of two
    uint a_first;
    uint o_first;  // even for halves
    uint place;    // of the first row
    uint last;     // results are final: places without their keys
    uint flip;     // what turns bits into keys
    float divisor;  // of a mean, else 0
} push;

#define PART FOUR
#define PART_WORD uvec4
const uint STEP = 0u;
#include "fold.glsl"

shared FOUR folded[256];

#ifdef PAIRS
FOUR fold(uint at, uint begin, uint end, uint lane, uint n) {
    FOUR result = nothing();
    for (uint r = begin + lane; r < end; r += push.lanes) {
        FOUR pair = nothing();
        for (uint j = 0u; j < n; j++) {
            pair.key[j] = a_word[2u * (at + r * push.row + j)];
            pair.at[j] = a_word[2u * (at + r * push.row + j) + 1u];
        }
        result = both(result, pair);
    }
    return result;
}
#else
// Four columns of four rows, the first of which is r, `step` apart.
State of_rows(uint at, uint r, uint step, uint n) {
    uvec4 packed[4];
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        packed[j] = a_four(at + (r + j * step) * push.row, n);
    }
    return of_fours(packed, push.place + r, step);
}

#ifdef PLACE
// Has each column with a NaN at the first one of an invocation's rows.
FOUR at_first_nan(FOUR four, bvec4 has, uint at, uint begin, uint end, uint lane, uint n) {
    uvec4 found = uvec4(0xFFFFFFFFu);
    for (uint r = begin + lane; r < end; r += push.lanes) {
        bvec4 is_nan = are_nan(bits_of(a_four(at + r * push.row, n)));
        found = min(found, mix(uvec4(0xFFFFFFFFu), uvec4(push.place + r), is_nan));
    }
    return Four(mix(four.key, uvec4(NAN_KEY), has), mix(four.at, found, has));
}
#endif

FOUR fold(uint at, uint begin, uint end, uint lane, uint n) {
    uint step = push.lanes;
    uint r = begin + lane;
    State result = none(push.place + r);
    for (; r + 3u * step < end; r += 4u * step) {
        result = then(result, of_rows(at, r, step, n));
    }
    for (; r < end; r += step) {
        result = then(result, of_some(a_four(at + r * push.row, n), n, push.place + r));
    }
    FOUR four = ended(result);
#ifdef PLACE
    bvec4 has = has_nan(result);
    if (NOTES_NAN && any(has)) {
        four = at_first_nan(four, has, at, begin, end, lane, n);
    }
#endif
    return four;
}
#endif

void store(uint at, uint n, FOUR four) {
#ifdef PLACE
    for (uint j = 0u; j < n; j++) {
        if (push.last != 0u) {
            o_word[at + j] = four.at[j];
        } else {
            o_word[2u * (at + j)] = four.key[j];
            o_word[2u * (at + j) + 1u] = four.at[j];
        }
    }
#else
    o_store4(at, n, o_pack4(finished(four)));
#endif
}

#ifdef W64
layout(constant_id = 3) const bool STRAIGHT = false;  // there are as many rows and columns as `straight` takes

// Sixteen rows of a part, without a loop or a branch: CPU drivers then know that all lanes of a vector read and write.
// Groups along x take columns, along z parts.
void straight() {
    uint part = gl_WorkGroupID.z, column = gl_GlobalInvocationID.x * 4u, at = push.a_first + column, r = part * 16u;
    State low = then(of_rows(at, r, 1u, 4u), of_rows(at, r + 4u, 1u, 4u));
    State high = then(of_rows(at, r + 8u, 1u, 4u), of_rows(at, r + 12u, 1u, 4u));
    store(push.o_first + part * push.o_row + column, 4u, ended(then(low, high)));
}

#define MAIN turns
#else
#define MAIN main
#endif

// Folds what the lanes of a unit have in `folded`, `together` apart, to the first one's.
void fold_lanes(uint id, uint lane, uint together) {
    for (uint half_way = push.lanes / 2u; half_way >= 1u; half_way >>= 1) {
        barrier();
        if (lane < half_way) {
            folded[id] = both(folded[id], folded[id + half_way * together]);
        }
    }
}

#ifdef FINISHES
#define COUNTERS 3
#include "last_group.glsl"

layout(set = 0, binding = 2, std430) coherent buffer Parts { PART part_of[]; };

// Folds every `lanes`-th part, four of them first: one after the other they would be more additions than are promised.
PART of_parts(uint first, uint lane, uint fours) {
    PART some = nothing();
    for (uint part = lane; part < push.parts; part += 4u * push.lanes) {
        PART four[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint number = part + j * push.lanes;
            four[j] = nothing();
            if (number < push.parts) four[j] = part_of[first + number * fours];
        }
        some = both(some, both(both(four[0], four[1]), both(four[2], four[3])));
    }
    return some;
}

// A group takes `together` fours of columns of a part; the last group of these folds what the parts have come to.
void main() {
    uint id = gl_LocalInvocationID.x;
    uint together = GROUP / push.lanes, lane = id / together;
    uint fours = (push.columns + 3u) / 4u, strips = (fours + together - 1u) / together;
    uint strip = group_number() % strips, part = group_number() / strips % push.parts;
    uint block = group_number() / strips / push.parts;
    if (block >= push.blocks) {
        return;
    }
    uint four = strip * together + id % together;
    uint n = four < fours ? min(push.columns - four * 4u, 4u) : 0u;
    uint begin = part * push.part;
    uint end = n > 0u ? min(begin + push.part, push.extent) : begin;
    folded[id] = fold(push.a_first + block * push.block + four * 4u, begin, end, lane, A_WIDE ? 4u : n);
    fold_lanes(id, lane, together);
    uint first = block * push.parts * fours + four;
    if (lane == 0u && n > 0u) {
        part_of[first + part * fours] = folded[id];
    }
    if (!comes_last(block * strips + strip, push.parts)) {
        return;
    }
    folded[id] = n > 0u ? of_parts(first, lane, fours) : nothing();
    fold_lanes(id, lane, together);
    if (lane == 0u && n > 0u) {
        store(push.o_first + block * push.o_row + four * 4u, n, folded[id]);
    }
}
#else
void MAIN() {
    uint id = gl_LocalInvocationID.x;
    uint together = GROUP / push.lanes;
    uint lane = id / together;
    uint unit = group_number() * together + id % together;
    uint fours = (push.columns + 3u) / 4u;
    uint column = unit % fours * 4u;
    uint part = unit / fours % push.parts;
    uint block = unit / fours / push.parts;
    uint n = block < push.blocks ? min(push.columns - column, 4u) : 0u;
    uint begin = part * push.part;
    uint end = n > 0u ? min(begin + push.part, push.extent) : begin;
    folded[id] = fold(push.a_first + block * push.block + column, begin, end, lane, A_WIDE ? 4u : n);
    fold_lanes(id, lane, together);
    if (lane == 0u && n > 0u) {
        store(push.o_first + (block * push.parts + part) * push.o_row + column, n, folded[id]);
    }
}
#endif

#ifdef W64
void main() {
    if (STRAIGHT) {
        straight();
    } else {
        turns();
    }
}
#endif

#endif
