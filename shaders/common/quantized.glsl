// Quantised weights as vkpar/ops/quantized/weights.py lays them out: chunks of 16 bytes along a row, apart from their scales.
// KIND is one of kinds.glsl. A chunk is half a block of Q8_0, a block of Q4_0, or one of the eight parts of a Q4_K block.
//
// Of a MIXED kind a chunk has the low four bits of 32 weights: bytes, in whose low nibbles elements 0 to 15 lie. Behind all
// chunks of a row lie the bits above: a word for each chunk (of Q6_K two), whose byte b has those of elements 4 i + b, i going
// up from the lowest bit; and then, of Q6_K, a byte for each 16 elements, their scale within the block.
//
// Whole numbers become floats by their bits: a few low bits under the exponent of a power of two, which is subtracted.
// That is exact, and many times as fast as a conversion on GPUs that convert in a narrow unit.
#ifndef VKPAR_QUANTIZED_GLSL
#define VKPAR_QUANTIZED_GLSL

#include "kinds.glsl"

#if KIND == Q8_0
const uint CHUNK = 16u;  // elements
#else
const uint CHUNK = 32u;
#endif
const uint FOURS = CHUNK / 4u;

layout(set = 0, binding = SCALES_BINDING, std430) readonly buffer Scales_Words { uint scales_word[]; };
layout(set = 0, binding = SCALES_BINDING, std430) readonly buffer Scales_Words4 { uvec4 scales_word4[]; };

#if KIND != MIXED
// Four whole numbers of a word: its bytes, each 128 too large, or the nibbles of its low half.
vec4 whole4(uint word) {
#if KIND == Q8_0
    uvec4 bits = uvec4(word, word, word >> 16, word >> 16) & uvec4(0xFFu, 0xFF00u, 0xFFu, 0xFF00u);
    bits |= uvec4(0x4B000000u, 0x47000000u, 0x4B000000u, 0x47000000u);  // 2^23 and 2^15
    return uintBitsToFloat(bits) - vec4(8388736.0, 32896.0, 8388736.0, 32896.0);
#else
    uvec4 bits = uvec4(word) & uvec4(0xFu, 0xF0u, 0xF00u, 0xF000u);
    bits |= uvec4(0x4B000000u, 0x49000000u, 0x47000000u, 0x45000000u);  // 2^23, 2^19, 2^15 and 2^11
#if KIND == Q4_0
    return uintBitsToFloat(bits) - vec4(8388616.0, 524296.0, 32776.0, 2056.0);
#else
    return uintBitsToFloat(bits) - vec4(8388608.0, 524288.0, 32768.0, 2048.0);
#endif
#endif
}

// Elements 4 i .. 4 i + 3 of a chunk, before they are scaled.
vec4 whole_of(uvec4 chunk, uint i) {
#if KIND == Q8_0
    return whole4(chunk[i]);
#else
    return whole4(chunk[i >> 1] >> ((i & 1u) << 4));
#endif
}
#endif

#if KIND == Q4_K || KIND == MIXED
#define SCALE_BITS uvec4
#else
#define SCALE_BITS uint
#endif

// Chunks are numbered by a scale that the binding holds: chunks of a scale times the number of that scale, and on from it.
#if KIND == MIXED
const uint CHUNKS = KIND_CODE == Q5_K || KIND_CODE == Q6_K ? 8u : 1u;  // of a scale
#elif KIND == Q4_K
const uint CHUNKS = 8u;
#elif KIND == Q4_0
const uint CHUNKS = 1u;
#else
const uint CHUNKS = 2u;
#endif

#if KIND == MIXED
#include "mixed.glsl"
#else
// What the scale of a chunk is made of.
SCALE_BITS scale_bits(uint chunk) {
#if KIND == Q4_K
    return scales_word4[chunk / CHUNKS];
#else
    return scales_word[chunk / (2u * CHUNKS)];
#endif
}

// What elements of that chunk are multiplied by, and what is subtracted then; both are exact. The chunk's number may be
// less by any multiple of 2 CHUNKS.
vec2 chunk_scale(SCALE_BITS bits, uint chunk) {
#if KIND == Q4_K
    uvec3 part = bits.yzw >> ((chunk & 7u) << 2);
    uvec2 high = (uvec2(part.z << 4, part.z << 2) & 0x30u) | 0x4B000000u;  // 2^23
    return unpackHalf2x16(bits.x) * (uintBitsToFloat((part.xy & 15u) | high) - 8388608.0);
#else
    return vec2(unpackHalf2x16(bits >> ((chunk / CHUNKS & 1u) << 4)).x, 0.0);
#endif
}

// Weights from whole numbers; of Q4_K rounded once, of the others exact.
vec4 scaled(vec4 whole, vec2 scale) {
#if KIND == Q4_K
    return fma(whole, vec4(scale.x), vec4(-scale.y));
#else
    return whole * scale.x;
#endif
}
#endif

#endif
