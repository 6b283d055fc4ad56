// Rows of keys and values stored in a cache at positions that an array holds, or each in a cache of its own; what would
// lie past its end is dropped. Four elements of a row of either an invocation.
// variants: f32: K_TYPE=F32 | f16: K_TYPE=F16 | bf16: K_TYPE=BF16
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/elements.glsl"
#include "common/grid.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C_TYPE = 0;      // of the cache
layout(constant_id = 1) const bool WIDE = false;    // rows of both begin at multiples of 4
layout(constant_id = 2) const uint V_TYPE = 0;
layout(constant_id = 3) const bool BASED = false;   // the first row of a cache is not that of position 0

ELEMENTS_IN(k, 0, K_TYPE, WIDE)
ELEMENTS_IN(v, 1, V_TYPE, WIDE)
layout(set = 0, binding = 2, std430) readonly buffer Positions { uint position[]; };
ELEMENTS_OUT(kc, 3, C_TYPE, true)
ELEMENTS_OUT(vc, 4, C_TYPE, true)
layout(set = 0, binding = 5, std430) buffer Length { uint tokens_held[]; };
layout(set = 0, binding = 6, std430) readonly buffer Bases { uint base[]; };

layout(push_constant) uniform Push {
    uint heads;
    uint tokens;    // that are appended
    uint room;      // tokens of the cache
    uint extent;    // of a row
    uint pitch;     // of a row of the cache, a multiple of 8
    uint each;      // 1 where each token has a position, 0 where they follow the first
    uint p_first;
    uint k_first;
    uint k_head;
    uint k_token;
    uint v_first;
    uint v_head;
    uint v_token;
    uint apart;     // rows of keys from a token's cache to the next one's; 0 where all go to one
    uint b_first;
} push;

// Where a token is stored: not below `room` where that is nowhere.
uint place_of(uint token) {
    uint first = position[push.p_first + token * push.each];
    uint place = max(first, first + token * (1u - push.each));  // past the last number there is none
    return BASED ? place - base[push.b_first + (push.apart > 0u ? token : 0u)] : place;
}

void main() {
    uint fours = push.pitch / 4u;
    uint i = group_number() * 256u + gl_LocalInvocationID.x;
    uint four = i % fours, token = i / fours % push.tokens, head = i / fours / push.tokens;
    if (four == 0u && head == 0u && (push.apart > 0u || token + 1u == push.tokens)) {
        tokens_held[push.apart > 0u ? token : 0u] = min(place_of(token), push.room - 1u) + 1u;
    }
    uint place = head < push.heads ? place_of(token) : push.room;
    if (place < push.room) {
        uint at = four * 4u, n = push.extent - min(at, push.extent);
        uint target = (token * push.apart + head * push.room + place) * push.pitch + at;
        vec4 key = k_at4(push.k_first + head * push.k_head + token * push.k_token + at, n);
        vec4 value = v_at4(push.v_first + head * push.v_head + token * push.v_token + at, n);
        kc_store4(target, 4u, kc_pack4(floatBitsToUint(key)));
        vc_store4(target, 4u, vc_pack4(floatBitsToUint(value)));
    }
}
