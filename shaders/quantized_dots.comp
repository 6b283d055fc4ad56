// variants of kinds: KIND
// needs: integer_dot
// Products of one row of a by quantised weights, in every form, where bytes are multiplied and added up in one go.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define MOST_ROWS 1
#define MOST_TURNS 1u
#define SUBGROUPS 1
#define DOTS 1
#include "common/quantized_matvec.glsl"

void main() {
    quantized_matvec();
}
