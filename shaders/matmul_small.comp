// variants: f32: A_TYPE=0 | f16: A_TYPE=1 | bf16: A_TYPE=2
// variants: f32: B_TYPE=0 | f16: B_TYPE=1 | bf16: B_TYPE=2
// variants: rows1: ROWS=1 | rows4: ROWS=4 | rows8: ROWS=8
// Matrix product for CPU drivers.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/small.glsl"
