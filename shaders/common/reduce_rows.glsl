// Reduces rows of elements that lie side by side, or parts of rows: `lanes` invocations a part, several parts a group.
// Parts have a fixed length and a fixed tree of terms, so that sums are the same bits each time.
#ifndef VKPAR_REDUCE_ROWS_GLSL
#define VKPAR_REDUCE_ROWS_GLSL

#include "elements.glsl"
#include "grid.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 256;
layout(constant_id = 1) const bool A_WIDE = false;  // parts begin at multiples of 4
layout(constant_id = 2) const uint TURNS = 0;  // of an invocation that are folded before what they make; 0 for all

ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
#include "four.glsl"
ELEMENTS_OUT(o, 1, O_TYPE, false)

layout(push_constant) uniform Push {
    uint rows;
    uint extent;  // of a row
    uint row;     // elements from one row to the next
    uint parts;   // of a row
    uint part;    // elements of a part, a multiple of 4
    uint lanes;   // a power of two; half of a group at most where results are halves
    uint a_first;
    uint o_first;  // even for halves
    uint place;    // of the first element in its row
    uint last;     // results are final: places without their keys
    uint flip;     // what turns bits into keys
    float divisor;  // of a mean, else 0
} push;

#define PART ONE
#define PART_WORD uint
const uint STEP = 1u;
#include "fold.glsl"

shared ONE folded[GROUP];

#ifdef PAIRS
ONE fold(uint at, uint begin, uint end, uint lane) {
    ONE result = nothing();
    for (uint k = begin + lane; k < end; k += push.lanes) {
        result = both(result, One(a_word[2u * (at + k)], a_word[2u * (at + k) + 1u]));
    }
    return result;
}
#else
#ifdef PLACE
// The first NaN of an invocation's elements, of which one is NaN.
ONE first_nan(uint at, uint begin, uint end, uint lane) {
    uint found = 0xFFFFFFFFu;
    for (uint k = begin + lane * 4u; k < end; k += push.lanes * 4u) {
        bvec4 is_nan = are_nan(bits_of(a_four(at + k, end - k)));
        uvec4 places = mix(uvec4(0xFFFFFFFFu), push.place + k + uvec4(0u, 1u, 2u, 3u), is_nan);
        found = min(found, min(min(places.x, places.y), min(places.z, places.w)));
    }
    return One(NAN_KEY, found);
}
#endif

// Goes on from the four at k, as long as all of four fours come before `stop`.
State fold_fours(State some, uint at, inout uint k, uint stop, uint step) {
    for (; k + 3u * step + 4u <= stop; k += 4u * step) {
        uvec4 packed[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            packed[j] = a_four(at + k + j * step, 4u);
        }
        some = then(some, of_fours(packed, push.place + k, step));
    }
    return some;
}

ONE fold(uint at, uint begin, uint end, uint lane) {
    uint step = push.lanes * 4u;
    uint k = begin + lane * 4u;
    State result = none(push.place + k);
    if (TURNS == 0u) {
        result = fold_fours(result, at, k, end, step);
    } else {
        while (k + 3u * step + 4u <= end) {
            result = then(result, fold_fours(none(push.place + k), at, k, min(end, k + TURNS * 4u * step), step));
        }
    }
    if (k < end) {  // up to four are left, of which the last may be short
        uvec4 packed[4];
        uint n[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            n[j] = end - min(k + j * step, end);
            packed[j] = a_four(at + k + j * step, n[j]);
        }
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            result = then(result, of_some(packed[j], n[j], push.place + k + j * step));
        }
    }
    ONE one = across(ended(result));
#ifdef PLACE
    if (NOTES_NAN && any(has_nan(result))) {
        one = first_nan(at, begin, end, lane);
    }
#endif
    return one;
}
#endif

void store(uint at, uint first, uint n) {
#ifdef PLACE
    for (uint j = 0u; j < n; j++) {
        ONE one = folded[(first + j) * push.lanes];
        if (push.last != 0u) {
            o_word[at + j] = one.at;
        } else {
            o_word[2u * (at + j)] = one.key;
            o_word[2u * (at + j) + 1u] = one.at;
        }
    }
#else
    FOUR four = FOUR(0);
    for (uint j = 0u; j < n; j++) {
        four[j] = folded[(first + j) * push.lanes];
    }
    o_store4(at, n, o_pack4(finished(four)));
#endif
}

// Folds what `lanes` invocations have in `folded`, each unit's to its first.
void fold_lanes(uint id, uint lane, uint lanes) {
    for (uint left = lanes; left > 1u;) {  // a quarter of them is left each time
        bool four = left > 2u;
        left = four ? left / 4u : 1u;
        barrier();
        if (lane < left) {
            ONE one = folded[id];
            if (four) {
                one = both(both(one, folded[id + 2u * left]), both(folded[id + left], folded[id + 3u * left]));
            } else {
                one = both(one, folded[id + left]);
            }
            folded[id] = one;
        }
    }
    barrier();
}

#ifdef FINISHES
#define COUNTERS 3
#include "last_group.glsl"

layout(set = 0, binding = 2, std430) coherent buffer Parts { PART part_of[]; };

// A group a part; the last group of a row folds what its parts have come to, in their order.
void main() {
    uint id = gl_LocalInvocationID.x, unit = group_number();
    if (unit >= push.rows * push.parts) {
        return;
    }
    uint row = unit / push.parts, begin = (unit - row * push.parts) * push.part;
    folded[id] = fold(push.a_first + row * push.row, begin, min(begin + push.part, push.extent), id);
    fold_lanes(id, id, GROUP);
    if (id == 0u) {
        part_of[unit] = folded[0];
    }
    if (!comes_last(row, push.parts)) {
        return;
    }
    uint part = min(id, push.parts - 1u);
    PART one = part_of[row * push.parts + part];
    for (part += GROUP; part < push.parts; part += GROUP) {
        one = both(one, part_of[row * push.parts + part]);
    }
    folded[id] = one;
    if (id >= push.parts) {
        folded[id] = nothing();
    }
    fold_lanes(id, id, GROUP);
    if (id == 0u) {
        store(push.o_first + row, 0u, 1u);
    }
}
#else
void main() {
    uint id = gl_LocalInvocationID.x;
    uint lane = id % push.lanes;
    uint together = GROUP / push.lanes;
    uint first = group_number() * together;
    uint units = push.rows * push.parts;
    uint unit = first + id / push.lanes, row = unit, begin = 0u;
    if (push.parts > 1u) {  // a division costs as much as a few elements
        row = unit / push.parts;
        begin = (unit - row * push.parts) * push.part;
    }
    uint end = unit < units ? min(begin + push.part, push.extent) : begin;
    folded[id] = fold(push.a_first + row * push.row, begin, end, lane);
    fold_lanes(id, lane, push.lanes);
    uint mine = id * 4u;
    if (mine < together && first + mine < units) {
        store(push.o_first + first + mine, mine, min(min(together - mine, units - first - mine), 4u));
    }
}
#endif

#endif
