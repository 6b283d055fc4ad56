// out[i] = a[i] in another floating-point type, by integer bits: four elements an invocation.
// variants: f32_f16: A_TYPE=F32 O_TYPE=F16 | f32_bf16: A_TYPE=F32 O_TYPE=BF16 | f16_f32: A_TYPE=F16 O_TYPE=F32 | f16_bf16: A_TYPE=F16 O_TYPE=BF16 | bf16_f32: A_TYPE=BF16 O_TYPE=F32 | bf16_f16: A_TYPE=BF16 O_TYPE=F16
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/elements.glsl"
#include "common/grid.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const bool A_WIDE = false;  // the first element is a multiple of 4
layout(constant_id = 1) const bool O_WIDE = false;

ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
ELEMENTS_OUT(o, 1, O_TYPE, O_WIDE)

layout(push_constant) uniform Push {
    uint count;
    uint a_first;
    uint o_first;  // even for halves
} push;

uvec4 to_f32_bits(uvec4 packed) {
    uvec4 bits = packed;
    if (a_half) {
        bits = split_words(packed.xy);
    }
    if (a_f16) {
        bits = uvec4(f16_bits_to_f32_bits(bits.x), f16_bits_to_f32_bits(bits.y), f16_bits_to_f32_bits(bits.z),
                     f16_bits_to_f32_bits(bits.w));
    } else if (a_bf16) {
        bits = uvec4(bf16_bits_to_f32_bits(bits.x), bf16_bits_to_f32_bits(bits.y), bf16_bits_to_f32_bits(bits.z),
                     bf16_bits_to_f32_bits(bits.w));
    }
    return bits;
}

void main() {
    uint i = (group_number() * 256u + gl_LocalInvocationID.x) * 4u;
    if (i >= push.count) {
        return;
    }
    uint n = min(push.count - i, 4u);
    o_store4(push.o_first + i, n, o_pack4(to_f32_bits(a_packed4(push.a_first + i, n))));
}
