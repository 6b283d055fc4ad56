// Copies 16 bytes at a time, 64 an invocation.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/grid.glsl"

layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) readonly buffer Source { uvec4 source[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Target { uvec4 target[]; };
layout(push_constant) uniform Push {
    uint units;  // of 16 bytes
} push;

const uint EACH = 4u;

void main() {
    uint at = group_number() * 256u * EACH + gl_LocalInvocationID.x;
    uvec4 held[EACH];
    [[unroll]] for (uint j = 0u; j < EACH; j++) {
        if (at + j * 256u < push.units) held[j] = source[at + j * 256u];
    }
    [[unroll]] for (uint j = 0u; j < EACH; j++) {
        if (at + j * 256u < push.units) target[at + j * 256u] = held[j];
    }
}
