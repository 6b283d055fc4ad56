#version 450
#extension GL_GOOGLE_include_directive : require
// Stores what a slot holds in the array and passes the slot's bits on as they are: nothing is encoded again.
// variants: gpu: LANES=32 GROUP=256 | cpu: LANES=1 GROUP=8 | texel: LANES=1 GROUP=8 TEXELS
// variants of what goes on: ELEM WIRE
// variants: whole: | tail: TAIL
#define IN_WIRE WIRE
#define OUT_WIRE WIRE
#include "common/wire.glsl"

layout(constant_id = 0) const bool TO_ARRAY = true;
layout(constant_id = 1) const bool TO_SLOT = true;

layout(push_constant) uniform Push {
    uint count;      // elements of the segment
    uint first_block;  // the first block of it that this launch does
    uint target_at;  // its first element in the target array's binding
    uint tail;       // 16-byte units from a slot's start to its scales
    uint in_slot;    // first 16-byte unit of the slot that arrived
    uint out_slot;   // and of the slot to fill
};

void forward(uint first, uint number) {
    for (uint i = 0u; i < number; i++) {
        uint unit = first + i * LANES;
        uvec2 n = elements_left(count, unit);
        Raw raw = load_raw(WIRE, in_slot, tail, unit);
        if (TO_SLOT) {
            store_raw(WIRE, out_slot, tail, unit, raw);
        }
        if (TO_ARRAY && (IS_WHOLE || n.x > 0u)) {
            store_elements(target_at, unit, n, decode_raw(WIRE, raw));
        }
    }
}

void main() {
#ifdef TEXELS
    for (uint i = gl_SubgroupID; i < GROUP; i += gl_NumSubgroups) {
        uint block = first_block + gl_WorkGroupID.x * GROUP + i;
        if (block * BLOCK < count) {
            forward(first_unit(block), units_of_invocation());
        }
    }
#elif LANES == 1
    uint block = first_block + gl_GlobalInvocationID.x;
    if (block * BLOCK < count) {
        forward(block * ROUNDS, ROUNDS);
    }
#else
    uint block = first_block + gl_WorkGroupID.x * BLOCKS_PER_GROUP + gl_LocalInvocationID.x / LANES;
    while (block * BLOCK < count) {
        forward(block * LANES + gl_LocalInvocationID.x % LANES, ROUNDS);
        block += gl_NumWorkGroups.x * BLOCKS_PER_GROUP;
    }
#endif
}
