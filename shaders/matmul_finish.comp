// What follows a product whose kernel could not do it: the sum of its parts of K, in their order, then bias, activation,
// residual and the rounding to the result's type; four elements an invocation. The output may be the one part, or the
// residual.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/elements.glsl"
#include "common/activations.glsl"
#include "common/grid.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint O_TYPE = 0;
layout(constant_id = 1) const bool O_WIDE = false;  // the first element is a multiple of 4, and so on
layout(constant_id = 2) const bool PARTS_WIDE = false;
layout(constant_id = 3) const uint ACTIVATION = 0;
layout(constant_id = 4) const bool HAS_BIAS = false;
layout(constant_id = 5) const uint BIAS_TYPE = 0;
layout(constant_id = 6) const bool HAS_RESIDUAL = false;
layout(constant_id = 7) const uint RESIDUAL_TYPE = 0;
layout(constant_id = 8) const bool RESIDUAL_WIDE = false;

ELEMENTS_IN(part, 0, F32, PARTS_WIDE)
ELEMENTS_IN(bias, 1, BIAS_TYPE, false)
ELEMENTS_IN(residual, 2, RESIDUAL_TYPE, RESIDUAL_WIDE)
ELEMENTS_OUT(o, 3, O_TYPE, O_WIDE)

layout(push_constant) uniform Push {
    uint count;
    uint part_first;
    uint bias_first;
    uint residual_first;
    uint o_first;  // even for halves
    uint parts;    // how many, from 0 up
    uint stride;   // from one to the next
    uint columns;  // after so many the bias begins again
    uint phase;    // the first element's column
} push;

float biased(uint i) {
    return bias_at(push.bias_first + (push.phase + i) % push.columns);
}

void main() {
    uint i = (group_number() * 256u + gl_LocalInvocationID.x) * 4u;
    if (i >= push.count) {
        return;
    }
    uint n = min(push.count - i, 4u);
    vec4 sum = vec4(0.0);
    for (uint p = 0u; p < push.parts; p++) {
        sum += part_at4(push.part_first + p * push.stride + i, n);
    }
    if (HAS_BIAS) {
        sum += vec4(biased(i), biased(i + 1u), biased(i + 2u), biased(i + 3u));
    }
    sum = activated(ACTIVATION, sum);
    if (HAS_RESIDUAL) {
        sum += residual_at4(push.residual_first + i, n);
    }
    o_store4(push.o_first + i, n, o_pack4(floatBitsToUint(sum)));
}
