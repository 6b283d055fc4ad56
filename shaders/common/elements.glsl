// Elements of any type in buffers of 32-bit words: halves are packed two to a word, so nothing needs 16-bit storage.
// An element index counts elements from the start of the binding.
//
// Types are specialization constants, and every choice between them is a constant at file scope with one exit from
// each function: passed as arguments, some CPU drivers would compile and run all the branches.
#ifndef VKPAR_ELEMENTS_GLSL
#define VKPAR_ELEMENTS_GLSL

#include "halfs.glsl"

// The codes of vkpar/ops/_launch.py.
const uint F32 = 0u;
const uint F16 = 1u;
const uint BF16 = 2u;
const uint I32 = 3u;

uvec4 split_words(uvec2 words) {
    return uvec4(words.x & 0xFFFFu, words.x >> 16, words.y & 0xFFFFu, words.y >> 16);
}

#define ELEMENTS_TYPE(NAME, TYPE) \
    const bool NAME##_f16 = TYPE == F16; \
    const bool NAME##_bf16 = TYPE == BF16; \
    const bool NAME##_half = NAME##_f16 || NAME##_bf16;

// Declares the input NAME at BINDING. TYPE, and WIDE (runs of four begin at a multiple of 4), are constants.
//   uint NAME_raw(i)           the raw bits of element i
//   uvec4 NAME_raw4(i, n)      of elements i..i+3, zero from the n-th on
//   float NAME_decode(raw), vec4 NAME_decode4(raw), float NAME_at(i), vec4 NAME_at4(i, n)    for arithmetic
#define ELEMENTS_IN(NAME, BINDING, TYPE, WIDE) \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words { uint NAME##_word[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words2 { uvec2 NAME##_word2[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words4 { uvec4 NAME##_word4[]; }; \
    ELEMENTS_TYPE(NAME, TYPE) \
    const bool NAME##_wide_half = (WIDE) && NAME##_half; \
    uint NAME##_raw(uint i) { \
        uint raw; \
        if (NAME##_half) { \
            raw = (NAME##_word[i >> 1] >> ((i & 1u) << 4)) & 0xFFFFu; \
        } else { \
            raw = NAME##_word[i]; \
        } \
        return raw; \
    } \
    uvec4 NAME##_raw4(uint i, uint n) { \
        uvec4 raw = uvec4(0u); \
        if (n > 3u) { \
            if (NAME##_wide_half) { \
                raw = split_words(NAME##_word2[i >> 2]); \
            } else if (WIDE) { \
                raw = NAME##_word4[i >> 2]; \
            } else { \
                raw = uvec4(NAME##_raw(i), NAME##_raw(i + 1u), NAME##_raw(i + 2u), NAME##_raw(i + 3u)); \
            } \
        } else { \
            if (n > 0u) raw.x = NAME##_raw(i); \
            if (n > 1u) raw.y = NAME##_raw(i + 1u); \
            if (n > 2u) raw.z = NAME##_raw(i + 2u); \
        } \
        return raw; \
    } \
    float NAME##_decode(uint raw) { \
        float v; \
        if (NAME##_f16) { \
            v = f16_bits_to_f32(raw); \
        } else if (NAME##_bf16) { \
            v = bf16_bits_to_f32(raw); \
        } else { \
            v = uintBitsToFloat(raw); \
        } \
        return v; \
    } \
    vec4 NAME##_decode4(uvec4 raw) { \
        return vec4(NAME##_decode(raw.x), NAME##_decode(raw.y), NAME##_decode(raw.z), NAME##_decode(raw.w)); \
    } \
    float NAME##_at(uint i) { \
        return NAME##_decode(NAME##_raw(i)); \
    } \
    vec4 NAME##_at4(uint i, uint n) { \
        return NAME##_decode4(NAME##_raw4(i, n)); \
    }

// Declares the output NAME at BINDING.
//   NAME_store4(i, n, raw)         writes the raw bits of the first n of four elements at i, which is even for halves; a
//                                  half that shares the last word is kept
//   uvec4 NAME_encode4(bits)       bits of float32 to raw bits, nearest even
#define ELEMENTS_OUT(NAME, BINDING, TYPE, WIDE) \
    layout(set = 0, binding = BINDING, std430) buffer NAME##_Words { uint NAME##_word[]; }; \
    layout(set = 0, binding = BINDING, std430) buffer NAME##_Words2 { uvec2 NAME##_word2[]; }; \
    layout(set = 0, binding = BINDING, std430) buffer NAME##_Words4 { uvec4 NAME##_word4[]; }; \
    ELEMENTS_TYPE(NAME, TYPE) \
    const bool NAME##_wide_half = (WIDE) && NAME##_half; \
    void NAME##_store4(uint i, uint n, uvec4 raw) { \
        if (NAME##_half) { \
            uvec2 pair = uvec2(raw.x | (raw.y << 16), raw.z | (raw.w << 16)); \
            if (NAME##_wide_half && n > 3u) { \
                NAME##_word2[i >> 2] = pair; \
            } else { \
                if (n == 1u) pair.x = (pair.x & 0xFFFFu) | (NAME##_word[i >> 1] & 0xFFFF0000u); \
                if (n == 3u) pair.y = (pair.y & 0xFFFFu) | (NAME##_word[(i >> 1) + 1u] & 0xFFFF0000u); \
                if (n > 0u) NAME##_word[i >> 1] = pair.x; \
                if (n > 2u) NAME##_word[(i >> 1) + 1u] = pair.y; \
            } \
        } else if (WIDE && n > 3u) { \
            NAME##_word4[i >> 2] = raw; \
        } else { \
            if (n > 0u) NAME##_word[i] = raw.x; \
            if (n > 1u) NAME##_word[i + 1u] = raw.y; \
            if (n > 2u) NAME##_word[i + 2u] = raw.z; \
            if (n > 3u) NAME##_word[i + 3u] = raw.w; \
        } \
    } \
    uint NAME##_encode(uint bits) { \
        uint raw; \
        if (NAME##_f16) { \
            raw = f32_bits_to_f16_bits(bits); \
        } else if (NAME##_bf16) { \
            raw = f32_bits_to_bf16_bits(bits); \
        } else { \
            raw = bits; \
        } \
        return raw; \
    } \
    uvec4 NAME##_encode4(uvec4 bits) { \
        return uvec4(NAME##_encode(bits.x), NAME##_encode(bits.y), NAME##_encode(bits.z), NAME##_encode(bits.w)); \
    }

#endif
