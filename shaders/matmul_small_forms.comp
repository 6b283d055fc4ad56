// variants: f32_f32: A_TYPE=0 B_TYPE=0
// variants: rows1: ROWS=1 | rows4: ROWS=4 | rows8: ROWS=8
// Matrix products for CPU drivers, transposed and in batches.
#version 450
#extension GL_GOOGLE_include_directive : require
#define FORMS
#include "common/small.glsl"
