// Which experts tokens take, by rows of logits; see common/route.glsl.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/grid.glsl"

layout(constant_id = 0) const bool NORMED = true;  // shares of those that are taken, which add up to 1, not of all

layout(local_size_x = 128) in;
layout(set = 0, binding = 0, std430) readonly buffer Logits { uint logits[]; };

layout(push_constant) uniform Push {
    uint rows;
    uint experts;
    uint each;  // experts that a token takes
    uint logits_first;
    uint choice_first;
} push;

#define CHOICE_BINDING 1
#include "common/route.glsl"

uint logit(uint row, uint e) {
    return logits[push.logits_first + row * push.experts + e];
}

void main() {
    uint row = group_number();
    if (row < push.rows) route(row, NORMED);
}
