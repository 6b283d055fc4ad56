#version 450
#extension GL_GOOGLE_include_directive : require
// A step of a reduction. Publishing is a reduction of the own elements alone.
// variants: gpu: LANES=32 GROUP=256 | cpu: LANES=1 GROUP=8 | texel: LANES=1 GROUP=8 TEXELS
// variants of sums: ELEM IN_WIRE OUT_WIRE
// variants: whole: | tail: TAIL | whole_any: ANY | tail_any: TAIL ANY
// Those named any do every op; the others sum, and average floats. A constant chooses the op at no cost
// where drivers fold it. SwiftShader does not, and runs both sides of a branch, so that a sum would take half as long
// again.
#include "common/reduce.glsl"
