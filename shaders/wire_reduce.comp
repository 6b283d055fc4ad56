#version 450
#extension GL_GOOGLE_include_directive : require
// Sums the slots that arrived and the rank's own elements, in rank order; stores the sum in the array, sends it, or
// both. Publishing is a sum of the own elements alone.
// variants: gpu: LANES=32 GROUP=256 | cpu: LANES=1 GROUP=8
// variants: f32_scaled_scaled: ELEM=ELEM_F32 IN_WIRE=WIRE_SCALED_F16 OUT_WIRE=WIRE_SCALED_F16 | f32_word_word: ELEM=ELEM_F32 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | f32_bhalf_bhalf: ELEM=ELEM_F32 IN_WIRE=WIRE_BF16 OUT_WIRE=WIRE_BF16 | f16_half_half: ELEM=ELEM_F16 IN_WIRE=WIRE_F16 OUT_WIRE=WIRE_F16 | f16_word_word: ELEM=ELEM_F16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | f16_word_half: ELEM=ELEM_F16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_F16 | bf16_bhalf_bhalf: ELEM=ELEM_BF16 IN_WIRE=WIRE_BF16 OUT_WIRE=WIRE_BF16 | bf16_word_word: ELEM=ELEM_BF16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | bf16_word_bhalf: ELEM=ELEM_BF16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_BF16 | int_word_word: ELEM=ELEM_INT IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD
// variants: whole: | tail: TAIL
#include "common/wire.glsl"

layout(constant_id = 0) const uint SOURCES = 1u;
layout(constant_id = 1) const bool HAS_OWN = true;
layout(constant_id = 2) const bool TO_ARRAY = true;
layout(constant_id = 3) const bool TO_SLOT = true;

const bool SCALED = TO_SLOT && OUT_WIRE == WIRE_SCALED_F16;
const uint MOST_SOURCES = 16u;

layout(push_constant) uniform Push {
    uint count;                  // elements of the segment
    uint first_block;            // the first block of it that this launch does
    uint source_at;              // its first element in the source array's binding
    uint target_at;              // and in the target array's
    uint own_at;                 // how many slots come before the own elements in rank order
    uint tail;                   // 16-byte units from a slot's start to its shifts
    uint out_slot;               // first 16-byte unit of the slot to fill
    uint slots[MOST_SOURCES];    // and of those that arrived
};

uvec4 plus(uvec4 a, uvec4 b) {
    return IS_INT ? a + b : floatBitsToUint(uintBitsToFloat(a) + uintBitsToFloat(b));
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
        Eight next = term(i, unit, n);
        sum = Eight(plus(sum.low, next.low), plus(sum.high, next.high));
    }
    return sum;
}

void finish(uint unit, uint n, Eight sum, int shift) {
    if (TO_SLOT) {
        Raw raw = encode_raw(OUT_WIRE, sum, shift);
        store_raw(OUT_WIRE, out_slot, tail, unit, raw);
        sum = decode_raw(OUT_WIRE, raw);  // the owner keeps what the others will read
    }
    if (TO_ARRAY && (IS_WHOLE || n > 0u)) {
        store_elements(target_at + 8u * unit, n, sum);
    }
}

#if LANES == 1
// One invocation per block, for processors: the sums are computed twice where a block's largest value is needed first.
void main() {
    uint block = first_block + gl_GlobalInvocationID.x;
    if (block * BLOCK >= count) {
        return;
    }
    uint first = block * ROUNDS;
    uint largest = 0u;
    if (SCALED) {
        for (uint unit = first; unit < first + ROUNDS; unit++) {
            largest = max(largest, largest_finite(total(unit, elements_left(count, unit))));
        }
    }
    for (uint unit = first; unit < first + ROUNDS; unit++) {
        uint n = elements_left(count, unit);
        finish(unit, n, total(unit, n), shift_of(largest));
    }
}
#else
shared uint block_largest[BLOCKS_PER_GROUP];

// 32 invocations per block, eight elements each.
void main() {
    uint local_block = gl_LocalInvocationID.x / LANES;
    uint unit = first_block * LANES + gl_GlobalInvocationID.x;
    uint n = elements_left(count, unit);
    bool inside = unit / LANES * BLOCK < count;
    Eight sum = Eight(uvec4(0u), uvec4(0u));
    if (inside) {
        sum = total(unit, n);
    }
    uint largest = 0u;
    if (SCALED) {
        if (unit % LANES == 0u) block_largest[local_block] = 0u;
        barrier();
        atomicMax(block_largest[local_block], largest_finite(sum));
        barrier();
        largest = block_largest[local_block];
    }
    if (inside) {
        finish(unit, n, sum, shift_of(largest));
    }
}
#endif
