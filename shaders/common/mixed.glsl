// What quantized.glsl has for the MIXED kinds: KIND_CODE says which one it is.
#ifndef VKPAR_MIXED_GLSL
#define VKPAR_MIXED_GLSL

const bool IS_Q4_1 = KIND_CODE == Q4_1, IS_Q5_0 = KIND_CODE == Q5_0, IS_Q5_K = KIND_CODE == Q5_K, IS_Q6_K = KIND_CODE == Q6_K;
const bool HAS_LEAST = !IS_Q5_0 && !IS_Q6_K;  // something is subtracted from scaled numbers; of the others these are signed
const bool HAS_PAIRS = IS_Q4_1 || KIND_CODE == Q5_1;  // scales are two halves for each chunk

#if DOTS  // where numbers are 4 or 8 times too large, as quantized_dots.glsl says
const uint INNER_BITS = 0x4A000000u;  // 2^21
const float INNER_ZERO = 2097184.0, LESS = 0.125;
#else
const uint INNER_BITS = 0x4B000000u;
const float INNER_ZERO = 8388736.0, LESS = 1.0;
#endif

// In 16 bytes: how far one row of so many chunks is from the next.
uint row_units(uint chunks) {
    return chunks + (IS_Q4_1 ? 0u : IS_Q6_K ? chunks / 8u * 5u : (chunks + 3u) / 4u);
}

// Four codes of a chunk, as bytes: elements 4 i .. 4 i + 3, of its word i modulo 4. `above` are the bits that are not in the
// nibbles.
uint codes4(uint word, uvec2 above, uint i) {
    uint code = (word >> (i & 4u)) & 0x0F0F0F0Fu;
    if (IS_Q6_K) {
        code |= ((above[i >> 2] >> (2u * (i & 3u))) << 4) & 0x30303030u;
    } else if (!IS_Q4_1) {
        code |= ((above.x >> i) << 4) & 0x10101010u;
    }
    return code;
}

// The same as floats: whole numbers, before they are scaled.
vec4 whole4(uint word, uvec2 above, uint i) {
    uint codes = codes4(word, above, i);
    uvec4 bits = uvec4(codes, codes, codes >> 16, codes >> 16) & uvec4(0xFFu, 0xFF00u, 0xFFu, 0xFF00u);
    bits |= uvec4(0x4B000000u, 0x47000000u, 0x4B000000u, 0x47000000u);  // 2^23 and 2^15
    vec2 powers = vec2(8388608.0, 32768.0) + (IS_Q6_K ? 32.0 : IS_Q5_0 ? 16.0 : 0.0);
    return uintBitsToFloat(bits) - powers.xyxy;
}

// Loads what a row of so many chunks, which begins at unit `row`, has behind them for one of these: the bits above.
#define LOAD_ABOVE(WORDS, WORDS2, row, chunks, chunk, above) \
    if (IS_Q6_K) { \
        above = WORDS2[((row) + (chunks)) * 2u + (chunk)]; \
    } else if (!IS_Q4_1) { \
        above.x = WORDS[((row) + (chunks)) * 4u + (chunk)]; \
    }

// The same of scales within blocks: those of two chunks.
#define LOAD_INNER(WORDS, row, chunks, chunk, inner) \
    if (IS_Q6_K) inner = WORDS[((row) + (chunks)) * 4u + 2u * (chunks) + (chunk) / 2u];

// What the scale of a chunk is made of; of Q6_K `bits.y` is the word above.
SCALE_BITS scale_bits(uint chunk) {
    SCALE_BITS bits = SCALE_BITS(0u);
    if (IS_Q5_K) {
        bits = scales_word4[chunk / CHUNKS];
    } else if (HAS_PAIRS) {
        bits.x = scales_word[chunk];
    } else {
        bits.x = scales_word[chunk / (2u * CHUNKS)];
    }
    return bits;
}

// What elements of that chunk are multiplied by, and what is subtracted then; of Q6_K the latter is what elements 16 to 31 are
// multiplied by. The chunk's number may be less by any multiple of 2 CHUNKS.
vec2 chunk_scale(SCALE_BITS bits, uint chunk) {
    vec2 scale;
    if (IS_Q5_K) {
        uvec3 part = bits.yzw >> ((chunk & 7u) << 2);
        uvec2 high = (uvec2(part.z << 4, part.z << 2) & 0x30u) | 0x4B000000u;  // 2^23
        scale = unpackHalf2x16(bits.x) * (uintBitsToFloat((part.xy & 15u) | high) - 8388608.0);
    } else if (HAS_PAIRS) {
        scale = unpackHalf2x16(bits.x) * vec2(1.0, -1.0);
    } else {
        scale = vec2(unpackHalf2x16(bits.x >> ((chunk / CHUNKS & 1u) << 4)).x, 0.0);
        if (IS_Q6_K) {
            uint pair = (bits.y >> ((chunk & 1u) << 4)) ^ 0x8080u;
            uvec2 inner = (uvec2(pair, pair >> 8) & 0xFFu) | INNER_BITS;
            scale = scale.x * (uintBitsToFloat(inner) - INNER_ZERO);
        } else {
            scale *= LESS;
        }
    }
    return scale;
}

// Weights from whole numbers, elements 4 i .. 4 i + 3 of a chunk: rounded once where two numbers make them, else exact but for
// those of Q6_K, which are rounded once.
vec4 scaled(vec4 whole, vec2 scale, uint i) {
    return HAS_LEAST ? fma(whole, vec4(scale.x), vec4(-scale.y)) : whole * (IS_Q6_K && i > 3u ? scale.y : scale.x);
}

#endif
