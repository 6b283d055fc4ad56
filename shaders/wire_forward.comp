#version 450
#extension GL_GOOGLE_include_directive : require
// Stores what a slot holds in the array and passes the slot's bits on as they are: nothing is encoded again.
// variants: gpu: LANES=32u GROUP=256 | cpu: LANES=1u GROUP=8
#include "common/wire.glsl"

layout(constant_id = 1) const uint WIRE = WIRE_SCALED_F16;
layout(constant_id = 2) const bool TO_ARRAY = true;
layout(constant_id = 3) const bool TO_SLOT = true;

layout(push_constant) uniform Push {
    uint count;      // elements of the segment
    uint target_at;  // its first element in the target array's binding
    uint tail;       // 16-byte units from a slot's start to its shifts
    uint in_slot;    // first 16-byte unit of the slot that arrived
    uint out_slot;   // and of the slot to fill
};

void main() {
    uint block = gl_WorkGroupID.x * BLOCKS_PER_GROUP + gl_LocalInvocationID.x / LANES;
    if (block * BLOCK >= count) {
        return;
    }
    uint first = block * (BLOCK / 8u) + gl_LocalInvocationID.x % LANES;
    for (uint i = 0u; i < ROUNDS; i++) {
        uint unit = first + i * LANES;
        uint n = elements_left(count, unit);
        Raw raw = load_raw(WIRE, in_slot, tail, unit);
        if (TO_SLOT) {
            store_raw(WIRE, out_slot, tail, unit, raw);
        }
        if (TO_ARRAY && n > 0u) {
            store_elements(target_at + 8u * unit, n, decode_raw(WIRE, raw));
        }
    }
}
