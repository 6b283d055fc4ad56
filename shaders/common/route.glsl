// Which experts a token takes, and what their results are weighed by: of a row of logits the largest, the first ones of
// equals, and their shares of the softmax. An expert's place is how many come before it. A work-group of 128 takes a row.
//
// The caller defines CHOICE_BINDING and `logit`, and push has experts, each, rows and choice_first.
#ifndef VKPAR_ROUTE_GLSL
#define VKPAR_ROUTE_GLSL

const uint MOST = 512u;

layout(set = 0, binding = CHOICE_BINDING, std430) writeonly buffer Choice { uint choice[]; };  // numbers of all rows, then shares

uint logit(uint row, uint e);

shared uint keys[MOST];
shared float values[MOST];
shared uint taken[MOST];

// Stores the choice of a row; `shares`: of those that are taken, which add up to 1, not of all.
void route(uint row, bool shares) {
    uint lane = gl_LocalInvocationID.x;
    for (uint e = lane; e < push.experts; e += 128u) {
        uint raw = logit(row, e);
        uint key = raw == 0x80000000u ? 0u : raw;  // zeros are equal
        key ^= (key >> 31) != 0u ? 0xFFFFFFFFu : 0x80000000u;
        keys[e] = (raw & 0x7FFFFFFFu) > 0x7F800000u ? 0u : key;  // NaN comes last
        values[e] = uintBitsToFloat(raw);
    }
    barrier();
    for (uint e = lane; e < push.experts; e += 128u) {
        uint key = keys[e], before = 0u;
        for (uint other = 0u; other < push.experts; other++) {
            if (keys[other] > key || (keys[other] == key && other < e)) before++;
        }
        if (before < push.each) taken[before] = e;
    }
    barrier();
    float most = values[taken[0]], sum = 0.0;
    if (shares) {
        for (uint j = 0u; j < push.each; j++) sum += exp(values[taken[j]] - most);
    } else {
        for (uint e = 0u; e < push.experts; e++) sum += exp(values[e] - most);
    }
    for (uint j = lane; j < push.each; j += 128u) {
        uint at = push.choice_first + row * push.each + j;
        choice[at] = taken[j];
        choice[at + push.rows * push.each] = floatBitsToUint(exp(values[taken[j]] - most) / sum);
    }
}

#endif
