// A region of an array, axes of elements regular steps apart, and the cell that it is packed in, one after the other.
// UNIT is how many bytes are moved at a time: 4, 2 or 1. Buffers are made of 32-bit words.
#ifndef VKPAR_REGION_GLSL
#define VKPAR_REGION_GLSL

#include "grid.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint AXES = 1u;  // how many of the six are in use

layout(push_constant) uniform Push {
    uint first;       // unit of the array's binding at which the region begins
    uint packed;      // word of the cell at which it is packed
    uint count;       // units of the region
    uint counts[6];   // units along each axis
    uint strides[6];  // units from one to the next
} push;

const uint PER_WORD = 4u / uint(UNIT);
const uint BITS = 8u * uint(UNIT);
const uint MASK = 0xFFFFFFFFu >> (32u - BITS);

// The unit of the array's binding that is the i-th of the region.
uint place(uint i) {
    uint at = push.first;
    for (uint axis = AXES - 1u; axis > 0u; axis--) {
        uint above = i / push.counts[axis];
        at += (i - above * push.counts[axis]) * push.strides[axis];
        i = above;
    }
    return at + i * push.strides[0];
}

#endif
