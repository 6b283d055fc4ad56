#version 450
#extension GL_GOOGLE_include_directive : require
// The last step of a sum, which adds the result to other elements at once.
// variants of wires: IN_WIRE
// variants: whole: | tail: TAIL
#define LANES 32
#define GROUP 256
#define ELEM ELEM_F32
#define OUT_WIRE IN_WIRE
#define ADDS
#include "common/reduce.glsl"
