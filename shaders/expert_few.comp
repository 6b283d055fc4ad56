// Products of few rows by the floats matrices of all the experts that each takes.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/expert_few.glsl"

void main() {
    expert_few();
}
