// float32 <-> float16 / bfloat16, the same bits on every driver: by integers, since Vulkan lets packHalf2x16 round either
// way, and some drivers make NaN of what is too large. Nothing here needs 16-bit types, and nothing branches: selects
// are much cheaper, on CPU drivers too.
#ifndef VKPAR_HALFS_GLSL
#define VKPAR_HALFS_GLSL

// Set where the driver's packHalf2x16 was seen to round to nearest even: see DeviceInfo.packs_halves.
layout(constant_id = 2046) const bool PACKS_HALVES = false;

// Bits of a float32 -> bits of a float16: nearest even, overflow to infinity, NaN to 0x7E00. Selections instead of
// branches: drivers without a GPU would run both sides of each.
uint f32_bits_to_f16_bits(uint x) {
    uint a = x & 0x7FFFFFFFu;
    uint normal = (a - 0x38000000u + 0x0FFFu + ((a >> 13) & 1u)) >> 13;
    uint shift = clamp(126u - min(a >> 23, 126u), 14u, 25u);  // a subnormal half's; at 25 all round to zero
    uint m = (a & 0x007FFFFFu) | 0x00800000u;
    uint subnormal = (m + (1u << (shift - 1u)) - 1u + ((m >> shift) & 1u)) >> shift;
    uint half_bits = a >= 0x38800000u ? normal : subnormal;  // 2^-14, the smallest normal half
    half_bits = a >= 0x477FF000u ? 0x7C00u : half_bits;      // 65520, halfway between the largest half and 2^16
    return a > 0x7F800000u ? 0x7E00u : half_bits | ((x >> 16) & 0x8000u);
}

// Bits of two float32 -> two float16 in a word, the first in the low half; each as above.
uint f32_bits_to_f16_word(uvec2 x) {
    uint word;
    if (PACKS_HALVES) {
        uvec2 nan = uvec2(greaterThan(x & 0x7FFFFFFFu, uvec2(0x7F800000u)));
        uint mask = nan.x * 0xFFFFu | nan.y * 0xFFFF0000u;
        word = (packHalf2x16(uintBitsToFloat(x)) & ~mask) | (0x7E007E00u & mask);
    } else {
        word = f32_bits_to_f16_bits(x.x) | (f32_bits_to_f16_bits(x.y) << 16);
    }
    return word;
}

// Bits of a float16 -> bits of the same float32; NaN to 0x7FC00000.
uint f16_bits_to_f32_bits(uint h) {
    uint a = h & 0x7FFFu;
    uint normal = (a << 13) + (a == 0x7C00u ? 0x70000000u : 0x38000000u);
    uint subnormal = floatBitsToUint(float(a) * uintBitsToFloat(0x33800000u));  // exact: a * 2^-24
    uint bits = ((h & 0x8000u) << 16) | (a < 0x0400u ? subnormal : normal);
    return a > 0x7C00u ? 0x7FC00000u : bits;
}

// Bits of a float32 -> bits of a bfloat16: nearest even, overflow to infinity, NaN to 0x7FC0.
uint f32_bits_to_bf16_bits(uint x) {
    uint rounded = (x + 0x7FFFu + ((x >> 16) & 1u)) >> 16;
    return (x & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded;
}

// Bits of a bfloat16 -> bits of the same float32; NaN to 0x7FC00000.
uint bf16_bits_to_f32_bits(uint h) {
    uint bits = (h & 0xFFFFu) << 16;
    return (h & 0x7FFFu) > 0x7F80u ? 0x7FC00000u : bits;
}

uint f32_to_f16_bits(float v) {
    return f32_bits_to_f16_bits(floatBitsToUint(v));
}

uint f32_to_bf16_bits(float v) {
    return f32_bits_to_bf16_bits(floatBitsToUint(v));
}

// Fast ones for arithmetic (a NaN's bits are the driver's choice); `h` has 16 bits.
float f16_bits_to_f32(uint h) {
    return unpackHalf2x16(h).x;
}

float bf16_bits_to_f32(uint h) {
    return uintBitsToFloat(h << 16);
}

// Two values in one word, the first in the low half.
uint f32_pair_to_f16_word(vec2 v) {
    return f32_bits_to_f16_word(floatBitsToUint(v));
}

uint f32_pair_to_bf16_word(vec2 v) {
    return f32_to_bf16_bits(v.x) | (f32_to_bf16_bits(v.y) << 16);
}

vec2 f16_word_to_f32_pair(uint word) {
    return unpackHalf2x16(word);
}

vec2 bf16_word_to_f32_pair(uint word) {
    return uintBitsToFloat(uvec2(word << 16, word & 0xFFFF0000u));
}

#endif
