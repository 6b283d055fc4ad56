// A region of an array, axes of elements regular steps apart, and the cell that it is packed in, one after the other.
// UNIT is how many bytes are moved at a time: 4, 2 or 1. Buffers are made of 32-bit words.
#ifndef VKPAR_REGION_GLSL
#define VKPAR_REGION_GLSL

#include "grid.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint AXES = 1u;  // how many of the six are in use
layout(constant_id = 1) const uint EACH = 1u;  // neighbouring words of the cell that an invocation moves

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

// A unit of the region: where it lies in the array's binding, and its number along each axis.
struct Unit {
    uint at;
    uint number[6];
};

Unit unit_of(uint i) {
    Unit unit;
    unit.at = push.first;
    [[unroll]] for (uint axis = 5u; axis > 0u; axis--) {
        if (axis < AXES) {
            uint above = i / push.counts[axis];
            unit.number[axis] = i - above * push.counts[axis];
            unit.at += unit.number[axis] * push.strides[axis];
            i = above;
        }
    }
    unit.at += i * push.strides[0];
    return unit;
}

// Goes on to the next unit: along an axis where those behind it are done.
void go_on(inout Unit unit) {
    uint step = 1u;
    [[unroll]] for (uint axis = 5u; axis > 0u; axis--) {
        if (axis < AXES) {
            uint count = push.counts[axis];
            uint number = unit.number[axis] + step;
            unit.at += step * push.strides[axis];
            bool ends = number == count;
            unit.at -= ends ? count * push.strides[axis] : 0u;
            unit.number[axis] = ends ? 0u : number;
            step = ends ? step : 0u;
        }
    }
    unit.at += step * push.strides[0];
}

#endif
