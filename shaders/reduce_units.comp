// Sums and extremes of elements of 8, 16 and 64 bits: rows, or columns of blocks, in parts. An invocation reads units of
// 16 bytes where these begin at multiples of that, four of them at once, and otherwise words, or elements of 64 bits.
// Results are words, of which each has a sum or an extreme, or elements of 64 bits; parts of several are reduced next, with
// ONCE by the group that is the last of a row, or of some columns, in their order.
// With W64, for CPU drivers that read storage buffers element by element, units are of 32 bytes, or of 8, and no two
// invocations share a part.
// variants: u32: VALUE=int | u64: VALUE=uint64_t LONG INT64 | f64: VALUE=double LONG FLOAT64 | once_u32: ONCE VALUE=int | once_u64: ONCE VALUE=uint64_t LONG INT64 | w64_u32: W64 VALUE=int | w64_u64: W64 VALUE=uint64_t LONG INT64 | w64_f64: W64 VALUE=double LONG FLOAT64
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if defined(INT64) || defined(W64)
#extension GL_ARB_gpu_shader_int64 : require
#endif
#include "common/grid.glsl"

// 0: sum, 1: largest, 2: least; of truth in rows 3: any, 4: all; 5: product, of W64; 6: how many are not 0, 7: of floats;
// 8 and 9: whether there are any, not of W64; of W64 and rows the places of the 10: largest, 11: least, 12, 13: of float64 as
// whole numbers
layout(constant_id = 0) const uint OP = 0u;
layout(constant_id = 1) const uint BITS = 8u;
layout(constant_id = 2) const bool IS_SIGNED = false;
layout(constant_id = 3) const bool WIDE = false;
layout(constant_id = 4) const bool DOWN = false;  // columns
const bool PLACES = OP > 9u;
const bool ADDS = OP == 0u || OP == 6u || OP == 7u || OP == 8u || OP == 9u;
const bool LARGEST = OP == 1u || OP == 10u || OP == 12u;
const bool LEAST = OP == 2u || OP == 11u || OP == 13u;
const bool TRUTHS = OP == 3u || OP == 4u;

// Extremes of columns are stored as elements of BITS, not as words; what is counted of elements of 64 bits as words.
layout(constant_id = 5) const bool PACKED = false;
#ifdef W64
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) readonly buffer Longs { uint64_t a_long[]; };
layout(set = 0, binding = 0, std430) readonly buffer Longs4 { u64vec4 a_long4[]; };
#else
layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) readonly buffer Words { uint a_word[]; };
layout(set = 0, binding = 0, std430) readonly buffer Words4 { uvec4 a_word4[]; };
#endif
layout(set = 0, binding = 1, std430) writeonly buffer Results { VALUE o[]; };
#ifdef W64
layout(set = 0, binding = 1, std430) writeonly buffer Numbers { uint o_word[]; };
#endif

#if defined(INT64) && !defined(W64)
layout(set = 0, binding = 1, std430) writeonly buffer ResultWords { uint o_word[]; };
#endif

layout(push_constant) uniform Push {
    uint blocks;
    uint extent;   // elements of a row, or of a column
    uint columns;  // units of them; 1 of rows
    uint parts;
    uint part;     // units of a row, or elements of a column
    uint lanes;    // invocations of a part, a power of two; with W64 parts of rows of an invocation
    uint a_first;  // words before all; units with W64
    uint o_first;
} push;

#ifdef LONG
const uint FIELDS = 1u;  // elements that are kept side by side
const uint WORDS_OF = WIDE ? 4u : 2u;
const uint ELEMENTS = WIDE ? 2u : 1u;
const uint PIECES = ELEMENTS;
#define KEPT VALUE
#else
const uint FIELDS = 32u / BITS;
const uint WORDS_OF = WIDE ? 4u : 1u;
const uint ELEMENTS = FIELDS * WORDS_OF;
const uint PIECES = WORDS_OF;
#define KEPT ivec4
#endif

#ifdef FLOAT64
VALUE value_of(uvec2 words) { return packDouble2x32(words); }
bool is_nan(double x) {
    uvec2 words = unpackDouble2x32(x);
    uint high = words.y & 0x7FFFFFFFu;
    return high > 0x7FF00000u || (high == 0x7FF00000u && words.x != 0u);
}
#elif defined(INT64) && defined(W64)
// Of one element, or of two of 32 bits. Of OP 3 all bits are found; of OP 4 the least of what is below the signs of
// floats; of OP 5 products, of 32 bits those of floats; of OP 6 how many are not 0. Of OP 12 and 13 signed numbers that
// order as floats do: zeros alike, NaN before all that is.
VALUE value_of(uvec2 words) {
    if (OP > 11u) {
        VALUE size = VALUE(packUint2x32(uvec2(words.x, words.y & 0x7FFFFFFFu)));
        bool none = size > VALUE(packUint2x32(uvec2(0u, 0x7FF00000u)));
        VALUE number = (words.y >> 31) != 0u ? VALUE(0) - size : size;
        return none ? VALUE(packUint2x32(uvec2(0u, LARGEST ? 0x7FFFFFFFu : 0x80000000u))) : number;
    }
    if (OP == 4u) words = uvec2(words.x << 1, (words.y << 1) | (BITS == 64u ? words.x >> 31 : 0u));
    if (OP == 6u && BITS == 64u) words = uvec2((words.x | words.y) != 0u ? 1u : 0u, 0u);
    if (OP == 6u && BITS == 32u) words = uvec2((words.x != 0u ? 1u : 0u) + (words.y != 0u ? 1u : 0u), 0u);
    return VALUE(packUint2x32(words));
}
VALUE of_both(VALUE x, VALUE y) {
    VALUE made = x | y;
    uvec2 a = unpackUint2x32(x);
    uvec2 b = unpackUint2x32(y);
    if (OP == 4u) made = BITS == 32u ? VALUE(packUint2x32(min(a, b))) : x < y ? x : y;
    if (OP == 5u) {
        made = BITS == 32u ? VALUE(packUint2x32(floatBitsToUint(uintBitsToFloat(a) * uintBitsToFloat(b)))) : x * y;
    }
    return made;
}
bool is_nan(VALUE x) { return false; }
#elif defined(INT64)
VALUE value_of(uvec2 words) { return VALUE(packUint2x32(words)); }
bool is_nan(VALUE x) { return false; }
#endif

#ifdef LONG
VALUE nothing() {
    uvec2 words = uvec2(0u);
#ifdef FLOAT64
    words.y = 0x80000000u;
    if (OP == 1u) words.y = 0xFFF00000u;
    if (OP == 2u) words.y = 0x7FF00000u;
#else
    if (LARGEST) words = uvec2(0u, IS_SIGNED ? 0x80000000u : 0u);
    if (LEAST) words = uvec2(0xFFFFFFFFu, IS_SIGNED ? 0x7FFFFFFFu : 0xFFFFFFFFu);
#ifdef W64
    if (OP == 4u) words = uvec2(0xFFFFFFFFu);
    if (OP == 5u) words = BITS == 32u ? floatBitsToUint(vec2(1.0)) : uvec2(1u, 0u);
    if (OP > 2u) return VALUE(packUint2x32(words));
#endif
#endif
#if defined(W64) && defined(FLOAT64)
    if (OP == 5u) words = uvec2(0u, 0x3FF00000u);
#endif
    return value_of(words);
}
#ifdef FLOAT64
bool above(VALUE x, VALUE y) { return x > y; }
#else
bool above(VALUE x, VALUE y) { return IS_SIGNED ? int64_t(x) > int64_t(y) : x > y; }
#endif
VALUE both(VALUE x, VALUE y) {
    VALUE made;
    if (ADDS) made = x + y;
#if defined(W64) && defined(INT64)
    else if (OP > 2u && !PLACES) made = of_both(x, y);
#elif defined(W64)
    else if (OP == 5u) made = x * y;
#endif
    else if (is_nan(x)) made = x;
    else if (is_nan(y)) made = y;
    else made = LARGEST == above(x, y) ? x : y;
    return made;
}
// What an element of two words counts as.
VALUE counted(uvec2 words) {
#ifndef W64
    if (OP == 7u || OP == 9u) words.y <<= 1;  // -0 is 0
    if (OP > 5u) return VALUE(min(words.x | words.y, 1u));
#endif
    return value_of(words);
}
VALUE piece(uvec4 words, uint number, uint n) { return n > number ? counted(number == 0u ? words.xy : words.zw) : nothing(); }
VALUE all_four(uvec4 words[4], uint number) {
    VALUE first = both(piece(words[0], number, 2u), piece(words[1], number, 2u));
    return both(first, both(piece(words[2], number, 2u), piece(words[3], number, 2u)));
}
VALUE ended(VALUE kept) { return kept; }
VALUE field(VALUE kept, uint number) { return kept; }
#else
ivec4 nothing() {
    uint least = IS_SIGNED ? 0x80000000u : 0u;
    return ivec4(uvec4(LARGEST ? least : LEAST ? ~least : OP == 4u ? 0x01010101u : 0u));
}
ivec4 both(ivec4 x, ivec4 y) {
    ivec4 made;
    if (ADDS) made = x + y;
    else if (LARGEST) made = IS_SIGNED ? max(x, y) : ivec4(max(uvec4(x), uvec4(y)));
    else if (LEAST) made = IS_SIGNED ? min(x, y) : ivec4(min(uvec4(x), uvec4(y)));
    else if (OP == 3u) made = x | y;
    else made = x & y;
    return made;
}
// Words whose elements are 1 where they were not 0; where nothing is counted the words themselves.
uvec4 counted(uvec4 words) {
    uvec4 low = uvec4(BITS == 8u ? 0x7F7F7F7Fu : BITS == 16u ? 0x7FFF7FFFu : 0x7FFFFFFFu);
    if (OP == 7u || OP == 9u) words &= low;  // -0 is 0
    return OP > 5u ? ((((words & low) + low) | words) & ~low) >> (BITS - 1u) : words;
}
// The elements of a word: of extremes at the top of words each, whatever is below them.
ivec4 fields(uint word) {
    ivec4 made;
    if (TRUTHS) {
        made = ivec4(word);
    } else if (!ADDS) {
        made = BITS == 8u ? ivec4(uvec4(word) << uvec4(24u, 16u, 8u, 0u)) : ivec4(word << 16, word, nothing().zw);
    } else {
        word = counted(uvec4(word)).x;
        if (BITS == 32u) made = ivec4(word, 0, 0, 0);
        else if (BITS == 8u && IS_SIGNED) made = ivec4(uvec4(word) << uvec4(24u, 16u, 8u, 0u)) >> 24;
        else if (BITS == 8u) made = ivec4((uvec4(word) >> uvec4(0u, 8u, 16u, 24u)) & 0xFFu);
        else if (IS_SIGNED) made = ivec4(ivec2(uvec2(word << 16, word)) >> 16, 0, 0);
        else made = ivec4(word & 0xFFFFu, word >> 16, 0, 0);
    }
    return made;
}
// Those before the n-th of the unit.
ivec4 piece(uvec4 words, uint number, uint n) {
    uint left = n - min(n, number * FIELDS);
    ivec4 made = fields(words[number]);
    if (TRUTHS) {
        uint mask = left < 4u ? (1u << (left * 8u)) - 1u : 0xFFFFFFFFu;
        made = OP == 3u ? made & int(mask) : made | int(~mask);
    } else {
        made = mix(nothing(), made, lessThan(uvec4(0u, 1u, 2u, 3u), uvec4(left)));
    }
    return made;
}
// Sums of up to 255 words: of all of them, and of every second element. What the others add up to is the rest.
struct Sums { uint all, odd; };
uvec4 odd_of(uvec4 words) {
    return BITS == 8u ? (words >> 8) & 0x00FF00FFu : BITS == 16u ? words >> 16 : uvec4(0u);
}
uint sum_of(uvec4 words) { return words.x + words.y + words.z + words.w; }
Sums with(Sums sums, uvec4 words) {
    if (OP == 0u && IS_SIGNED) words ^= BITS == 8u ? 0x80808080u : 0x80008000u;
    return Sums(sums.all + sum_of(counted(words)), sums.odd + (OP == 0u ? sum_of(odd_of(words)) : 0u));
}
// What they are as elements, by the number of words.
ivec4 elements_of(Sums sums, uint words) {
    uint odd = OP == 0u ? sums.odd : odd_of(uvec4(sums.all)).x;  // counts of each element have room
    uint even = sums.all - (BITS < 32u ? odd << (BITS & 31u) : 0u);
    uvec4 made = BITS == 8u ? uvec4(even & 0xFFFFu, odd & 0xFFFFu, even >> 16, odd >> 16) : uvec4(even, odd, 0u, 0u);
    uint more = OP == 0u && IS_SIGNED ? words << (BITS - 1u) : 0u;
    return ivec4(made - uvec4(more, more, BITS == 8u ? uvec2(more) : uvec2(0u)));
}
// What a word of four whole units comes to.
ivec4 all_four(uvec4 words[4], uint number) {
    uvec4 word = uvec4(words[0][number], words[1][number], words[2][number], words[3][number]);
    ivec4 made;
    if (ADDS && BITS == 8u) {
        made = elements_of(with(Sums(0u, 0u), word), 4u);
    } else {
        made = both(both(fields(word.x), fields(word.y)), both(fields(word.z), fields(word.w)));
    }
    return made;
}
// What extremes are, of which words have the top.
ivec4 lowered(ivec4 kept) {
    uint below = OP == 1u || OP == 2u ? 32u - BITS : 0u;
    return IS_SIGNED ? kept >> below : ivec4(uvec4(kept) >> below);
}
ivec4 ended(ivec4 kept) {
    ivec4 made = kept;
    if (OP == 3u) made.x = kept.x != 0 ? 1 : 0;
    else if (OP == 4u) made.x = kept.x == 0x01010101 ? 1 : 0;
    else made = lowered(both(both(kept, kept.zwxy), both(kept, kept.zwxy).yxwz));
    return made;
}
int field(ivec4 kept, uint number) { return (DOWN ? lowered(kept) : kept)[number]; }
// The elements of a word, as they are stored.
int word_of(ivec4 kept) {
    uvec4 tops = uvec4(kept) & (BITS == 8u ? 0xFF000000u : 0xFFFF0000u);
    return int(BITS == 8u ? tops.x >> 24 | tops.y >> 16 | tops.z >> 8 | tops.w : tops.x >> 16 | tops.y);
}
#endif

#ifdef W64
#include "common/units_w64.glsl"
#else
shared KEPT folded[256];

void store(uint to, VALUE value) {
    if (OP > 7u) value = value != VALUE(0) ? VALUE(1) : value;
#ifdef INT64
    if (PACKED) o_word[push.o_first + to] = uint(value);
    else
#endif
    o[push.o_first + to] = value;
}

#ifdef ONCE
#define COUNTERS 3
#include "common/last_group.glsl"

layout(set = 0, binding = 2, std430) coherent buffer Parts { VALUE part_of[]; };

VALUE first_of(KEPT kept) {
#ifdef LONG
    return kept;
#else
    return kept.x;
#endif
}

// Of a row, or of the `number` columns of a group, of which the block has `width`: the last group stores what all parts
// come to. As many invocations as there are share a column.
void finish(uint block, uint strip, uint strips, uint number, uint width) {
    uint id = gl_LocalInvocationID.x;
    if (!comes_last(block * strips + strip, push.parts)) return;
    uint together = min(number, 256u), shares = 256u / together, share = id / together;
    for (uint first = 0u; first < number; first += 256u) {
        uint column = strip * number + first + id % together;
        uint from = block * push.parts * width + min(column, width - 1u);
        KEPT kept = nothing();
        for (uint part = share; part < push.parts; part += 4u * shares) {
            VALUE some[4];
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                some[j] = part_of[from + min(part + j * shares, push.parts - 1u) * width];
            }
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                if (part + j * shares < push.parts) kept = both(kept, KEPT(some[j]));
            }
        }
        barrier();
        folded[id] = kept;
        for (uint left = shares >> 1; left > 0u; left >>= 1) {
            barrier();
            if (share < left) folded[id] = both(folded[id], folded[id + left * together]);
        }
        uint to = block * width + column;
        bool stores = share == 0u && column < width;
#ifndef LONG
        if (PACKED) {
            barrier();
            stores = stores && id % FIELDS == 0u;
            int word = folded[id].x;
            [[unroll]] for (uint j = 1u; j < 4u; j++) {
                if (j < FIELDS) word = bitfieldInsert(word, folded[min(id + j, 255u)].x, int(j * BITS), int(BITS));
            }
            if (stores) store(to / FIELDS, word);
            continue;
        }
#endif
        if (stores) store(to, first_of(folded[id]));
    }
}
#endif

uvec4 unit_at(uint at, uint n) {
    uvec4 words = uvec4(0u);
    if (WIDE && n == ELEMENTS) {
        words = a_word4[at >> 2];
    } else {
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            if (j < WORDS_OF && j * ELEMENTS < n * WORDS_OF) words[j] = a_word[at + j];
        }
    }
    return words;
}

void main() {
    uint id = gl_LocalInvocationID.x;
    uint beside = 256u / push.lanes;
    uint lane = DOWN ? id / beside : id % push.lanes;
    uint mine = DOWN ? id % beside : id / push.lanes;
    uint strips = DOWN ? (push.columns + beside - 1u) / beside : 1u;
    uint group = group_number();
    uint unit = DOWN ? group / strips : group * beside + mine;  // the part of a block
    uint column = DOWN ? (group - unit * strips) * beside + mine : 0u;
    uint block = unit / push.parts;
    bool there = block < push.blocks && column < push.columns;
    uint step = DOWN ? push.columns * WORDS_OF : WORDS_OF;
    uint length = DOWN ? push.extent : (push.extent + ELEMENTS - 1u) / ELEMENTS;
    uint row = DOWN ? push.extent * step : push.extent / ELEMENTS * WORDS_OF;  // all units are whole, or there is one row
    uint from = push.a_first + block * row + column * WORDS_OF;
    uint begin = (unit - block * push.parts) * push.part;
    uint end = there ? min(begin + push.part, length) : begin;
    KEPT kept[4] = KEPT[](nothing(), nothing(), nothing(), nothing());
    uint whole = DOWN ? end : min(end, push.extent / ELEMENTS);
    uint k = begin + lane;
#ifndef LONG
    while (ADDS && k + 3u * push.lanes < whole) {
        Sums sums[4] = Sums[](Sums(0u, 0u), Sums(0u, 0u), Sums(0u, 0u), Sums(0u, 0u));
        uint turns = 0u;
        for (; turns < 15u && k + 3u * push.lanes < whole; turns++) {
            uvec4 words[4];
            [[unroll]] for (uint j = 0u; j < 4u; j++) words[j] = unit_at(from + (k + j * push.lanes) * step, ELEMENTS);
            [[unroll]] for (uint p = 0u; p < 4u; p++) {
                uint here = DOWN ? p : 0u;
                if (p < PIECES) sums[here] = with(sums[here], uvec4(words[0][p], words[1][p], words[2][p], words[3][p]));
            }
            k += 4u * push.lanes;
        }
        [[unroll]] for (uint p = 0u; p < 4u; p++) {
            if (p < (DOWN ? PIECES : 1u)) kept[p] += elements_of(sums[p], turns * (DOWN ? 4u : 4u * PIECES));
        }
    }
#endif
    for (; k + 3u * push.lanes < whole; k += 4u * push.lanes) {
        uvec4 words[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) words[j] = unit_at(from + (k + j * push.lanes) * step, ELEMENTS);
        [[unroll]] for (uint p = 0u; p < 4u; p++) {
            uint here = DOWN || PIECES == ELEMENTS ? p : 0u;
            if (p < PIECES) kept[here] = both(kept[here], all_four(words, p));
        }
    }
    for (; k < end; k += push.lanes) {  // up to four are left, of which the last may be short
        uint n = DOWN ? ELEMENTS : min(push.extent - k * ELEMENTS, ELEMENTS);
        uvec4 words = unit_at(from + k * step, n);
        [[unroll]] for (uint p = 0u; p < 4u; p++) {
            if (p < PIECES) kept[p] = both(kept[p], piece(words, p, n));
        }
    }
    if (!DOWN) kept[0] = ended(both(both(kept[0], kept[1]), both(kept[2], kept[3])));
    [[unroll]] for (uint p = 0u; p < 4u; p++) {
        if (p < (DOWN ? PIECES : 1u)) {
            barrier();
            folded[id] = kept[p];
            barrier();
            for (uint left = push.lanes >> 1; left > 0u; left >>= 1) {
                if (lane < left) folded[id] = both(folded[id], folded[id + left * (DOWN ? beside : 1u)]);
                barrier();
            }
            uint to = unit * (DOWN ? push.columns * ELEMENTS : 1u) + column * ELEMENTS + p * FIELDS;
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                if (there && lane == 0u && j < (DOWN ? FIELDS : 1u)) {
#ifdef ONCE
                    part_of[to + j] = field(folded[id], j);
#elif defined(LONG)
                    store(to + j, field(folded[id], j));
#else
                    if (!PACKED) store(to + j, field(folded[id], j));
                    else if (j == 0u) store(to / FIELDS, word_of(folded[id]));
#endif
                }
            }
        }
    }
#ifdef ONCE
    if (block < push.blocks) {  // a grid may have more groups
        finish(block, group - unit * strips, strips, DOWN ? beside * ELEMENTS : 1u, DOWN ? push.columns * ELEMENTS : 1u);
    }
#endif
}
#endif
