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
const uint I16 = 4u;  // words of 16 bits, which are moved alone

// "Packed" are the words that hold four elements: a word each, or a pair of halves in each of x and y.
uvec4 split_words(uvec2 words) {
    return uvec4(words.x & 0xFFFFu, words.x >> 16, words.y & 0xFFFFu, words.y >> 16);
}

// Of four halves that begin in the low (or, when `odd`, the high) part of words.x, the first n; zero for the others.
uvec4 pack_halves(uvec3 words, uint odd, uint n) {
    uvec2 pairs = odd == 0u ? words.xy : (words.xy >> 16) | (words.yz << 16);
    uvec2 kept = uvec2(min(n, 2u), min(n, 4u) - min(n, 2u));
    return uvec4(pairs & uvec2(kept.x == 2u ? 0xFFFFFFFFu : kept.x * 0xFFFFu,
                               kept.y == 2u ? 0xFFFFFFFFu : kept.y * 0xFFFFu), 0u, 0u);
}

#define ELEMENTS_TYPE(NAME, TYPE, WIDE) \
    const bool NAME##_f16 = TYPE == F16; \
    const bool NAME##_bf16 = TYPE == BF16; \
    const bool NAME##_half = NAME##_f16 || NAME##_bf16 || TYPE == I16; \
    const bool NAME##_wide = WIDE; \
    const bool NAME##_wide_half = NAME##_wide && NAME##_half;

// Declares the input NAME at BINDING. TYPE, and WIDE (runs of four begin at a multiple of 4), are constants.
//   uint NAME_raw(i)              the raw bits of element i
//   uvec4 NAME_packed4(i, n)      elements i..i+3, packed; zero from the n-th on. Where four are read at once, branches
//                                 hold loads and nothing that waits for them: several calls are in flight together
//   vec4 NAME_unpack4(packed), float NAME_at(i), vec4 NAME_at4(i, n)    floats, for arithmetic
#define ELEMENTS_IN(NAME, BINDING, TYPE, WIDE) \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words { uint NAME##_word[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words2 { uvec2 NAME##_word2[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words4 { uvec4 NAME##_word4[]; }; \
    ELEMENTS_TYPE(NAME, TYPE, WIDE) \
    uint NAME##_raw(uint i) { \
        uint raw; \
        if (NAME##_half) { \
            raw = (NAME##_word[i >> 1] >> ((i & 1u) << 4)) & 0xFFFFu; \
        } else { \
            raw = NAME##_word[i]; \
        } \
        return raw; \
    } \
    uvec4 NAME##_packed4(uint i, uint n) { \
        uvec4 packed = uvec4(0u); \
        if (NAME##_wide_half && n > 3u) { \
            packed.xy = NAME##_word2[i >> 2]; \
        } else if (NAME##_half) { \
            uint last = (i & 1u) + n; \
            if (n > 0u) packed.x = NAME##_word[i >> 1]; \
            if (last > 2u) packed.y = NAME##_word[(i >> 1) + 1u]; \
            if (last > 4u) packed.z = NAME##_word[(i >> 1) + 2u]; \
            packed = pack_halves(packed.xyz, i & 1u, n); \
        } else if (NAME##_wide && n > 3u) { \
            packed = NAME##_word4[i >> 2]; \
        } else { \
            if (n > 0u) packed.x = NAME##_word[i]; \
            if (n > 1u) packed.y = NAME##_word[i + 1u]; \
            if (n > 2u) packed.z = NAME##_word[i + 2u]; \
            if (n > 3u) packed.w = NAME##_word[i + 3u]; \
        } \
        return packed; \
    } \
    vec4 NAME##_unpack4(uvec4 packed) { \
        vec4 v; \
        if (NAME##_f16) { \
            v = vec4(f16_word_to_f32_pair(packed.x), f16_word_to_f32_pair(packed.y)); \
        } else if (NAME##_bf16) { \
            v = vec4(bf16_word_to_f32_pair(packed.x), bf16_word_to_f32_pair(packed.y)); \
        } else { \
            v = uintBitsToFloat(packed); \
        } \
        return v; \
    } \
    float NAME##_at(uint i) { \
        uint raw = NAME##_raw(i); \
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
    vec4 NAME##_at4(uint i, uint n) { \
        return NAME##_unpack4(NAME##_packed4(i, n)); \
    }

#ifndef OUT_ACCESS
#define OUT_ACCESS  // `coherent` where other work-groups read what one has stored
#endif

// Declares the output NAME at BINDING.
//   uvec4 NAME_pack4(bits)            bits of four float32, rounded to nearest even and packed
//   NAME_store4(i, n, packed)         writes the first n of four elements at i, which is even for halves; a half that
//                                     shares the last word is kept
#define ELEMENTS_OUT(NAME, BINDING, TYPE, WIDE) \
    layout(set = 0, binding = BINDING, std430) OUT_ACCESS buffer NAME##_Words { uint NAME##_word[]; }; \
    layout(set = 0, binding = BINDING, std430) OUT_ACCESS buffer NAME##_Words2 { uvec2 NAME##_word2[]; }; \
    layout(set = 0, binding = BINDING, std430) OUT_ACCESS buffer NAME##_Words4 { uvec4 NAME##_word4[]; }; \
    ELEMENTS_TYPE(NAME, TYPE, WIDE) \
    uvec4 NAME##_pack4(uvec4 bits) { \
        uvec4 packed; \
        if (NAME##_f16) { \
            packed = uvec4(f32_bits_to_f16_word(bits.xy), f32_bits_to_f16_word(bits.zw), 0u, 0u); \
        } else if (NAME##_bf16) { \
            packed = uvec4(f32_bits_to_bf16_bits(bits.x) | (f32_bits_to_bf16_bits(bits.y) << 16), \
                           f32_bits_to_bf16_bits(bits.z) | (f32_bits_to_bf16_bits(bits.w) << 16), 0u, 0u); \
        } else { \
            packed = bits; \
        } \
        return packed; \
    } \
    void NAME##_store4(uint i, uint n, uvec4 packed) { \
        if (NAME##_wide_half && n > 3u) { \
            NAME##_word2[i >> 2] = packed.xy; \
        } else if (NAME##_half) { \
            uint at = i >> 1; \
            if (n == 1u) packed.x = (packed.x & 0xFFFFu) | (NAME##_word[at] & 0xFFFF0000u); \
            if (n == 3u) packed.y = (packed.y & 0xFFFFu) | (NAME##_word[at + 1u] & 0xFFFF0000u); \
            if (n > 0u) NAME##_word[at] = packed.x; \
            if (n > 2u) NAME##_word[at + 1u] = packed.y; \
        } else if (NAME##_wide && n > 3u) { \
            NAME##_word4[i >> 2] = packed; \
        } else { \
            if (n > 0u) NAME##_word[i] = packed.x; \
            if (n > 1u) NAME##_word[i + 1u] = packed.y; \
            if (n > 2u) NAME##_word[i + 2u] = packed.z; \
            if (n > 3u) NAME##_word[i + 3u] = packed.w; \
        } \
    }

#endif
