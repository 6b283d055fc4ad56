// Whole numbers of 8, 16 and 32 bits, and truth values, in buffers of 32-bit words: they are packed, four or two to a
// word, so that nothing needs storage of these sizes. Arithmetic is that of 32 bits; what is stored is its lowest bits.
// An element index counts elements from the start of the binding. Types are specialization constants; see elements.glsl.
#ifndef VKPAR_WHOLE_GLSL
#define VKPAR_WHOLE_GLSL

#include "elements.glsl"

// The codes of vkpar/ops/elementwise/kinds.py, after those of floats.
const uint S16 = 5u;
const uint U8 = 6u;
const uint S8 = 7u;
const uint TRUTH = 8u;  // 8 bits, 0 or 1

// Elements of packed words: of the first one, or of both.
uvec4 split_bytes(uint word) { return (uvec4(word) >> uvec4(0u, 8u, 16u, 24u)) & 0xFFu; }
uvec4 split_signed_bytes(uint word) { return uvec4(ivec4(uvec4(word) << uvec4(24u, 16u, 8u, 0u)) >> 24); }
uvec4 split_signed_words(uvec2 words) {
    return uvec4(ivec4(words.x << 16, words.x, words.y << 16, words.y) >> 16);
}
uint join_bytes(uvec4 v) { return (v.x & 0xFFu) | ((v.y & 0xFFu) << 8) | ((v.z & 0xFFu) << 16) | (v.w << 24); }
uvec2 join_words(uvec4 v) { return uvec2((v.x & 0xFFFFu) | (v.y << 16), (v.z & 0xFFFFu) | (v.w << 16)); }

#define WHOLE_TYPE(NAME, TYPE) \
    const bool NAME##_truth = TYPE == TRUTH; \
    const bool NAME##_byte = TYPE == U8 || TYPE == S8 || NAME##_truth; \
    const bool NAME##_half = TYPE == I16 || TYPE == S16; \
    const bool NAME##_signed = TYPE == S8 || TYPE == S16; \
    uvec4 NAME##_split(uvec2 words) { \
        uvec4 v; \
        if (NAME##_byte && NAME##_signed) { \
            v = split_signed_bytes(words.x); \
        } else if (NAME##_byte) { \
            v = split_bytes(words.x); \
        } else if (NAME##_signed) { \
            v = split_signed_words(words); \
        } else { \
            v = split_words(words); \
        } \
        return v; \
    } \
    uvec2 NAME##_join(uvec4 v) { \
        uvec2 words; \
        if (NAME##_truth) { \
            words = uvec2(join_bytes(min(v, uvec4(1u))), 0u); \
        } else if (NAME##_byte) { \
            words = uvec2(join_bytes(v), 0u); \
        } else { \
            words = join_words(v); \
        } \
        return words; \
    }

// The function of an element, of a buffer that is there.
#define WHOLE_RAW(NAME) \
    uint NAME##_raw(uint i) { \
        uint raw; \
        if (NAME##_byte) { \
            raw = NAME##_split(uvec2(NAME##_word[i >> 2] >> ((i & 3u) << 3), 0u)).x; \
        } else if (NAME##_half) { \
            raw = NAME##_split(uvec2(NAME##_word[i >> 1] >> ((i & 1u) << 4), 0u)).x; \
        } else { \
            raw = NAME##_word[i]; \
        } \
        return raw; \
    }

// The same for writing one element, of which no other invocation writes a neighbour.
#define WHOLE_PUT(NAME) \
    void NAME##_put(uint i, uint value) { \
        if (NAME##_byte) { \
            uint up = (i & 3u) << 3; \
            uint kept = NAME##_word[i >> 2] & ~(0xFFu << up); \
            NAME##_word[i >> 2] = kept | ((NAME##_join(uvec4(value, 0u, 0u, 0u)).x & 0xFFu) << up); \
        } else if (NAME##_half) { \
            uint up = (i & 1u) << 4; \
            NAME##_word[i >> 1] = (NAME##_word[i >> 1] & ~(0xFFFFu << up)) | ((value & 0xFFFFu) << up); \
        } else { \
            NAME##_word[i] = value; \
        } \
    }

// Declares the input NAME at BINDING. TYPE, and WIDE (runs of four begin at a multiple of 4), are constants.
//   uint NAME_raw(i)        element i, as a word
//   uvec4 NAME_four(i, n)   elements i..i+3, of which the first n are read
#define WHOLE_IN(NAME, BINDING, TYPE, WIDE) \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words { uint NAME##_word[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words2 { uvec2 NAME##_word2[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words4 { uvec4 NAME##_word4[]; }; \
    const bool NAME##_wide = WIDE; \
    WHOLE_TYPE(NAME, TYPE) \
    const bool NAME##_wide_byte = NAME##_wide && NAME##_byte; \
    const bool NAME##_wide_half = NAME##_wide && NAME##_half; \
    WHOLE_RAW(NAME) \
    uvec4 NAME##_four(uint i, uint n) { \
        uvec4 v = uvec4(0u); \
        if (NAME##_wide_byte && n > 3u) { \
            v = NAME##_split(uvec2(NAME##_word[i >> 2], 0u)); \
        } else if (NAME##_byte) { \
            uint low = (i & 3u) << 3; \
            uint last = (i & 3u) + n; \
            if (n > 0u) v.x = NAME##_word[i >> 2]; \
            if (last > 4u) v.y = NAME##_word[(i >> 2) + 1u]; \
            v.x = low == 0u ? v.x : (v.x >> low) | (v.y << (32u - low)); \
            v = NAME##_split(v.xy); \
        } else if (NAME##_wide_half && n > 3u) { \
            v = NAME##_split(NAME##_word2[i >> 2]); \
        } else if (NAME##_half) { \
            uint last = (i & 1u) + n; \
            if (n > 0u) v.x = NAME##_word[i >> 1]; \
            if (last > 2u) v.y = NAME##_word[(i >> 1) + 1u]; \
            if (last > 4u) v.z = NAME##_word[(i >> 1) + 2u]; \
            v.xy = (i & 1u) == 0u ? v.xy : (v.xy >> 16) | (v.yz << 16); \
            v = NAME##_split(v.xy); \
        } else if (NAME##_wide && n > 3u) { \
            v = NAME##_word4[i >> 2]; \
        } else { \
            if (n > 0u) v.x = NAME##_word[i]; \
            if (n > 1u) v.y = NAME##_word[i + 1u]; \
            if (n > 2u) v.z = NAME##_word[i + 2u]; \
            if (n > 3u) v.w = NAME##_word[i + 3u]; \
        } \
        return v; \
    }

// Declares the output NAME at BINDING.
//   NAME_store4(i, n, v)   writes the first n of four elements at i, where a word begins; what shares the last one is kept
#define WHOLE_OUT(NAME, BINDING, TYPE, WIDE) \
    layout(set = 0, binding = BINDING, std430) buffer NAME##_Words { uint NAME##_word[]; }; \
    layout(set = 0, binding = BINDING, std430) buffer NAME##_Words2 { uvec2 NAME##_word2[]; }; \
    layout(set = 0, binding = BINDING, std430) buffer NAME##_Words4 { uvec4 NAME##_word4[]; }; \
    const bool NAME##_wide = WIDE; \
    WHOLE_TYPE(NAME, TYPE) \
    const bool NAME##_wide_half = NAME##_wide && NAME##_half; \
    void NAME##_store4(uint i, uint n, uvec4 v) { \
        if (NAME##_byte) { \
            uvec2 packed = NAME##_join(v); \
            if (n < 4u) { \
                uint mask = (1u << (n << 3)) - 1u; \
                packed.x = (packed.x & mask) | (NAME##_word[i >> 2] & ~mask); \
            } \
            if (n > 0u) NAME##_word[i >> 2] = packed.x; \
        } else if (NAME##_wide_half && n > 3u) { \
            NAME##_word2[i >> 2] = NAME##_join(v); \
        } else if (NAME##_half) { \
            uvec2 packed = NAME##_join(v); \
            uint at = i >> 1; \
            if (n == 1u) packed.x = (packed.x & 0xFFFFu) | (NAME##_word[at] & 0xFFFF0000u); \
            if (n == 3u) packed.y = (packed.y & 0xFFFFu) | (NAME##_word[at + 1u] & 0xFFFF0000u); \
            if (n > 0u) NAME##_word[at] = packed.x; \
            if (n > 2u) NAME##_word[at + 1u] = packed.y; \
        } else if (NAME##_wide && n > 3u) { \
            NAME##_word4[i >> 2] = v; \
        } else { \
            if (n > 0u) NAME##_word[i] = v.x; \
            if (n > 1u) NAME##_word[i + 1u] = v.y; \
            if (n > 2u) NAME##_word[i + 2u] = v.z; \
            if (n > 3u) NAME##_word[i + 3u] = v.w; \
        } \
    }

#endif
