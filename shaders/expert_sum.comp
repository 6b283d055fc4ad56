// Adds up the results of a token's experts, each by its weight, in the order in which the experts were taken; those of
// experts that this device has not are left out.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/elements.glsl"
#include "common/grid.glsl"

layout(constant_id = 0) const uint A_TYPE = 0;
layout(constant_id = 1) const bool A_WIDE = false;
layout(constant_id = 2) const bool O_WIDE = false;

layout(local_size_x = 256) in;
ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
ELEMENTS_OUT(o, 1, 0, O_WIDE)
layout(set = 0, binding = 2, std430) readonly buffer Choice { uint choice[]; };

layout(push_constant) uniform Push {
    uint rows;
    uint columns;
    uint each;     // experts that a token takes
    uint first;    // expert that this device has
    uint experts;  // that it has
    uint a_first;
    uint o_first;
    uint choice_first;
} push;

void main() {
    uint quads = (push.columns + 3u) / 4u, i = group_number() * 256u + gl_LocalInvocationID.x;
    uint row = i / quads, column = i % quads * 4u;
    if (row >= push.rows) return;
    uint n = min(push.columns - column, 4u), weights = push.choice_first + push.rows * push.each;
    vec4 sum = vec4(0.0);
    for (uint j = 0u; j < push.each; j++) {
        uint pair = row * push.each + j;
        if (choice[push.choice_first + pair] - push.first < push.experts) {
            sum += uintBitsToFloat(choice[weights + pair]) * a_at4(push.a_first + pair * push.columns + column, n);
        }
    }
    o_store4(push.o_first + row * push.columns + column, n, floatBitsToUint(sum));
}
