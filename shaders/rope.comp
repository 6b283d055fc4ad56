// Pairs of elements of rows turned by angles: position times a frequency. Four elements an invocation.
// variants: f32: X_TYPE=F32 | f16: X_TYPE=F16 | bf16: X_TYPE=BF16
#version 450
#extension GL_GOOGLE_include_directive : require
#define FREQUENCY_BINDING 2
#include "common/elements.glsl"
#include "common/grid.glsl"
#include "common/rotary.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const bool NEOX = false;    // pairs are half the turned elements apart, else side by side
layout(constant_id = 1) const bool Y_FULL = false;  // y is float32, whatever x is

const uint Y_TYPE = Y_FULL ? F32 : X_TYPE;

ELEMENTS_IN(x, 0, X_TYPE, false)
layout(set = 0, binding = 1, std430) readonly buffer Positions { uint position[]; };
ELEMENTS_OUT(y, 3, Y_TYPE, false)

layout(push_constant) uniform Push {
    uint rows;     // of all heads
    uint heads;
    uint tokens;
    uint extent;   // of a row
    uint half_way; // pairs of a row
    uint x_first;
    uint x_batch;
    uint x_head;
    uint x_token;
    uint y_first;  // even for halves, as the steps are
    uint y_batch;
    uint y_head;
    uint y_token;
    uint p_first;
    uint p_batch;
    uint is_signed;
} push;

void main() {
    uint turning = (push.half_way + 1u) / 2u;
    uint units = turning + (push.extent - 2u * push.half_way + 3u) / 4u;
    uint i = group_number() * 256u + gl_LocalInvocationID.x;
    uint row = i / units, unit = i % units;
    if (row >= push.rows) {
        return;
    }
    uint token = row % push.tokens, head = row / push.tokens % push.heads, batch = row / push.tokens / push.heads;
    uint source = push.x_first + batch * push.x_batch + head * push.x_head + token * push.x_token;
    uint target = push.y_first + batch * push.y_batch + head * push.y_head + token * push.y_token;
    if (unit >= turning) {
        uint k = 2u * push.half_way + (unit - turning) * 4u;
        uint n = min(push.extent - k, 4u);
        y_store4(target + k, n, y_pack4(floatBitsToUint(x_at4(source + k, n))));
        return;
    }
    uint pair = 2u * unit;
    uint n = min(push.half_way - pair, 2u);
    uint k = NEOX ? pair : 2u * pair, apart = NEOX ? push.half_way : 1u, next = NEOX ? 1u : 2u;
    uint place = position[push.p_first + batch * push.p_batch + token];
    vec2 a = vec2(x_at(source + k), 0.0), b = vec2(x_at(source + k + apart), 0.0);
    vec2 first = turn(pair, place, push.is_signed != 0u), second = vec2(0.0);
    if (n > 1u) {
        a.y = x_at(source + k + next);
        b.y = x_at(source + k + apart + next);
        second = turn(pair + 1u, place, push.is_signed != 0u);
    }
    vec2 c = vec2(first.x, second.x), s = vec2(first.y, second.y);
    vec2 low = a * c - b * s, high = a * s + b * c;
    if (NEOX) {
        y_store4(target + k, n, y_pack4(floatBitsToUint(vec4(low, 0.0, 0.0))));
        y_store4(target + k + apart, n, y_pack4(floatBitsToUint(vec4(high, 0.0, 0.0))));
    } else {
        y_store4(target + k, 2u * n, y_pack4(floatBitsToUint(vec4(low.x, high.x, low.y, high.y))));
    }
}
