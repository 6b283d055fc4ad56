#version 450
#extension GL_GOOGLE_include_directive : require
// Sums the slots that arrived and the rank's own elements, in rank order; stores the sum in the array, sends it, or
// both. Publishing is a sum of the own elements alone.
// variants: gpu: LANES=32u GROUP=256 | cpu: LANES=1u GROUP=8
#include "common/wire.glsl"

layout(constant_id = 1) const uint IN_WIRE = WIRE_SCALED_F16;
layout(constant_id = 2) const uint OUT_WIRE = WIRE_SCALED_F16;
layout(constant_id = 3) const uint SOURCES = 1u;
layout(constant_id = 4) const bool HAS_OWN = true;
layout(constant_id = 5) const bool TO_ARRAY = true;
layout(constant_id = 6) const bool TO_SLOT = true;

const uint MOST_SOURCES = 16u;

layout(push_constant) uniform Push {
    uint count;                  // elements of the segment
    uint source_at;              // its first element in the source array's binding
    uint target_at;              // and in the target array's
    uint own_at;                 // how many slots come before the own elements in rank order
    uint tail;                   // 16-byte units from a slot's start to its shifts
    uint out_slot;               // first 16-byte unit of the slot to fill
    uint slots[MOST_SOURCES];    // and of those that arrived
};

shared uint block_largest[BLOCKS_PER_GROUP];

Eight plus(Eight a, Eight b) {
    return Eight(a.f0 + b.f0, a.f1 + b.f1, a.u0 + b.u0, a.u1 + b.u1);
}

Eight term(uint index, uint unit, uint n) {
    if (HAS_OWN && index == own_at) {
        return load_elements(source_at + 8u * unit, n);
    }
    uint slot = slots[HAS_OWN && index > own_at ? index - 1u : index];
    return decode_raw(IN_WIRE, load_raw(IN_WIRE, slot, tail, unit));
}

Eight total(uint unit, uint n) {
    Eight sum = term(0u, unit, n);
    for (uint i = 1u; i < SOURCES + (HAS_OWN ? 1u : 0u); i++) {
        sum = plus(sum, term(i, unit, n));
    }
    return sum;
}

void finish(uint unit, uint n, Eight sum, int shift) {
    if (TO_SLOT) {
        Raw raw = encode_raw(OUT_WIRE, sum, shift);
        store_raw(OUT_WIRE, out_slot, tail, unit, raw);
        sum = decode_raw(OUT_WIRE, raw);  // the owner keeps what the others will read
    }
    if (TO_ARRAY && n > 0u) {
        store_elements(target_at + 8u * unit, n, sum);
    }
}

void main() {
    uint local_block = gl_LocalInvocationID.x / LANES;
    uint block = gl_WorkGroupID.x * BLOCKS_PER_GROUP + local_block;
    uint lane = gl_LocalInvocationID.x % LANES;
    uint first = block * (BLOCK / 8u) + lane;
    bool inside = block * BLOCK < count;
    bool scaled = TO_SLOT && OUT_WIRE == WIRE_SCALED_F16;
    Eight kept[ROUNDS];
    uint largest = 0u;
    if (inside) {
        for (uint i = 0u; i < ROUNDS; i++) {
            uint unit = first + i * LANES;
            kept[i] = total(unit, elements_left(count, unit));
            largest = max(largest, max(largest_finite(kept[i].f0), largest_finite(kept[i].f1)));
        }
    }
    if (scaled && LANES > 1u) {
        if (lane == 0u) block_largest[local_block] = 0u;
        barrier();
        atomicMax(block_largest[local_block], largest);
        barrier();
        largest = block_largest[local_block];
    }
    if (inside) {
        int shift = scaled ? shift_of(largest) : 0;
        for (uint i = 0u; i < ROUNDS; i++) {
            uint unit = first + i * LANES;
            finish(unit, elements_left(count, unit), kept[i], shift);
        }
    }
}
