// Reduces parts of rows or of columns: see reduce_units.comp. An invocation reads four units at once. It has one part of a
// column, or several of rows, one after the other, so that what each lane of a processor reads is long.
#ifndef VKPAR_UNITS_W64_GLSL
#define VKPAR_UNITS_W64_GLSL

const uint UNIT_BYTES = WIDE ? 32u : 8u;
#ifdef LONG
const uint UNIT_FIELDS = UNIT_BYTES / 8u;  // elements
const uint HALF = 2u;  // pieces of a half of a unit
#else
const uint UNIT_FIELDS = UNIT_BYTES * 8u / BITS;
const uint HALF = 4u;
#endif
const uint UNIT_PIECES = UNIT_FIELDS / FIELDS;

// A unit as two halves of four words; of units of 8 bytes two words count.
void halves_at(uint at, out uvec4 low, out uvec4 high) {
    high = uvec4(0u);
    if (WIDE) {
        u64vec4 found = a_long4[at];
        low = uvec4(unpackUint2x32(found.x), unpackUint2x32(found.y));
        high = uvec4(unpackUint2x32(found.z), unpackUint2x32(found.w));
    } else {
        low = uvec4(unpackUint2x32(a_long[at]), 0u, 0u);
    }
}

// What the units before `end` of those that begin at `from`, `step` apart, come to, each piece of a unit of columns.
KEPT[8] all_units(uint from, uint step, uint end) {
    KEPT kept[8] = KEPT[](nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), nothing());
    uint k = 0u;
    for (; k + 4u <= end; k += 4u) {
        uvec4 low[4];
        uvec4 high[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) halves_at(from + (k + j) * step, low[j], high[j]);
        [[unroll]] for (uint p = 0u; p < HALF; p++) {
            uint here = DOWN ? p : 0u;
            if (p < UNIT_PIECES) kept[here] = both(kept[here], all_four(low, p));
            uint next = DOWN ? HALF + p : 1u;
            if (HALF + p < UNIT_PIECES) kept[next] = both(kept[next], all_four(high, p));
        }
    }
    for (; k < end; k++) {
        uvec4 low;
        uvec4 high;
        halves_at(from + k * step, low, high);
        [[unroll]] for (uint p = 0u; p < HALF; p++) {
            uint here = DOWN ? p : 0u;
            if (p < UNIT_PIECES) kept[here] = both(kept[here], piece(low, p, 16u));
            uint next = DOWN ? HALF + p : 1u;
            if (HALF + p < UNIT_PIECES) kept[next] = both(kept[next], piece(high, p, 16u));
        }
    }
    if (!DOWN) kept[0] = ended(both(kept[0], kept[1]));
    return kept;
}

#if !defined(LONG)
const uint TOP = BITS == 8u ? 0xFF000000u : 0xFFFF0000u;

// The elements of a word, of which the first one is number `first` of the part, each above what orders places.
ivec4 placed(uint word, uint first) {
    uvec4 numbers = first + uvec4(0u, 1u, 2u, 3u);
    return ivec4((uvec4(fields(word)) & TOP) | ((LARGEST ? ~numbers : numbers) & ~TOP));
}

ivec4 placed_of(uint from, uint k) {
    uvec4 low;
    uvec4 high;
    halves_at(from + k, low, high);
    ivec4 kept = nothing();
    [[unroll]] for (uint p = 0u; p < HALF; p++) {
        if (p < UNIT_PIECES) kept = both(kept, placed(low[p], k * UNIT_FIELDS + p * FIELDS));
        if (HALF + p < UNIT_PIECES) kept = both(kept, placed(high[p], k * UNIT_FIELDS + (HALF + p) * FIELDS));
    }
    return kept;
}

// Where the extreme of a part of a row lies that begins at unit `from`.
uint place_in(uint from, uint end) {
    ivec4 kept = nothing();
    for (uint k = 0u; k < end; k++) kept = both(kept, placed_of(from, k));
    ivec2 two = both(kept, kept.zwxy).xy;
    uint found = uint(both(two.xyxy, two.yxyx).x);
    return (LARGEST ? ~found : found) & ~TOP;
}
#elif !defined(FLOAT64)
VALUE unit_value(uint at, uint number) {
    uvec4 low;
    uvec4 high;
    halves_at(at, low, high);
    return piece(number < HALF ? low : high, number % HALF, 16u);
}

// Where the extreme of a part of a row lies that begins at unit `from`: in which four units, and then where in these.
uint place_in(uint from, uint end) {
    VALUE best = nothing();
    uint there = 0u;
    for (uint k = 0u; k < end; k += 4u) {
        VALUE some = nothing();
        for (uint j = 0u; j < 4u; j++) {
            for (uint p = 0u; p < UNIT_PIECES; p++) {
                some = both(some, unit_value(from + min(k + j, end - 1u), p));
            }
        }
        bool first = LARGEST ? above(some, best) : above(best, some);
        best = first ? some : best;
        there = first ? k : there;
    }
    uint place = 0u;
    for (uint j = 4u; j > 0u; j--) {
        uint k = there + j - 1u;
        for (uint p = UNIT_PIECES; p > 0u; p--) {
            if (unit_value(from + min(k, end - 1u), p - 1u) == best) place = k * UNIT_FIELDS + p - 1u;
        }
    }
    return place;
}
#endif

void main() {
    uint id = group_number() * 64u + gl_LocalInvocationID.x;
    uint first = DOWN ? id / push.columns : id * push.lanes;  // a part of a block
    uint column = DOWN ? id - first * push.columns : 0u;
    uint length = DOWN ? push.extent : push.extent / UNIT_FIELDS;
    uint last = min(first + (DOWN ? 1u : push.lanes), push.blocks * push.parts);
    for (uint unit = first; unit < last; unit++) {
        uint block = unit / push.parts;
        uint begin = (unit - block * push.parts) * push.part;
        uint from = push.a_first + (block * length + begin) * push.columns + column;
#ifndef FLOAT64
        if (PLACES) {
            o_word[push.o_first + unit] = begin * UNIT_FIELDS + place_in(from, min(push.part, length - begin));
            continue;
        }
#endif
        KEPT kept[8] = all_units(from, push.columns, min(push.part, length - begin));
#ifndef LONG
        if (PACKED) {
            [[unroll]] for (uint p = 0u; p < 8u; p++) {
                if (p < UNIT_PIECES) o[push.o_first + id * UNIT_PIECES + p] = word_of(kept[p]);
            }
            continue;
        }
#endif
        uint to = push.o_first + (DOWN ? id * UNIT_FIELDS : unit);
        [[unroll]] for (uint p = 0u; p < 8u; p++) {
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                if (j < (DOWN ? FIELDS : 1u) && p < (DOWN ? UNIT_PIECES : 1u)) o[to + p * FIELDS + j] = field(kept[p], j);
            }
        }
    }
}

#endif
