// Spreads what a cell holds over a region of an array, neighbouring words of it an invocation.
// variants: u1: UNIT=1 | u2: UNIT=2 | u4: UNIT=4
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/region.glsl"

layout(set = 0, binding = 0, std430) buffer Array { uint array[]; };
layout(set = 0, binding = 1, std430) readonly buffer Cell { uint cell[]; };

void main() {
    uint word = (group_number() * 256u + gl_LocalInvocationID.x) * EACH;
    uint i = word * PER_WORD;
    if (i >= push.count) return;
    uint end = min(i + EACH * PER_WORD, push.count);
    Unit unit = unit_of(i);
    for (; i < end; i += PER_WORD) {
        uint bits = cell[push.packed + word];
        word++;
        [[unroll]] for (uint j = 0u; j < PER_WORD; j++) {
            if (i + j < end) {
#if UNIT == 4
                array[unit.at] = bits;
#else
                // Other invocations write the rest of the word, and elements outside the region keep theirs.
                uint shift = unit.at % PER_WORD * BITS;
                atomicAnd(array[unit.at / PER_WORD], ~(MASK << shift));
                atomicOr(array[unit.at / PER_WORD], (bits >> (j * BITS) & MASK) << shift);
#endif
                go_on(unit);
            }
        }
    }
}
