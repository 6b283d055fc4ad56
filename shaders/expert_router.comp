// Which experts few tokens take: a work-group makes the product of a row, or of its norm, by an expert's row of the router's
// matrix; the last one takes the largest of these logits, see common/route.glsl.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "common/elements.glsl"
#include "common/grid.glsl"

layout(constant_id = 0) const bool NORMED = true;  // shares of those that are taken, which add up to 1, not of all
layout(constant_id = 1) const uint A_TYPE = 0;
layout(constant_id = 2) const bool A_WIDE = false;
layout(constant_id = 3) const uint B_TYPE = 0;
layout(constant_id = 4) const bool B_WIDE = false;
layout(constant_id = 5) const bool FOLDED = false;  // a norm is made on the way
layout(constant_id = 6) const uint N_TYPE = 0;
layout(constant_id = 7) const bool N_WIDE = false;
layout(constant_id = 8) const uint SPAN = 32;  // invocations of a subgroup

layout(local_size_x = 128) in;
const uint TEAMS = 128u / SPAN;
const uint AHEAD = 4u;  // fours of each operand that an invocation has on their way

ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
ELEMENTS_IN(b, 1, B_TYPE, B_WIDE)
ELEMENTS_IN(norm, 2, N_TYPE, N_WIDE)
layout(set = 0, binding = 3, std430) coherent buffer Logits { uint logits[]; };

layout(push_constant) uniform Push {
    uint rows;
    uint experts;
    uint each;  // experts that a token takes
    uint k;
    uint a_first;
    uint a_row;
    uint b_first;
    uint norm_first;
    uint logits_first;
    uint choice_first;
    float eps;
} push;

#define COUNTERS 4
#include "common/last_group.glsl"
#define CHOICE_BINDING 5
#include "common/route.glsl"

uint logit(uint row, uint e) {
    return logits[push.logits_first + row * push.experts + e];
}

shared vec2 parts[TEAMS];  // of the product, and of the squares of a row

void make_logit(uint row, uint expert) {
    uint id = gl_LocalInvocationID.x, a_from = push.a_first + row * push.a_row, b_from = push.b_first + expert * push.k;
    float sum = 0.0, squares = 0.0;
    for (uint first = id * 4u; first < push.k; first += 512u * AHEAD) {
        uvec4 x[AHEAD], y[AHEAD], scale[AHEAD];
        [[unroll]] for (uint j = 0u; j < AHEAD; j++) {
            uint at = first + j * 512u, n = push.k > at ? min(push.k - at, 4u) : 0u;
            y[j] = b_packed4(b_from + at, n);
            x[j] = a_packed4(a_from + at, n);
            if (FOLDED) scale[j] = norm_packed4(push.norm_first + at, n);
        }
        [[unroll]] for (uint j = 0u; j < AHEAD; j++) {
            vec4 v = a_unpack4(x[j]), w = b_unpack4(y[j]);
            if (FOLDED) {
                squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
                v *= norm_unpack4(scale[j]);
            }
            sum += (v.x * w.x + v.y * w.y) + (v.z * w.z + v.w * w.w);
        }
    }
    vec2 part = vec2(subgroupAdd(sum), FOLDED ? subgroupAdd(squares) : 0.0);
    if (id % SPAN == 0u) parts[id / SPAN] = part;
    barrier();
    if (id == 0u) {
        for (uint team = 1u; team < TEAMS; team++) part += parts[team];
        if (FOLDED) part.x /= sqrt(part.y / float(push.k) + push.eps);
        logits[push.logits_first + row * push.experts + expert] = floatBitsToUint(part.x);
    }
}

void main() {
    uint group = group_number(), row = group / push.experts;
    if (row >= push.rows) return;
    make_logit(row, group - row * push.experts);
    if (comes_last(row, push.experts)) route(row, NORMED);
}
