// float32 <-> float16 / bfloat16 by integer bits, the same on every driver.
// packHalf2x16 is not used: some drivers turn overflow and infinity into NaN. Nothing here needs 16-bit types.
#ifndef VKPAR_HALFS_GLSL
#define VKPAR_HALFS_GLSL

// Bits of a float32 -> bits of a float16: nearest even, overflow to infinity, NaN to 0x7E00.
uint f32_bits_to_f16_bits(uint x) {
    uint sign = (x >> 16) & 0x8000u;
    uint a = x & 0x7FFFFFFFu;
    if (a > 0x7F800000u) {
        return 0x7E00u;
    }
    if (a >= 0x477FF000u) {  // 65520, halfway between the largest half and 2^16
        return sign | 0x7C00u;
    }
    if (a >= 0x38800000u) {  // 2^-14, the smallest normal half
        return sign | ((a - 0x38000000u + 0x0FFFu + ((a >> 13) & 1u)) >> 13);
    }
    if (a < 0x33000000u) {  // below 2^-25, half of the smallest half
        return sign;
    }
    uint shift = 126u - (a >> 23);  // 14..24
    uint m = (a & 0x007FFFFFu) | 0x00800000u;
    uint odd = (m >> shift) & 1u;
    return sign | ((m + (1u << (shift - 1u)) - 1u + odd) >> shift);
}

// Bits of a float16 -> bits of the same float32; NaN to 0x7FC00000.
uint f16_bits_to_f32_bits(uint h) {
    uint sign = (h & 0x8000u) << 16;
    uint a = h & 0x7FFFu;
    if (a > 0x7C00u) {
        return 0x7FC00000u;
    }
    if (a == 0x7C00u) {
        return sign | 0x7F800000u;
    }
    if (a >= 0x0400u) {
        return sign | ((a << 13) + 0x38000000u);
    }
    if (a == 0u) {
        return sign;
    }
    uint top = uint(findMSB(a));  // value = a * 2^-24
    return sign | ((top + 103u) << 23) | ((a << (23u - top)) & 0x007FFFFFu);
}

// Bits of a float32 -> bits of a bfloat16: nearest even, overflow to infinity, NaN to 0x7FC0.
uint f32_bits_to_bf16_bits(uint x) {
    if ((x & 0x7FFFFFFFu) > 0x7F800000u) {
        return 0x7FC0u;
    }
    return (x + 0x7FFFu + ((x >> 16) & 1u)) >> 16;
}

// Bits of a bfloat16 -> bits of the same float32; NaN to 0x7FC00000.
uint bf16_bits_to_f32_bits(uint h) {
    uint a = h & 0x7FFFu;
    return a > 0x7F80u ? 0x7FC00000u : (h & 0xFFFFu) << 16;
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
    return f32_to_f16_bits(v.x) | (f32_to_f16_bits(v.y) << 16);
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
