// Which experts a token takes, and what their results are weighed by: of a row of logits the largest, the first ones of
// equals, and their shares of the softmax. An expert's place is how many come before it. A work-group of 128 takes a row.
//
// The caller defines CHOICE_BINDING and `logit`, and push has experts, each, rows and choice_first.
#ifndef VKPAR_ROUTE_GLSL
#define VKPAR_ROUTE_GLSL

const uint MOST = 512u;

layout(set = 0, binding = CHOICE_BINDING, std430) writeonly buffer Choice { uint choice[]; };  // numbers of all rows, then shares

uint logit(uint row, uint e);

shared uvec4 keys[MOST / 4u];
shared float values[MOST];
shared uint taken[MOST];
shared float terms[MOST];

// Stores the choice of a row; `shares`: of those that are taken, which add up to 1, not of all.
void route(uint row, bool shares) {
    uint lane = gl_LocalInvocationID.x, fours = (push.experts + 3u) / 4u;
    for (uint e = lane; e < 4u * fours; e += 128u) {
        uint raw = e < push.experts ? logit(row, e) : 0x7FFFFFFFu;
        uint key = raw == 0x80000000u ? 0u : raw;  // zeros are equal
        key ^= (key >> 31) != 0u ? 0xFFFFFFFFu : 0x80000000u;
        keys[e / 4u][e % 4u] = (raw & 0x7FFFFFFFu) > 0x7F800000u ? 0u : key;  // NaN comes last
        values[e] = uintBitsToFloat(raw);
    }
    barrier();
    for (uint e = lane; e < push.experts; e += 128u) {
        uint key = keys[e / 4u][e % 4u], before = 0u;
        for (uint four = 0u; four < fours; four++) {
            uvec4 other = keys[four], at = 4u * four + uvec4(0u, 1u, 2u, 3u);
            bvec4 more = greaterThan(other, uvec4(key)), same = equal(other, uvec4(key)), first = lessThan(at, uvec4(e));
            [[unroll]] for (uint i = 0u; i < 4u; i++) before += uint(more[i] || (same[i] && first[i]));
        }
        if (before < push.each) taken[before] = e;
    }
    barrier();
    uint count = shares ? push.each : push.experts;
    float most = values[taken[0]], sum = 0.0;
    for (uint j = lane; j < count; j += 128u) terms[j] = exp(values[shares ? taken[j] : j] - most);
    barrier();
    for (uint j = 0u; j < count; j++) sum += terms[j];
    for (uint j = lane; j < push.each; j += 128u) {
        uint at = push.choice_first + row * push.each + j;
        choice[at] = taken[j];
        choice[at + push.rows * push.each] = floatBitsToUint(terms[shares ? j : taken[j]] / sum);
    }
}

#endif
