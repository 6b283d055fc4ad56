// Parts of the keys, brought together by the work-group that is the last of a block of queries to store its own: in their
// order, whichever group that is. The caller has ROWS queries of a block, from `row0` on, and THREADS invocations.
#ifndef VKPAR_ATTENTION_PARTS_GLSL
#define VKPAR_ATTENTION_PARTS_GLSL

const uint MOST_PARTS = 64u;

// Of each row and part the sums of weighted values; behind them, the score that weights are relative to with their sum.
layout(set = 0, binding = 6, std430) coherent buffer PartSums { vec4 part_sums[]; };
layout(set = 0, binding = 6, std430) coherent buffer PartTops { vec2 part_tops[]; };
#define COUNTERS 7
#include "last_group.glsl"

shared vec2 part_top[ROWS * MOST_PARTS];
shared float part_share[ROWS * MOST_PARTS];

// How many parts have keys, one at least, where each takes `share` of those that the block sees.
uint parts_of(uint most, uint share) {
    return SPLIT ? max((most + share - 1u) / max(share, 1u), 1u) : 1u;
}

uint part_number(uint row, uint part) {
    return row_number(batch, kv, row) * push.splits + part;
}

uint tops_at(uint number) {
    uint rows = push.batches * push.kv_heads * push.grouped * push.tokens;
    return rows * push.splits * CHUNKS * 4u + number;
}

// Stores elements d..d+3 of a part's sums.
void store_part(uint row, uint part, uint d, vec4 made, float highest, float all) {
    uint number = part_number(row, part);
    part_sums[number * CHUNKS * 2u + d / 4u] = made;
    if (d == 0u) {
        part_tops[tops_at(number)] = vec2(highest, all);
    }
}

// Makes part_top, and part_share: what a part's sums are multiplied by.
void weigh_parts(uint parts, uint rows) {
    for (uint i = gl_LocalInvocationID.x; i < ROWS * parts; i += THREADS) {
        uint r = i / parts, part = i % parts;
        part_top[r * MOST_PARTS + part] = part_tops[tops_at(part_number(min(row0 + r, rows - 1u), part))];
    }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < ROWS * parts; i += THREADS) {
        uint first = i / parts * MOST_PARTS;
        float highest = LOWEST;
        for (uint part = 0u; part < parts; part++) {
            vec2 found = part_top[first + part];
            highest = max(highest, found.y == 0.0 ? LOWEST : found.x);
        }
        vec2 own = part_top[first + i % parts];
        part_share[first + i % parts] = own.y == 0.0 ? 0.0 : exp(own.x - highest);
    }
    barrier();
}

vec4 together(uint r, uint quad, uint parts) {
    const uint ABREAST_PARTS = 8u;  // in flight
    uint first = part_number(row0 + r, 0u) * CHUNKS * 2u + quad;
    vec4 sum = vec4(0.0);
    float all = 0.0;
    bool lost = false;
    for (uint part = 0u; part < parts; part += ABREAST_PARTS) {
        vec4 made[ABREAST_PARTS];
        [[unroll]] for (uint j = 0u; j < ABREAST_PARTS; j++) {
            made[j] = part_sums[first + min(part + j, parts - 1u) * CHUNKS * 2u];
        }
        [[unroll]] for (uint j = 0u; j < ABREAST_PARTS; j++) {
            if (part + j < parts) {
                float total = part_top[r * MOST_PARTS + part + j].y, share = part_share[r * MOST_PARTS + part + j];
                lost = lost || (floatBitsToUint(total) & 0x7FFFFFFFu) > 0x7F800000u;
                all += share * total;
                if (share != 0.0) sum += share * made[j];
            }
        }
    }
    return quotient(sum, lost ? NOT : all);
}

// To be called by all invocations of a group that has stored its part.
void bring_together(uint block, uint parts) {
    if (!comes_last(block, parts)) {
        return;
    }
    uint rows = push.tokens * push.grouped;
    weigh_parts(parts, rows);
    for (uint i = gl_LocalInvocationID.x; i < ROWS * CHUNKS * 2u; i += THREADS) {
        uint r = i / (CHUNKS * 2u), d = i % (CHUNKS * 2u) * 4u;
        if (row0 + r < rows && d < WIDTH) {
            uvec4 packed = o_pack4(floatBitsToUint(together(r, d / 4u, parts)));
            o_store4(result_at(batch, kv, row0 + r) + d, WIDTH - d, packed);
        }
    }
}

#endif
