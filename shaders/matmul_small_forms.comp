// variants: rows1: ROWS=1 | rows4: ROWS=4 | rows8: ROWS=8
// float32 matrix products for CPU drivers, transposed and in batches.
#version 450
#extension GL_GOOGLE_include_directive : require
#define FORMS
#include "common/small.glsl"
