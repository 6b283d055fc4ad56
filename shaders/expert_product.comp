// Products of rows by the matrices of their experts, floats.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/expert_product.glsl"

void main() {
    expert_product();
}
