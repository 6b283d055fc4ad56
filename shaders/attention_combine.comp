// Brings together what the parts of the keys made of a query: a work-group a row.
//
// Of each row and part there are the sums of weighted values, and the score that weights are relative to with their sum.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/elements.glsl"
#include "common/grid.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint QUADS = 32;   // of a row, rounded up to a power of two
layout(constant_id = 2) const uint SPLITS = 64;
layout(constant_id = 3) const uint O_TYPE = 0;
layout(constant_id = 4) const bool O_WIDE = false;

layout(set = 0, binding = 0, std430) readonly buffer Sums { vec4 sums[]; };
layout(set = 0, binding = 0, std430) readonly buffer Weights { vec2 weights[]; };
ELEMENTS_OUT(o, 1, O_TYPE, O_WIDE)

layout(push_constant) uniform Push {
    uint rows;
    uint heads;
    uint tokens;
    uint extent;  // of a row
    uint pitch;   // quads of a row's sums
    uint w_first;
    uint o_first;
    uint o_batch;
    uint o_head;
    uint o_row;
} push;

const uint SLICES = THREADS / QUADS;
const float LOWEST = -3.4028234663852886e38;

shared float top[SPLITS], share[SPLITS], total[SPLITS];
shared vec4 parts[THREADS];

void main() {
    uint id = gl_LocalInvocationID.x, row = group_number();
    if (row >= push.rows) {
        return;
    }
    for (uint i = id; i < SPLITS; i += THREADS) {
        vec2 found = weights[push.w_first + row * SPLITS + i];
        top[i] = found.x;
        total[i] = found.y;
    }
    barrier();
    float highest = LOWEST;
    for (uint i = 0u; i < SPLITS; i++) highest = max(highest, total[i] == 0.0 ? LOWEST : top[i]);
    for (uint i = id; i < SPLITS; i += THREADS) share[i] = total[i] == 0.0 ? 0.0 : exp(top[i] - highest);
    barrier();
    uint quad = id % QUADS;
    vec4 sum = vec4(0.0);
    if (quad < push.pitch) {
        for (uint i = id / QUADS; i < SPLITS; i += SLICES) {
            if (share[i] != 0.0) sum += share[i] * sums[(row * SPLITS + i) * push.pitch + quad];
        }
    }
    parts[id] = sum;
    barrier();
    if (id < QUADS && quad * 4u < push.extent) {
        for (uint i = 1u; i < SLICES; i++) sum += parts[i * QUADS + quad];
        float all = 0.0;
        bool lost = false;
        for (uint i = 0u; i < SPLITS; i++) {
            lost = lost || (floatBitsToUint(total[i]) & 0x7FFFFFFFu) > 0x7F800000u;
            all += share[i] * total[i];
        }
        uint batch = row / push.tokens / push.heads, head = row / push.tokens % push.heads, token = row % push.tokens;
        uint at = push.o_first + batch * push.o_batch + head * push.o_head + token * push.o_row + quad * 4u;
        vec4 made = lost ? vec4(uintBitsToFloat(0x7FC00000u)) : all > 0.0 ? sum / all : vec4(0.0);
        o_store4(at, push.extent - quad * 4u, o_pack4(floatBitsToUint(made)));
    }
}
