// variants of kinds: KIND
// Products of rows by the quantised matrices of their experts.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define QUANTIZED
#include "common/expert_product.glsl"

void main() {
    expert_product();
}
