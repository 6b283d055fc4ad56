// Gathers a sum of float32 over devices by fours: the slots that arrived and the own elements, combined in rank order as
// reduce.glsl does it. The sum is stored where the own elements were. rows.glsl is included before, with GATHERS.
#ifndef VKPAR_GATHER_GLSL
#define VKPAR_GATHER_GLSL

#include "wire.glsl"

layout(constant_id = 15) const uint SOURCES = 1u;
layout(constant_id = 16) const bool AVERAGE = false;
layout(constant_id = 17) const uint OWN_AT = 0u;  // how many slots come before the own elements in rank order

const uint OP = 0u, ORDER = 0u;
uvec2 factor = push.factor;

#include "combine.glsl"

// Fours that an invocation gathers at a time: slots lie far away, and reads of several are under way together. In the
// widest work-groups, which have invocations enough, some GPUs have 64 registers for each.
const uint TOGETHER = GROUP > 512u ? 1u : 4u;
#define EACH_TOGETHER [[unroll]] for (uint u = 0u; u < TOGETHER; u++)

vec4 gathered[TOGETHER];

// What one term of four elements is made of; n of them are left.
Raw load_term(uint index, uint four, uint n) {
    Raw raw = Raw(uvec4(0u), uvec4(0u), 0u);
    if (index != OWN_AT) {
        if (n > 0u) raw = load_four(IN_WIRE, push.slots[index > OWN_AT ? index - 1u : index], push.tail, four);
    } else if (n > 3u) {
        raw.w0 = source_word4[push.x_first / 4u + four];
    } else {
        for (uint i = 0u; i < n; i++) raw.w0[i] = source_word[push.x_first + 4u * four + i];
    }
    return raw;
}

uvec4 term_of(uint index, Raw raw) {
    return index == OWN_AT ? raw.w0 : decode_raw(IN_WIRE, raw).low;
}

void store_sum(uint four, uint n, uvec4 bits) {
    if (n > 3u) {
        target_word4[push.x_first / 4u + four] = bits;
    } else {
        for (uint i = 0u; i < n; i++) target_word[push.x_first + 4u * four + i] = bits[i];
    }
}

// Leaves in `gathered` the sums of the fours of this row that begin at `first`, a multiple of 4, and every 4 lanes from
// there; the row begins at element row_at of the sum, a multiple of 4. What is past the row's end is not meant.
void gather(uint row_at, uint first) {
    uvec4 sums[TOGETHER];
    uint index = 0u;
    do {
        Raw raws[TOGETHER];
        EACH_TOGETHER {
            uint k = first + u * push.lanes * 4u;
            raws[u] = load_term(index, (row_at + k) / 4u, left(k));
        }
        EACH_TOGETHER {
            uvec4 next = term_of(index, raws[u]);
            sums[u] = index == 0u ? next : combined(sums[u], next);
        }
        index++;
    } while (index <= SOURCES);
    EACH_TOGETHER {
        uint k = first + u * push.lanes * 4u;
        uvec4 bits = canonical(finished(sums[u]));
        store_sum((row_at + k) / 4u, left(k), bits);
        gathered[u] = uintBitsToFloat(bits);
    }
}

#endif
