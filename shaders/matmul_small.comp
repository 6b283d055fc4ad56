// variants: rows1: ROWS=1 | rows4: ROWS=4 | rows8: ROWS=8
// float32 matrix product for CPU drivers.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/small.glsl"
