// Running sums or products of rows, in chunks of 4,096 elements: a work-group makes what a chunk comes to, or its results.
// Rows of several chunks take three dispatches: what chunks come to, running sums of these, and all results. The order
// of additions depends on the sizes alone.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/grid.glsl"
#include "common/prefix.glsl"

layout(constant_id = 0) const bool FLOATS = true;
layout(constant_id = 1) const bool PRODUCT = false;
layout(constant_id = 2) const uint PHASE = 1u;  // 0: what chunks come to; 1: results; 2: results after other chunks

layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) readonly buffer Elements { uint a[]; };
layout(set = 0, binding = 1, std430) buffer Results { uint o[]; };
layout(set = 0, binding = 2, std430) buffer Totals { uint s[]; };

layout(push_constant) uniform Push {
    uint count;    // elements of a row
    uint rows;
    uint chunks;   // of a row
    uint a_first;  // where elements, results and what chunks come to begin
    uint o_first;
    uint s_first;
} push;

const uint NOTHING = PRODUCT ? (FLOATS ? 0x3F800000u : 1u) : 0u;

uint joined(uint x, uint y) {
    uint made;
    if (FLOATS) {
        float p = uintBitsToFloat(x);
        float q = uintBitsToFloat(y);
        made = floatBitsToUint(PRODUCT ? p * q : p + q);
    } else {
        made = PRODUCT ? x * y : x + y;
    }
    return made;
}

uvec4 all_joined(uvec4 x, uvec4 y) {
    return uvec4(joined(x.x, y.x), joined(x.y, y.y), joined(x.z, y.z), joined(x.w, y.w));
}

// The elements of a four and those before them in it; nothing behind the end of a row.
uvec4 running(uint at, uint first) {
    uvec4 four = uvec4(NOTHING);
    if (at < push.count) four.x = a[first + at];
    if (at + 1u < push.count) four.y = a[first + at + 1u];
    if (at + 2u < push.count) four.z = a[first + at + 2u];
    if (at + 3u < push.count) four.w = a[first + at + 3u];
    four.y = joined(four.x, four.y);
    four.z = joined(four.y, four.z);
    four.w = joined(four.z, four.w);
    return four;
}

void put(uint at, uint first, uint before, uvec4 four) {
    if (at < push.count) o[first + at] = joined(before, four.x);
    if (at + 1u < push.count) o[first + at + 1u] = joined(before, four.y);
    if (at + 2u < push.count) o[first + at + 2u] = joined(before, four.z);
    if (at + 3u < push.count) o[first + at + 3u] = joined(before, four.w);
}

void main() {
    uint group = group_number();
    uint row = group / push.chunks;
    uint chunk = group - row * push.chunks;
    if (row >= push.rows) return;
    uint lane = gl_LocalInvocationID.x;
    uint at = chunk * 4096u + lane * 4u;
    uint first = push.a_first + row * push.count;
    uvec4 q0 = running(at, first);
    uvec4 q1 = running(at + 1024u, first);
    uvec4 q2 = running(at + 2048u, first);
    uvec4 q3 = running(at + 3072u, first);
    PREFIXES(part, uvec4(q0.w, q1.w, q2.w, q3.w), all_joined)
    uvec4 whole = part[255];
    uvec4 before = lane == 0u ? uvec4(NOTHING) : part[max(lane, 1u) - 1u];
    uint t1 = whole.x;
    uint t2 = joined(t1, whole.y);
    uint t3 = joined(t2, whole.z);
    if (PHASE == 0u) {
        if (lane == 0u) s[push.s_first + group] = joined(t3, whole.w);
    } else {
        uint prior = NOTHING;
        if (PHASE == 2u && chunk > 0u) prior = s[push.s_first + group - 1u];
        uint to = push.o_first + row * push.count;
        put(at, to, joined(prior, before.x), q0);
        put(at + 1024u, to, joined(joined(prior, t1), before.y), q1);
        put(at + 2048u, to, joined(joined(prior, t2), before.z), q2);
        put(at + 3072u, to, joined(joined(prior, t3), before.w), q3);
    }
}
