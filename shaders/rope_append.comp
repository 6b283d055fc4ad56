// Rows of queries, keys and values, one after the other: queries and keys turned by angles, keys and values stored in a
// cache at the positions that they are turned by, or each row in a cache of its own; what would lie past its end is
// dropped. Where it is NORMED, each head of queries and keys is normed before. Four elements an invocation.
// variants: f32: X_TYPE=F32 | f16: X_TYPE=F16 | bf16: X_TYPE=BF16
#version 450
#extension GL_GOOGLE_include_directive : require
#define FREQUENCY_BINDING 2
#include "common/elements.glsl"
#include "common/grid.glsl"
#include "common/rotary.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const bool NEOX = false;    // pairs are half the turned elements apart, else side by side
layout(constant_id = 1) const uint C_TYPE = 0;      // of the cache
layout(constant_id = 2) const bool X_WIDE = false;  // rows of x begin at multiples of 4
layout(constant_id = 3) const bool Q_WIDE = false;
layout(constant_id = 4) const bool BASED = false;   // the first row of a cache is not that of position 0
layout(constant_id = 5) const bool NORMED = false;  // a work-group has whole heads
layout(constant_id = 6) const uint W_TYPE = 0;      // of the norms' weights
layout(constant_id = 7) const bool QW_WIDE = false;
layout(constant_id = 8) const bool KW_WIDE = false;

ELEMENTS_IN(x, 0, X_TYPE, X_WIDE)
layout(set = 0, binding = 1, std430) readonly buffer Positions { uint position[]; };
ELEMENTS_OUT(q, 3, X_TYPE, Q_WIDE)
ELEMENTS_OUT(kc, 4, C_TYPE, true)
ELEMENTS_OUT(vc, 5, C_TYPE, true)
layout(set = 0, binding = 6, std430) buffer Length { uint tokens_held[]; };
layout(set = 0, binding = 7, std430) readonly buffer Bases { uint base[]; };
ELEMENTS_IN(qw, 8, W_TYPE, QW_WIDE)
ELEMENTS_IN(kw, 9, W_TYPE, KW_WIDE)

layout(push_constant) uniform Push {
    uint heads;     // of queries
    uint kv_heads;
    uint tokens;
    uint extent;    // of a head, a multiple of 4
    uint half_way;  // pairs of a head, an even number
    uint room;      // tokens of the cache
    uint pitch;     // of a row of the cache, a multiple of 8
    uint is_signed;
    uint x_first;
    uint x_token;
    uint q_first;
    uint q_head;
    uint q_token;
    uint p_first;
    uint apart;     // rows of keys from a token's cache to the next one's; 0 where all go to one
    uint b_first;
    uint qw_first;  // where the norms' weights begin
    uint kw_first;
    float norm_eps;
} push;

shared float squares[256];

// Where a token is stored: not below `room` where that is nowhere.
uint row_of(uint token) {
    uint place = position[push.p_first + token];
    return BASED ? place - base[push.b_first + (push.apart > 0u ? token : 0u)] : place;
}

// Where the four elements of a unit lie in their head: the first two, and the others.
uvec2 places(uint unit) {
    bool apart = NEOX && unit < push.half_way / 2u;
    uint k = (apart ? 2u : 4u) * unit;
    if (NEOX && !apart) k = 2u * push.half_way + (unit - push.half_way / 2u) * 4u;
    return uvec2(k, k + (apart ? push.half_way : 2u));
}

vec4 turned(vec4 x, uint unit, uint place) {
    if (unit < push.half_way / 2u) {
        vec2 a = NEOX ? x.xy : x.xz, b = NEOX ? x.zw : x.yw;
        vec2 first = turn(2u * unit, place, push.is_signed != 0u);
        vec2 second = turn(2u * unit + 1u, place, push.is_signed != 0u);
        vec2 c = vec2(first.x, second.x), s = vec2(first.y, second.y);
        vec2 low = a * c - b * s, high = a * s + b * c;
        x = NEOX ? vec4(low, high) : vec4(low.x, high.x, low.y, high.y);
    }
    return x;
}

// Stores two and two elements, side by side or apart; keys and queries were rounded to the type of x before.
#define STORE(NAME, TARGET, AT, V) \
    if (AT.y == AT.x + 2u) { \
        NAME##_store4(TARGET + AT.x, 4u, NAME##_pack4(floatBitsToUint(V))); \
    } else { \
        NAME##_store4(TARGET + AT.x, 2u, NAME##_pack4(floatBitsToUint(vec4(V.xy, 0.0, 0.0)))); \
        NAME##_store4(TARGET + AT.y, 2u, NAME##_pack4(floatBitsToUint(vec4(V.zw, 0.0, 0.0)))); \
    }

// Loads two and two elements, side by side or apart.
#define LOAD(NAME, SOURCE, AT, V) \
    if (AT.y == AT.x + 2u) { \
        V = NAME##_at4(SOURCE + AT.x, 4u); \
    } else { \
        V = vec4(NAME##_at4(SOURCE + AT.x, 2u).xy, NAME##_at4(SOURCE + AT.y, 2u).xy); \
    }

// What a head is multiplied by besides the weights: one over the root of the mean of its squares.
float factor_of(vec4 x, uint units) {
    uint id = gl_LocalInvocationID.x, first = id / units * units;
    squares[id] = (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
    barrier();
    float sum = 0.0;
    for (uint j = 0u; j < units; j++) sum += squares[first + j];
    return 1.0 / sqrt(sum / float(push.extent) + push.norm_eps);
}

void main() {
    uint units = push.extent / 4u;
    uint i = group_number() * 256u + gl_LocalInvocationID.x;
    uint unit = i % units, token = i / units % push.tokens, head = i / units / push.tokens;
    uint keys = push.heads, values = push.heads + push.kv_heads;
    if (unit == 0u && head == 0u && (push.apart > 0u || token + 1u == push.tokens)) {
        tokens_held[push.apart > 0u ? token : 0u] = min(row_of(token), push.room - 1u) + 1u;
    }
    bool there = head < values + push.kv_heads;
    if (!there) head = 0u;
    uint place = position[push.p_first + token], source = push.x_first + token * push.x_token + head * push.extent;
    uvec2 at = head < values ? places(unit) : uvec2(4u * unit, 4u * unit + 2u);
    vec4 x, weights = vec4(1.0);
    LOAD(x, source, at, x)
    if (NORMED) {
        float factor = factor_of(x, units);
        if (head < keys) {
            LOAD(qw, push.qw_first, at, weights)
        } else if (head < values) {
            LOAD(kw, push.kw_first, at, weights)
        }
        if (head < values) x *= factor * weights;
    }
    if (!there) return;
    if (head < values) {
        x = turned(x, unit, place);
    }
    if (head < keys) {
        uint target = push.q_first + head * push.q_head + token * push.q_token;
        STORE(q, target, at, x)
    } else if (row_of(token) < push.room) {
        uint row = token * push.apart + (head - (head < values ? keys : values)) * push.room + row_of(token);
        if (head < values) {
            x = x_unpack4(q_pack4(floatBitsToUint(x)));
            STORE(kc, row * push.pitch, at, x)
        } else {
            vc_store4(row * push.pitch + at.x, 4u, vc_pack4(floatBitsToUint(x)));
        }
    }
}
