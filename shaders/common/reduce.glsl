// Reduces the slots that arrived and the rank's own elements, in rank order; stores the result in the array, sends it,
// or both. Where ADDS is defined, it also stores the result plus other elements: the sum of a residual stream.
#ifndef VKPAR_REDUCE_GLSL
#define VKPAR_REDUCE_GLSL

#if LANES > 1
#define SLOTS_ACCESS coherent
#endif
#include "common/wire.glsl"

layout(constant_id = 0) const uint SOURCES = 1u;
layout(constant_id = 1) const bool HAS_OWN = true;
layout(constant_id = 2) const bool TO_ARRAY = true;
layout(constant_id = 3) const bool TO_SLOT = true;
layout(constant_id = 5) const bool AVERAGE = false;
layout(constant_id = 7) const uint OWN_AT = 0u;  // how many slots come before the own elements in rank order
#ifdef ANY
layout(constant_id = 4) const uint OP = 0u;     // the codes of vkpar/comm/wires.py
layout(constant_id = 6) const uint ORDER = 0u;  // of what max and min compare
#else
const uint OP = 0u, ORDER = 0u;
#endif

const bool SCALED = TO_SLOT && (OUT_WIRE == WIRE_SCALED_F16 || OUT_WIRE == WIRE_Q8);
const uint MOST_SOURCES = 16u;

layout(push_constant) uniform Push {
    uint count;                  // elements of the segment
    uint first_block;            // the first block of it that this launch does
    uint source_at;              // its first element in the source array's binding
    uint target_at;              // and in the target array's
    uint tail;                   // 16-byte units from a slot's start to its scales
    uint out_slot;               // first 16-byte unit of the slot to fill
    uvec2 factor;                // the bits of what an average multiplies a sum of floats by, or divides integers by
    uint slots[MOST_SOURCES];    // first 16-byte units of those that arrived
    uint awaits;                 // bits 2 i and 2 i + 1: for so many transfers on lane i the kernel waits itself
    uint sends;                  // the same of those that are ready once it is done
#ifdef ADDS
    uint addend_at;              // in the addend's binding: what belongs to the segment's first element
    uint total_at;               // and where the total goes
#endif
};

#include "common/combine.glsl"
#if LANES > 1
#define COUNTERS SLOTS_BINDING
#include "common/flags.glsl"
#include "common/last_group.glsl"
#endif

Eight term(uint index, uint unit, uvec2 n) {
    if (HAS_OWN && index == OWN_AT) {
        return load_elements(source_at, unit, n);
    }
    uint slot = slots[HAS_OWN && index > OWN_AT ? index - 1u : index];
    return decode_raw(IN_WIRE, load_raw(IN_WIRE, slot, tail, unit));
}

// Loops that surely run test at their end: SwiftShader runs the body of a tested one once more, with nothing enabled.
Eight total(uint unit, uvec2 n) {
    uint terms = SOURCES + (HAS_OWN ? 1u : 0u);
    Eight result = term(0u, unit, n);
    if (terms > 1u) {
        uint i = 1u;
        do {
            Eight next = term(i, unit, n);
            result = Eight(combined(result.low, next.low), combined(result.high, next.high));
            i++;
        } while (i < terms);
    }
    return Eight(finished(result.low), finished(result.high));
}

#ifdef ADDS
layout(set = 0, binding = 3, std430) readonly buffer Addend { uint addend_word[]; };
layout(set = 0, binding = 3, std430) readonly buffer Addend4 { uvec4 addend_word4[]; };
layout(set = 0, binding = 4, std430) buffer Total { uint total_word[]; };
layout(set = 0, binding = 4, std430) buffer Total4 { uvec4 total_word4[]; };

// Stores four results plus four of the addend, as far as they exist.
void add_four(uint four, uint n, uvec4 bits) {
    vec4 sum = uintBitsToFloat(canonical(bits));
    if (n == 4u) {
        total_word4[total_at / 4u + four] =
            floatBitsToUint(uintBitsToFloat(addend_word4[addend_at / 4u + four]) + sum);
        return;
    }
    for (uint i = 0u; i < n; i++) {
        uint at = 4u * four + i;
        total_word[total_at + at] = floatBitsToUint(uintBitsToFloat(addend_word[addend_at + at]) + sum[i]);
    }
}

void add_to(uint unit, uvec2 n, Eight result) {
    add_four(low_four(unit), n.x, result.low);
    add_four(low_four(unit) + APART, n.y, result.high);
}
#endif

void finish(uint unit, uvec2 n, Eight result, Scale scale) {
    if (TO_SLOT) {
        Raw raw = encode_raw(OUT_WIRE, result, scale);
        store_raw(OUT_WIRE, out_slot, tail, unit, raw);
        result = decode_raw(OUT_WIRE, raw);  // the owner keeps what the others will read
    }
    if (TO_ARRAY && (IS_WHOLE || n.x > 0u)) {
        store_elements(target_at, unit, n, result);
#ifdef ADDS
        add_to(unit, n, result);
#endif
    }
}

const uint PER_SCALE = OUT_WIRE == WIRE_Q8 ? Q8_UNITS : BLOCK / 8u;  // units that share a scale

#if LANES == 1
// For processors: the sums are computed twice where their largest value is needed first.
uint largest_of(uint unit, uint end) {
    uint largest = 0u;
    if (SCALED) {
        do {
            largest = max(largest, largest_finite(total(unit, elements_left(count, unit))));
            unit++;
        } while (unit < end);
    }
    return largest;
}

void finish_all(uint unit, uint end, uint largest) {
    Scale scale = scale_of(OUT_WIRE, largest);
    do {
        uvec2 n = elements_left(count, unit);
        finish(unit, n, total(unit, n), scale);
        unit++;
    } while (unit < end);
}

#ifdef TEXELS
// One subgroup per block: what its invocations read at a time lies close together.
void main() {
    uint step = min(PER_SCALE, units_of_invocation());
    for (uint i = gl_SubgroupID; i < GROUP; i += gl_NumSubgroups) {
        uint block = first_block + gl_WorkGroupID.x * GROUP + i;
        if (block * BLOCK >= count) {
            return;
        }
        uint unit = first_unit(block), end = unit + units_of_invocation(), largest = 0u;
        for (; unit < end; unit += step) {
            largest = largest_of(unit, unit + step);
            if (SCALED && step < PER_SCALE) {
                largest = subgroupMax(largest);
            }
            finish_all(unit, unit + step, largest);
        }
    }
}
#else
// One invocation per block.
void main() {
    uint block = first_block + gl_GlobalInvocationID.x;
    if (block * BLOCK >= count) {
        return;
    }
    uint unit = block * ROUNDS, largest = 0u;
    do {
        largest = largest_of(unit, unit + PER_SCALE);
        finish_all(unit, unit + PER_SCALE, largest);
        unit += PER_SCALE;
    } while (unit < (block + 1u) * ROUNDS);
}
#endif
#else
shared uint largest_in[2][GROUP / PER_SCALE];  // of this round and of the one before, which some may still read

// 32 invocations per block, eight elements each, round after round: with no more groups than keep the link busy, the
// writes of one round go out while the next one's reads come in.
void main() {
    if (awaits != 0u) wait_in_group(awaits);
    uint sharing = gl_LocalInvocationID.x / PER_SCALE, turn = 0u;
    uint base = first_block * LANES + gl_WorkGroupID.x * GROUP;
    while (base / LANES * BLOCK < count) {
        uint unit = base + gl_LocalInvocationID.x;
        uvec2 n = elements_left(count, unit);
        bool inside = unit / LANES * BLOCK < count;
        Eight result = Eight(uvec4(0u), uvec4(0u));
        if (inside) {
            result = total(unit, n);
        }
        uint largest = 0u;
        if (SCALED) {
            if (unit % PER_SCALE == 0u) largest_in[turn][sharing] = 0u;
            barrier();
            atomicMax(largest_in[turn][sharing], largest_finite(result));
            barrier();
            largest = largest_in[turn][sharing];
            turn ^= 1u;
        }
        if (inside) {
            finish(unit, n, result, scale_of(OUT_WIRE, largest));
        }
        base += gl_NumWorkGroups.x * GROUP;
    }
    if (sends != 0u && comes_last(STORED, gl_NumWorkGroups.x)) raise(sends);
}
#endif

#endif
