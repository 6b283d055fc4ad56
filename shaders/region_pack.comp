// Packs a region of an array into a cell, neighbouring words of it an invocation.
// variants: u1: UNIT=1 | u2: UNIT=2 | u4: UNIT=4
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/region.glsl"

layout(set = 0, binding = 0, std430) readonly buffer Array { uint array[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Cell { uint cell[]; };

void main() {
    uint word = (group_number() * 256u + gl_LocalInvocationID.x) * EACH;
    uint i = word * PER_WORD;
    if (i >= push.count) return;
    uint end = min(i + EACH * PER_WORD, push.count);
    Unit unit = unit_of(i);
    uint held = 0u;
    uint held_at = 0xFFFFFFFFu;
    for (; i < end; i += PER_WORD) {
        uint bits = 0u;
        [[unroll]] for (uint j = 0u; j < PER_WORD; j++) {
            if (i + j < end) {
                uint from = unit.at / PER_WORD;
                if (EACH == 1u || from != held_at) held = array[from];
                held_at = from;
                bits |= (held >> (unit.at % PER_WORD * BITS) & MASK) << (j * BITS);
                go_on(unit);
            }
        }
        cell[push.packed + word] = bits;
        word++;
    }
}
