// Packs a region of an array into a cell: a word of the cell an invocation.
// variants: u1: UNIT=1 | u2: UNIT=2 | u4: UNIT=4
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/region.glsl"

layout(set = 0, binding = 0, std430) readonly buffer Array { uint array[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Cell { uint cell[]; };

void main() {
    uint word = group_number() * 256u + gl_LocalInvocationID.x;
    uint i = word * PER_WORD;
    if (i >= push.count) {
        return;
    }
#if UNIT == 4
    cell[push.packed + word] = array[place(i)];
#else
    uint bits = 0u;
    uint n = min(push.count - i, PER_WORD);
    for (uint j = 0u; j < n; j++) {
        uint at = place(i + j);
        bits |= (array[at / PER_WORD] >> (at % PER_WORD * BITS) & MASK) << (j * BITS);
    }
    cell[push.packed + word] = bits;
#endif
}
