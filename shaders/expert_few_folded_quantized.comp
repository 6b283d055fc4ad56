// variants of kinds: KIND
// Products of few rows by the quantised matrices of an expert, with a norm before them and a gate after them.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define FOLDED
#define NORM_BINDING 7
#define QUANTIZED
#include "common/expert_few.glsl"

void main() {
    expert_few();
}
