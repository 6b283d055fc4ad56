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

const uint STEP = 0u;
#include "fold.glsl"

shared FOUR folded[256];

#ifdef PAIRS
FOUR fold(uint at, uint begin, uint end, uint lane, uint n) {
    FOUR result = nothing(0xFFFFFFFFu);
    for (uint r = begin + lane; r < end; r += push.lanes) {
        FOUR pair = nothing(0xFFFFFFFFu);
        for (uint j = 0u; j < n; j++) {
            pair.key[j] = a_word[2u * (at + r * push.row + j)];
            pair.at[j] = a_word[2u * (at + r * push.row + j) + 1u];
        }
        result = both(result, pair);
    }
    return result;
}
#else
FOUR fold(uint at, uint begin, uint end, uint lane, uint n) {
    uint step = push.lanes;
    uint r = begin + lane;
    FOUR result = nothing(push.place + r);
    for (; r + 3u * step < end; r += 4u * step) {
        uvec4 packed[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            packed[j] = a_four(at + (r + j * step) * push.row, n);
        }
        FOUR low = then(taken(packed[0], n, push.place + r), taken(packed[1], n, push.place + r + step));
        FOUR high = then(taken(packed[2], n, push.place + r + 2u * step), taken(packed[3], n, push.place + r + 3u * step));
        result = then(result, then(low, high));
    }
    for (; r < end; r += step) {
        result = then(result, taken(a_four(at + r * push.row, n), n, push.place + r));
    }
    return result;
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

FOUR four_rows(uint at, uint r) {
    FOUR rows[4];
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        rows[j] = taken(a_four(at + (r + j) * push.row, 4u), 4u, push.place + r + j);
    }
    return then(then(rows[0], rows[1]), then(rows[2], rows[3]));
}

// Sixteen rows of a part, without a loop or a branch: CPU drivers then know that all lanes of a vector read and write.
// Groups along x take columns, along z parts.
void straight() {
    uint part = gl_WorkGroupID.z, column = gl_GlobalInvocationID.x * 4u, at = push.a_first + column, r = part * 16u;
    FOUR low = then(four_rows(at, r), four_rows(at, r + 4u));
    FOUR high = then(four_rows(at, r + 8u), four_rows(at, r + 12u));
    store(push.o_first + part * push.o_row + column, 4u, then(low, high));
}

void turns() {
#else
void main() {
#endif
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
    for (uint half_way = push.lanes / 2u; half_way >= 1u; half_way >>= 1) {
        barrier();
        if (lane < half_way) {
            folded[id] = both(folded[id], folded[id + half_way * together]);
        }
    }
    if (lane == 0u && n > 0u) {
        store(push.o_first + (block * push.parts + part) * push.o_row + column, n, folded[id]);
    }
}

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
