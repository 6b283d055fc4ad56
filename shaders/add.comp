// out = a + b elementwise, or with b repeated along a's rows (a bias): four elements an invocation, or eight.
// Types are variants, not specialization constants: some CPU drivers run every branch on a constant.
// variants: f32_f32: A_TYPE=F32 B_TYPE=F32 | f32_f16: A_TYPE=F32 B_TYPE=F16 | f32_bf16: A_TYPE=F32 B_TYPE=BF16 | f16_f32: A_TYPE=F16 B_TYPE=F32 | f16_f16: A_TYPE=F16 B_TYPE=F16 TWO | f16_bf16: A_TYPE=F16 B_TYPE=BF16 | bf16_f32: A_TYPE=BF16 B_TYPE=F32 | bf16_f16: A_TYPE=BF16 B_TYPE=F16 | bf16_bf16: A_TYPE=BF16 B_TYPE=BF16 TWO | i32_i32: A_TYPE=I32 B_TYPE=I32
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/elements.glsl"
#include "common/grid.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const bool A_WIDE = false;  // the first element is a multiple of 4
layout(constant_id = 1) const bool B_WIDE = false;  // and with a bias its length and phase too
layout(constant_id = 2) const bool O_WIDE = false;
layout(constant_id = 3) const bool BIAS = false;
layout(constant_id = 5) const uint BLOCKS = 1u;     // of four elements that an invocation adds, one or two
layout(constant_id = 4) const bool WHOLE = false;   // fours are whole: CPU drivers run the code for others, too

const uint O_TYPE = A_TYPE == B_TYPE ? A_TYPE : F32;

ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
ELEMENTS_IN(b, 1, B_TYPE, B_WIDE)
ELEMENTS_OUT(o, 2, O_TYPE, O_WIDE)

const bool INTEGER = A_TYPE == I32;
const bool NARROW_BIAS = BIAS && !B_WIDE;

layout(push_constant) uniform Push {
    uint count;
    uint a_first;
    uint b_first;
    uint o_first;  // even for halves
    uint period;   // the length of the bias
    uint phase;    // where in the bias the first element falls
} push;

uvec4 b_packed_of(uint i, uint n) {
    uint at = push.b_first + i;
    if (BIAS) {
        at = push.b_first + (push.phase + i) % push.period;
    }
    uvec4 packed = uvec4(0u);
    if (NARROW_BIAS) {
        uint end = push.b_first + push.period;
        uvec4 raw = uvec4(0u);
        for (uint j = 0u; j < n; j++) {
            raw[j] = b_raw(at);
            at = at + 1u == end ? push.b_first : at + 1u;
        }
        packed = raw;
        if (b_half) {
            packed.xy = raw.xz | (raw.yw << 16);
        }
    } else {
        packed = b_packed4(at, n);
    }
    return packed;
}

uvec4 sum_of(uvec4 x, uvec4 y) {
    uvec4 sum;
    if (INTEGER) {
        sum = x + y;
    } else {
        sum = o_pack4(floatBitsToUint(a_unpack4(x) + b_unpack4(y)));
    }
    return sum;
}

#ifdef TWO  // halves are few bytes a load: the loads of two blocks go before their stores
void main() {
    uint i = (group_number() * 256u * BLOCKS + gl_LocalInvocationID.x) * 4u;
    uint j = i + 1024u;
    if (i >= push.count) {
        return;
    }
    bool two = BLOCKS > 1u && j < push.count;
    uint n = WHOLE ? 4u : min(push.count - i, 4u);
    uint m = two ? (WHOLE ? 4u : min(push.count - j, 4u)) : 0u;
    uvec4 x = a_packed4(push.a_first + i, n);
    uvec4 y = b_packed_of(i, n);
    uvec4 u;
    uvec4 v;
    if (two) {
        u = a_packed4(push.a_first + j, m);
        v = b_packed_of(j, m);
    }
    o_store4(push.o_first + i, n, sum_of(x, y));
    if (two) {
        o_store4(push.o_first + j, m, sum_of(u, v));
    }
}
#else
void main() {
    uint i = (group_number() * 256u + gl_LocalInvocationID.x) * 4u;
    if (i >= push.count) {
        return;
    }
    uint n = WHOLE ? 4u : min(push.count - i, 4u);
    uvec4 x = a_packed4(push.a_first + i, n);
    uvec4 y = b_packed_of(i, n);
    o_store4(push.o_first + i, n, sum_of(x, y));
}
#endif
