// Spreads what a cell holds over a region of an array: a word of the cell an invocation.
// variants: u1: UNIT=1 | u2: UNIT=2 | u4: UNIT=4
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/region.glsl"

layout(set = 0, binding = 0, std430) buffer Array { uint array[]; };
layout(set = 0, binding = 1, std430) readonly buffer Cell { uint cell[]; };

void main() {
    uint word = group_number() * 256u + gl_LocalInvocationID.x;
    uint i = word * PER_WORD;
    if (i >= push.count) {
        return;
    }
    uint bits = cell[push.packed + word];
#if UNIT == 4
    array[place(i)] = bits;
#else
    // Other invocations write the rest of the word, and elements outside the region keep theirs.
    uint n = min(push.count - i, PER_WORD);
    for (uint j = 0u; j < n; j++) {
        uint at = place(i + j);
        uint shift = at % PER_WORD * BITS;
        atomicAnd(array[at / PER_WORD], ~(MASK << shift));
        atomicOr(array[at / PER_WORD], (bits >> (j * BITS) & MASK) << shift);
    }
#endif
}
