#ifndef VKPAR_WHOLE_GLSL
#define VKPAR_WHOLE_GLSL
#ifndef VKPAR_ELEMENTS_GLSL
#define VKPAR_ELEMENTS_GLSL
#ifndef VKPAR_HALFS_GLSL
#define VKPAR_HALFS_GLSL
layout(constant_id = 2046) const bool PACKS_HALVES = false;
uint f32_bits_to_f16_bits(uint x) {
    uint a = x & 0x7FFFFFFFu;
    uint normal = (a - 0x38000000u + 0x0FFFu + ((a >> 13) & 1u)) >> 13;
    uint shift = clamp(126u - min(a >> 23, 126u), 14u, 25u);
    uint m = (a & 0x007FFFFFu) | 0x00800000u;
    uint subnormal = (m + (1u << (shift - 1u)) - 1u + ((m >> shift) & 1u)) >> shift;
    uint half_bits = a >= 0x38800000u ? normal : subnormal;
    half_bits = a >= 0x477FF000u ? 0x7C00u : half_bits;
    return a > 0x7F800000u ? 0x7E00u : half_bits | ((x >> 16) & 0x8000u);
}
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
uint f16_bits_to_f32_bits(uint h) {
    uint a = h & 0x7FFFu;
    uint normal = (a << 13) + (a == 0x7C00u ? 0x70000000u : 0x38000000u);
    uint subnormal = floatBitsToUint(float(a) * uintBitsToFloat(0x33800000u));
    uint bits = ((h & 0x8000u) << 16) | (a < 0x0400u ? subnormal : normal);
    return a > 0x7C00u ? 0x7FC00000u : bits;
}
uint f32_bits_to_bf16_bits(uint x) {
    uint rounded = (x + 0x7FFFu + ((x >> 16) & 1u)) >> 16;
    return (x & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded;
}
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
float f16_bits_to_f32(uint h) {
    return unpackHalf2x16(h).x;
}
float bf16_bits_to_f32(uint h) {
    return uintBitsToFloat(h << 16);
}
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
const uint F32 = 0u;
const uint F16 = 1u;
const uint BF16 = 2u;
const uint I32 = 3u;
const uint I16 = 4u;
uvec4 split_words(uvec2 words) {
    return uvec4(words.x & 0xFFFFu, words.x >> 16, words.y & 0xFFFFu, words.y >> 16);
}
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
#define OUT_ACCESS
#endif
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
const uint S16 = 5u;
const uint U8 = 6u;
const uint S8 = 7u;
const uint TRUTH = 8u;
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
#ifndef VKPAR_GRID_GLSL
#define VKPAR_GRID_GLSL
uint group_number() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}
#endif
//: nan
bool f_nan(float x) { return (floatBitsToUint(x) & 0x7FFFFFFFu) > 0x7F800000u; }
//: isnan
bool f_isnan(float x) { return f_nan(x); }
//: isinf
bool f_isinf(float x) { return (floatBitsToUint(x) & 0x7FFFFFFFu) == 0x7F800000u; }
//: isfinite
bool f_isfinite(float x) { return (floatBitsToUint(x) & 0x7FFFFFFFu) < 0x7F800000u; }
//: equal
bool f_equal(float a, float b) { return a == b && !f_nan(a) && !f_nan(b); }
//: not_equal
bool f_not_equal(float a, float b) { return a != b || f_nan(a) || f_nan(b); }
//: max_float
float f_max_float(float a, float b) { return f_nan(a) ? a : f_nan(b) ? b : max(a, b); }
//: min_float
float f_min_float(float a, float b) { return f_nan(a) ? a : f_nan(b) ? b : min(a, b); }
//: max_int
int f_max_int(int a, int b) { return max(a, b); }
//: min_int
int f_min_int(int a, int b) { return min(a, b); }
//: max_uint
uint f_max_uint(uint a, uint b) { return max(a, b); }
//: min_uint
uint f_min_uint(uint a, uint b) { return min(a, b); }
//: abs_float
float f_abs_float(float x) { return uintBitsToFloat(floatBitsToUint(x) & 0x7FFFFFFFu); }
//: abs_int
int f_abs_int(int x) { return x < 0 ? -x : x; }
//: abs_uint
uint f_abs_uint(uint x) { return x; }
//: sign_float
float f_sign_float(float x) { return f_nan(x) ? x : sign(x); }
//: sign_int
int f_sign_int(int x) { return sign(x); }
//: sign_uint
uint f_sign_uint(uint x) { return min(x, 1u); }
//: relu_float
float f_relu_float(float x) { return floatBitsToUint(x) - 0x80000000u <= 0x7F800000u ? 0.0 : x; }
//: relu_int
int f_relu_int(int x) { return max(x, 0); }
//: relu_uint
uint f_relu_uint(uint x) { return x; }
//: float_of_uint
float f_float_of_uint(uint x) {
    precise float y = float(x >> 16) * 65536.0 + float(x & 0xFFFFu);
    return y;
}
//: int_of_float
int f_int_of_float(float x) {
    int inside = int(clamp(f_nan(x) ? 0.0 : x, -2147483648.0, 2147483520.0));
    return x >= 2147483648.0 ? 0x7FFFFFFF : inside;
}
//: uint_of_float
uint f_uint_of_float(float x) {
    uint inside = uint(clamp(f_nan(x) ? 0.0 : x, 0.0, 4294967040.0));
    return x >= 4294967296.0 ? 0xFFFFFFFFu : inside;
}
//: floor_divide_int
int f_floor_divide_int(int a, int b) {
    int divisor = b == 0 || b == -1 ? 1 : b;
    int q = a / divisor;
    int r = a - q * divisor;
    q -= r != 0 && (r < 0) != (divisor < 0) ? 1 : 0;
    return b == 0 ? 0 : b == -1 ? -a : q;
}
//: modulo_int
int f_modulo_int(int a, int b) { return b == 0 ? 0 : a - f_floor_divide_int(a, b) * b; }
//: floor_divide_uint
uint f_floor_divide_uint(uint a, uint b) { return b == 0u ? 0u : a / max(b, 1u); }
//: modulo_uint
uint f_modulo_uint(uint a, uint b) { return b == 0u ? 0u : a % max(b, 1u); }
//: size_bits
uint f_size_bits(float x) { return floatBitsToUint(x) & 0x7FFFFFFFu; }
//: whole_of
uint f_whole_of(uint size) {
    return size < 0x800000u ? size << (23 - findMSB(size | 1u)) : (size & 0x7FFFFFu) | 0x800000u;
}
//: power_of
int f_power_of(uint size) { return size < 0x800000u ? findMSB(size | 1u) - 172 : int(size >> 23) - 150; }
//: long_division
uint f_long_division(uint a, uint b, out uint whole, out uint lost, out bool exact) {
    uint by = f_whole_of(b);
    uint rest = f_whole_of(a);
    whole = rest / by;
    rest -= whole * by;
    lost = 0u;
    exact = true;
    for (int left = f_power_of(a) - f_power_of(b); left > 0; left -= 8) {
        uint bits = uint(min(left, 8));
        rest <<= bits;
        uint digits = rest / by;
        rest -= digits * by;
        bool room = whole < 0x1000000u;
        exact = exact && (room || digits == 0u);
        whole = room ? (whole << bits) | digits : whole;
        lost += room ? 0u : bits;
    }
    exact = exact && rest == 0u;
    return rest;
}
//: nearest_float
float f_nearest_float(uint whole, uint power, bool exact) {
    uint high = uint(findMSB(whole));
    uint drop = high - 23u;
    uint kept = whole >> drop;
    uint half_unit = 1u << (drop - 1u);
    uint dropped = whole - (kept << drop);
    kept += dropped > half_unit || (dropped == half_unit && (!exact || (kept & 1u) != 0u)) ? 1u : 0u;
    return uintBitsToFloat(min(((high + power + 126u) << 23) + kept, 0x7F800000u));
}
//: floor_divide_float
float f_floor_divide_float(float a, float b) {
    uint x = f_size_bits(a);
    uint y = f_size_bits(b);
    uint sign_bit = (floatBitsToUint(a) ^ floatBitsToUint(b)) & 0x80000000u;
    uint whole = 0u;
    uint lost = 0u;
    bool exact = x == 0u;
    if (x >= y && y != 0u && x < 0x7F800000u) f_long_division(x, y, whole, lost, exact);
    float made = float(whole + (sign_bit != 0u && !exact ? 1u : 0u));
    if (whole >= 0x1000000u) made = f_nearest_float(whole, lost, exact);
    made = y == 0u ? uintBitsToFloat(0x7F800000u) : made;
    bool none = x >= 0x7F800000u ? y != 0u || x != 0x7F800000u : y > 0x7F800000u || (x | y) == 0u;
    return uintBitsToFloat(none ? 0x7FC00000u : floatBitsToUint(made) | sign_bit);
}
//: modulo_float
float f_modulo_float(float a, float b) {
    uint x = f_size_bits(a);
    uint y = f_size_bits(b);
    uint sign_bit = floatBitsToUint(b) & 0x80000000u;
    bool apart = ((floatBitsToUint(a) ^ floatBitsToUint(b)) >> 31) != 0u;
    precise float near = apart ? a + b : a;
    near = x == 0u ? uintBitsToFloat(sign_bit) : near;
    if (x < y) return y > 0x7F800000u ? b : near;
    if (y == 0u || x >= 0x7F800000u) return uintBitsToFloat(0x7FC00000u);
    uint whole, lost;
    bool exact;
    uint rest = f_long_division(x, y, whole, lost, exact);
    rest = apart && rest != 0u ? f_whole_of(y) - rest : rest;
    int shift = f_power_of(y) + 149;
    int up = 23 - findMSB(rest | 1u);
    int power = shift - up + 1;
    uint bits = power > 0 ? (uint(power) << 23) + ((rest << up) & 0x7FFFFFu) : shift > 0 ? rest << shift : rest >> -shift;
    return uintBitsToFloat((rest == 0u ? 0u : bits) | sign_bit);
}
//: shift_left_int
int f_shift_left_int(int a, int b) { return uint(b) > 31u ? 0 : a << (b & 31); }
//: shift_left_uint
uint f_shift_left_uint(uint a, uint b) { return b > 31u ? 0u : a << (b & 31u); }
//: shift_right_int
int f_shift_right_int(int a, int b) { return a >> min(uint(b), 31u); }
//: shift_right_uint
uint f_shift_right_uint(uint a, uint b) { return b > 31u ? 0u : a >> (b & 31u); }
//: power_float
float f_power_float(float x, uint n) {
    float made = 1.0;
    for (uint turn = 0u; turn < 5u; turn++) {
        made = (n & 1u) != 0u ? made * x : made;
        x *= x;
        n >>= 1;
    }
    return made;
}
//: power_int
int f_power_int(int x, uint n) {
    int made = 1;
    for (uint turn = 0u; turn < 5u; turn++) {
        made = (n & 1u) != 0u ? made * x : made;
        x *= x;
        n >>= 1;
    }
    return made;
}
//: power_uint
uint f_power_uint(uint x, uint n) {
    uint made = 1u;
    for (uint turn = 0u; turn < 5u; turn++) {
        made = (n & 1u) != 0u ? made * x : made;
        x *= x;
        n >>= 1;
    }
    return made;
}
//: floor
float f_floor(float x) { return floor(x); }
//: ceil
float f_ceil(float x) { return ceil(x); }
//: round
float f_round(float x) { return roundEven(x); }
//: trunc
float f_trunc(float x) { return trunc(x); }
//: sqrt
float f_sqrt(float x) { return sqrt(x); }
//: rsqrt
float f_rsqrt(float x) { return inversesqrt(x); }
//: exp2
float f_exp2(float x) {
    float inside = exp2(clamp(x, -160.0, 127.99999));
    return f_nan(x) ? x : x >= 128.0 ? uintBitsToFloat(0x7F800000u) : x < -160.0 ? 0.0 : inside;
}
//: exp
float f_exp(float x) {
    float inside = exp(clamp(x, -110.0, 88.72283));
    return f_nan(x) ? x : x > 88.72283 ? uintBitsToFloat(0x7F800000u) : x < -110.0 ? 0.0 : inside;
}
//: log1p_near
float f_log1p_near(float x) {
    float s = x / (2.0 + x);
    float z = s * s;
    return 2.0 * s + 2.0 * s * z * (0.33333333 + z * (0.2 + z * (0.14285714 + z * 0.11111111)));
}
//: log
float f_log(float x) {
    float far = log(clamp(x, 1.1754944e-38, 3.4028235e38));
    float y = abs(x - 1.0) < 0.25 ? f_log1p_near(x - 1.0) : far;
    y = x == uintBitsToFloat(0x7F800000u) ? x : y;
    y = x <= 0.0 ? uintBitsToFloat(x == 0.0 ? 0xFF800000u : 0x7FC00000u) : y;
    return f_nan(x) ? x : y;
}
//: log2
float f_log2(float x) {
    float far = log2(clamp(x, 1.1754944e-38, 3.4028235e38));
    float y = abs(x - 1.0) < 0.25 ? 1.4426950 * f_log1p_near(x - 1.0) : far;
    y = x == uintBitsToFloat(0x7F800000u) ? x : y;
    y = x <= 0.0 ? uintBitsToFloat(x == 0.0 ? 0xFF800000u : 0x7FC00000u) : y;
    return f_nan(x) ? x : y;
}
//: log1p
float f_log1p(float x) { return abs(x) < 0.25 ? f_log1p_near(x) : f_log(1.0 + x); }
//: expm1
float f_expm1(float x) {
    float near = x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * (0.0083333333 + x * (0.0013888889
        + x * (1.9841270e-4 + x * 2.4801587e-5)))))));
    return abs(x) < 0.5 ? near : f_exp(x) - 1.0;
}
//: pow
float f_pow(float x, float y) {
    float size = f_abs_float(x);
    float infinity = uintBitsToFloat(0x7F800000u);
    float made = f_exp2(y * f_log2(size));
    made = mix(made, 1.0, size == 1.0);
    bool odd = fract(min(abs(y), 16777216.0) * 0.5) == 0.5;
    made = mix(made, -made, all(bvec2(odd, (floatBitsToUint(x) >> 31) != 0u)));
    made = mix(made, uintBitsToFloat(0x7FC00000u), all(bvec3(x < 0.0, floor(y) != y, size < infinity)));
    made = mix(mix(made, y, f_nan(y)), x, f_nan(x));
    return mix(made, 1.0, any(bvec2(y == 0.0, x == 1.0)));
}
//: tanh
float f_tanh(float x) {
    float z = x * x;
    float near = x * (1.0 + z * (-0.33333333 + z * (0.13333333 + z * (-0.053968254 + z * 0.021869489))));
    float far = 1.0 - 2.0 / (f_exp(2.0 * abs(x)) + 1.0);
    return abs(x) < 0.25 ? near : f_nan(x) ? x : x < 0.0 ? -far : far;
}
//: sigmoid
float f_sigmoid(float x) { return 1.0 / (1.0 + f_exp(-x)); }
//: silu
float f_silu(float x) { return x / (1.0 + f_exp(-x)); }
//: erfc
float f_erfc(float z) {
    float t = 1.0 / (1.0 + 0.5 * z);
    float p = t * (1.48851587 + t * (-0.82215223 + t * 0.17087277));
    p = t * (0.09678418 + t * (-0.18628806 + t * (0.27886807 + t * (-1.13520398 + p))));
    return t * f_exp(-z * z - 1.26551223 + t * (1.00002368 + t * (0.37409196 + p)));
}
//: erf
float f_erf(float x) {
    float z = x * x;
    float near = x * (1.12837917 + z * (-0.376126389 + z * (0.112837917 + z * (-0.0268661706 + z * (0.00522397763
        + z * (-0.000854832701 + z * 0.000120553329))))));
    float far = 1.0 - f_erfc(abs(x));
    return abs(x) < 0.5 ? near : f_nan(x) ? x : x < 0.0 ? -far : far;
}
//: gelu
float f_gelu(float x) {
    float tail = f_erfc(0.70710678 * abs(x));
    return 0.5 * x * (x < 0.0 ? tail : 2.0 - tail);
}
//: gelu_tanh
float f_gelu_tanh(float x) { return x * f_sigmoid(1.5957691 * (x + 0.044715 * x * x * x)); }
//: turned
float f_turned(float x, float k) {
    precise float r = fma(-k, 1.5703125, x);
    r = fma(-k, 4.837512969970703125e-4, r);
    r = fma(-k, 7.54978995489188216e-8, r);
    return r;
}
//: wave
float f_wave(float x, int quarter) {
    float k = roundEven(x * 0.63661977);
    float r = f_turned(x, k);
    float z = r * r;
    float s = r + r * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4));
    float c = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5));
    int q = int(clamp(k, -1e9, 1e9)) + quarter;
    float made = (q & 1) != 0 ? c : s;
    made = (q & 2) != 0 ? -made : made;
    return (floatBitsToUint(x) & 0x7FFFFFFFu) >= 0x7F800000u ? uintBitsToFloat(0x7FC00000u) : made;
}
//: sin
float f_sin(float x) { return f_wave(x, 0); }
//: cos
float f_cos(float x) { return f_wave(x, 1); }
//: tan
float f_tan(float x) { return f_wave(x, 0) / f_wave(x, 1); }
//: arctan_of
float f_arctan_of(float x) {
    bool far = x > 2.4142135;
    bool middle = x > 0.41421357 && !far;
    float t = far ? -1.0 / min(x, 8.5e37) : middle ? (x - 1.0) / (x + 1.0) : x;
    float z = t * t;
    float y = t + t * z * (-0.333329491539 + z * (0.199777106478 + z * (-0.138776856032 + z * 0.0805374449538)));
    return y + (far ? 1.5707964 : middle ? 0.78539816 : 0.0);
}
//: arctan
float f_arctan(float x) {
    float y = f_arctan_of(f_nan(x) ? 0.0 : abs(x));
    return f_nan(x) ? x : uintBitsToFloat(floatBitsToUint(y) | (floatBitsToUint(x) & 0x80000000u));
}
//: arctan2
float f_arctan2(float y, float x) {
    uint one = floatBitsToUint(y) & 0x7FFFFFFFu;
    uint other = floatBitsToUint(x) & 0x7FFFFFFFu;
    uint big = max(one, other);
    uint small = min(one, other);
    float unit = big >= 0x7D800000u ? 0.0625 : 1.0;
    float t = uintBitsToFloat(small) * unit / (uintBitsToFloat(big) * unit);
    t = big == 0u ? 0.0 : big != 0x7F800000u ? t : small == big ? 1.0 : 0.0;
    float r = f_arctan_of(big > 0x7F800000u ? 0.0 : t);
    r = one > other ? 1.5707964 - r : r;
    r = (floatBitsToUint(x) >> 31) != 0u ? 3.1415927 - r : r;
    uint made = floatBitsToUint(r) | (floatBitsToUint(y) & 0x80000000u);
    return uintBitsToFloat(big > 0x7F800000u ? 0x7FC00000u : made);
}
//: arcsin_near
float f_arcsin_near(float z) {
    return 1.0 + z * (0.16666752422 + z * (0.074953002686 + z * (0.045470025998 + z * (0.024181311049
        + z * 0.042163199048))));
}
//: arcsin
float f_arcsin(float x) {
    float a = min(f_nan(x) ? 0.0 : abs(x), 1.0);
    float z = a > 0.5 ? 0.5 * (1.0 - a) : a * a;
    float root = a > 0.5 ? sqrt(z) : a;
    float y = root * f_arcsin_near(z);
    y = a > 0.5 ? 1.5707964 - 2.0 * y : y;
    y = uintBitsToFloat(floatBitsToUint(y) | (floatBitsToUint(x) & 0x80000000u));
    return (floatBitsToUint(x) & 0x7FFFFFFFu) > 0x3F800000u ? uintBitsToFloat(0x7FC00000u) : y;
}
//: arccos
float f_arccos(float x) {
    float a = min(f_nan(x) ? 0.0 : abs(x), 1.0);
    float z = a > 0.5 ? 0.5 * (1.0 - a) : a * a;
    float y = (a > 0.5 ? sqrt(z) : x) * f_arcsin_near(z);
    y = a <= 0.5 ? 1.5707964 - y : x > 0.0 ? 2.0 * y : 3.1415927 - 2.0 * y;
    return (floatBitsToUint(x) & 0x7FFFFFFFu) > 0x3F800000u ? uintBitsToFloat(0x7FC00000u) : y;
}
//: half_exp
float f_half_exp(float x) {
    float root = f_exp(0.5 * x);
    return 0.5 * root * root;
}
//: sinh
float f_sinh(float x) {
    float z = x * x;
    float near = x * (1.0 + z * (0.16666667 + z * (0.0083333333 + z * (1.9841270e-4 + z * 2.7557319e-6))));
    float half_of = f_half_exp(abs(x));
    float far = half_of - (abs(x) < 12.0 ? 0.25 / half_of : 0.0);
    return abs(x) < 1.0 ? near : f_nan(x) ? x : x < 0.0 ? -far : far;
}
//: cosh
float f_cosh(float x) {
    float half_of = f_half_exp(abs(x));
    return f_nan(x) ? x : half_of + (abs(x) < 12.0 ? 0.25 / half_of : 0.0);
}
//: log10
float f_log10(float x) { return 0.43429448 * f_log(x); }
//: hypot
float f_hypot(float a, float b) {
    uint one = floatBitsToUint(a) & 0x7FFFFFFFu;
    uint other = floatBitsToUint(b) & 0x7FFFFFFFu;
    uint big = max(one, other);
    bool infinite = one == 0x7F800000u || other == 0x7F800000u;
    float unit = big >= 0x7D800000u ? 0.0625 : 1.0;
    float most = uintBitsToFloat(big) * unit;
    float t = uintBitsToFloat(min(one, other)) * unit / most;
    float made = most * sqrt(1.0 + t * t) / unit;
    made = big < 0x800000u ? uintBitsToFloat(big) : made;
    return infinite ? uintBitsToFloat(0x7F800000u) : big > 0x7F800000u ? uintBitsToFloat(0x7FC00000u) : made;
}
//: moved
#define LONG_IN(NAME, BINDING, TYPE, VECTOR, WIDE) \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words { uint NAME##_word[]; }; \
    layout(set = 0, binding = BINDING, std430) readonly buffer NAME##_Words4 { uvec4 NAME##_word4[]; }; \
    TYPE NAME##_raw(uint i) { return TYPE##_of(uvec2(NAME##_word[2u * i], NAME##_word[2u * i + 1u])); } \
    VECTOR NAME##_four(uint i, uint n) { \
        VECTOR v = VECTOR(0); \
        if (WIDE && n > 3u) { \
            uvec4 low = NAME##_word4[i >> 1], high = NAME##_word4[(i >> 1) + 1u]; \
            v = VECTOR(TYPE##_of(low.xy), TYPE##_of(low.zw), TYPE##_of(high.xy), TYPE##_of(high.zw)); \
        } else { \
            if (n > 0u) v.x = NAME##_raw(i); \
            if (n > 1u) v.y = NAME##_raw(i + 1u); \
            if (n > 2u) v.z = NAME##_raw(i + 2u); \
            if (n > 3u) v.w = NAME##_raw(i + 3u); \
        } \
        return v; \
    } \
    VECTOR NAME##_pair(uint i, uint n) { \
        VECTOR v = VECTOR(0); \
        if (WIDE && n > 1u) { \
            uvec4 words = NAME##_word4[i >> 1]; \
            v.x = TYPE##_of(words.xy); \
            v.y = TYPE##_of(words.zw); \
        } else { \
            if (n > 0u) v.x = NAME##_raw(i); \
            if (n > 1u) v.y = NAME##_raw(i + 1u); \
        } \
        return v; \
    }
#define LONG_OUT(NAME, BINDING, TYPE, VECTOR, WIDE) \
    layout(set = 0, binding = BINDING, std430) buffer NAME##_Words { uint NAME##_word[]; }; \
    layout(set = 0, binding = BINDING, std430) buffer NAME##_Words4 { uvec4 NAME##_word4[]; }; \
    void NAME##_put(uint i, TYPE x) { \
        uvec2 words = words_of(x); \
        NAME##_word[2u * i] = words.x; \
        NAME##_word[2u * i + 1u] = words.y; \
    } \
    void NAME##_store4(uint i, uint n, VECTOR v) { \
        if (WIDE && n > 3u) { \
            NAME##_word4[i >> 1] = uvec4(words_of(v.x), words_of(v.y)); \
            NAME##_word4[(i >> 1) + 1u] = uvec4(words_of(v.z), words_of(v.w)); \
        } else { \
            if (n > 0u) NAME##_put(i, v.x); \
            if (n > 1u) NAME##_put(i + 1u, v.y); \
            if (n > 2u) NAME##_put(i + 2u, v.z); \
            if (n > 3u) NAME##_put(i + 3u, v.w); \
        } \
    } \
    void NAME##_store2(uint i, uint n, VECTOR v) { \
        if (WIDE && n > 1u) { \
            NAME##_word4[i >> 1] = uvec4(words_of(v.x), words_of(v.y)); \
        } else { \
            if (n > 0u) NAME##_put(i, v.x); \
            if (n > 1u) NAME##_put(i + 1u, v.y); \
        } \
    }
//: long
uint64_t uint64_t_of(uvec2 words) { return packUint2x32(words); }
int64_t int64_t_of(uvec2 words) { return packInt2x32(ivec2(words)); }
uvec2 words_of(uint64_t x) { return unpackUint2x32(x); }
uvec2 words_of(int64_t x) { return uvec2(unpackInt2x32(x)); }
//: double
double double_of(uvec2 words) { return packDouble2x32(words); }
uvec2 words_of(double x) { return unpackDouble2x32(x); }
//: nan_double
bool f_nan_double(double x) {
    uvec2 words = unpackDouble2x32(x);
    uint high = words.y & 0x7FFFFFFFu;
    return high > 0x7FF00000u || (high == 0x7FF00000u && words.x != 0u);
}
//: max_int64_t
int64_t f_max_int64_t(int64_t a, int64_t b) { return a > b ? a : b; }
//: min_int64_t
int64_t f_min_int64_t(int64_t a, int64_t b) { return a < b ? a : b; }
//: max_uint64_t
uint64_t f_max_uint64_t(uint64_t a, uint64_t b) { return a > b ? a : b; }
//: min_uint64_t
uint64_t f_min_uint64_t(uint64_t a, uint64_t b) { return a < b ? a : b; }
//: max_double
double f_max_double(double a, double b) { return f_nan_double(a) ? a : f_nan_double(b) ? b : a > b ? a : b; }
//: min_double
double f_min_double(double a, double b) { return f_nan_double(a) ? a : f_nan_double(b) ? b : a < b ? a : b; }
//: floor_divide_int64_t
int64_t f_floor_divide_int64_t(int64_t a, int64_t b) {
    int64_t divisor = b == 0l || b == -1l ? 1l : b;
    int64_t q = a / divisor;
    int64_t r = a - q * divisor;
    q -= r != 0l && (r < 0l) != (divisor < 0l) ? 1l : 0l;
    return b == 0l ? 0l : b == -1l ? -a : q;
}
//: modulo_int64_t
int64_t f_modulo_int64_t(int64_t a, int64_t b) { return b == 0l ? 0l : a - f_floor_divide_int64_t(a, b) * b; }
//: floor_divide_uint64_t
uint64_t f_floor_divide_uint64_t(uint64_t a, uint64_t b) { return b == 0ul ? 0ul : a / (b == 0ul ? 1ul : b); }
//: modulo_uint64_t
uint64_t f_modulo_uint64_t(uint64_t a, uint64_t b) { return b == 0ul ? 0ul : a % (b == 0ul ? 1ul : b); }
//: shift_left_int64_t
int64_t f_shift_left_int64_t(int64_t a, int64_t b) { return uint64_t(b) > 63ul ? 0l : a << uint(b); }
//: shift_left_uint64_t
uint64_t f_shift_left_uint64_t(uint64_t a, uint64_t b) { return b > 63ul ? 0ul : a << uint(b); }
//: shift_right_int64_t
int64_t f_shift_right_int64_t(int64_t a, int64_t b) { return a >> (uint64_t(b) > 63ul ? 63u : uint(b)); }
//: shift_right_uint64_t
uint64_t f_shift_right_uint64_t(uint64_t a, uint64_t b) { return b > 63ul ? 0ul : a >> uint(b); }
//: sums
int f_sums(int a, int b, int low) { return ((a & low) + (b & low)) ^ ((a ^ b) & ~low); }
//: differences
int f_differences(int a, int b, int low) { return ((a | ~low) - (b & low)) ^ (~(a ^ b) & ~low); }
//: below
int f_below(int a, int b, int low) { return (~a & b) | (~(a ^ b) & ~((a | ~low) - (b & low))); }
//: truths
int f_truths(int tops) { return (tops >> 7) & 0x01010101; }
//: holds
int f_holds(int x) { return ((x & 0x7F7F7F7F) + 0x7F7F7F7F) | x; }
//: chosen
int f_chosen(int a, int b, int mask) { return a ^ ((a ^ b) & mask); }
//: add_8
int f_add_8(int a, int b) { return f_sums(a, b, 0x7F7F7F7F); }
//: add_16
int f_add_16(int a, int b) { return f_sums(a, b, 0x7FFF7FFF); }
//: subtract_8
int f_subtract_8(int a, int b) { return f_differences(a, b, 0x7F7F7F7F); }
//: subtract_16
int f_subtract_16(int a, int b) { return f_differences(a, b, 0x7FFF7FFF); }
//: multiply_8
int f_multiply_8(int a, int b) {
    int low = (a * b & 0xFF) | ((a >> 8) * (b >> 8) << 8 & 0xFF00);
    return low | ((a >> 16) * (b >> 16) << 16 & 0xFF0000) | (a >> 24) * (b >> 24) << 24;
}
//: multiply_16
int f_multiply_16(int a, int b) { return (a * b & 0xFFFF) | (a >> 16) * (b >> 16) << 16; }
//: less_uint8
int f_less_uint8(int a, int b) { return f_truths(f_below(a, b, 0x7F7F7F7F)); }
//: less_int8
int f_less_int8(int a, int b) { return f_less_uint8(a ^ ~0x7F7F7F7F, b ^ ~0x7F7F7F7F); }
//: less_uint16
int f_less_uint16(int a, int b) { return (f_below(a, b, 0x7FFF7FFF) >> 15) & 0x00010001; }
//: less_int16
int f_less_int16(int a, int b) { return f_less_uint16(a ^ ~0x7FFF7FFF, b ^ ~0x7FFF7FFF); }
//: less_equal_uint8
int f_less_equal_uint8(int a, int b) { return f_less_uint8(b, a) ^ 0x01010101; }
//: less_equal_int8
int f_less_equal_int8(int a, int b) { return f_less_int8(b, a) ^ 0x01010101; }
//: maximum_uint8
int f_maximum_uint8(int a, int b) { return f_chosen(a, b, f_less_uint8(a, b) * 0xFF); }
//: minimum_uint8
int f_minimum_uint8(int a, int b) { return f_chosen(b, a, f_less_uint8(a, b) * 0xFF); }
//: maximum_int8
int f_maximum_int8(int a, int b) { return f_chosen(a, b, f_less_int8(a, b) * 0xFF); }
//: minimum_int8
int f_minimum_int8(int a, int b) { return f_chosen(b, a, f_less_int8(a, b) * 0xFF); }
//: maximum_uint16
int f_maximum_uint16(int a, int b) { return f_chosen(a, b, f_less_uint16(a, b) * 0xFFFF); }
//: minimum_uint16
int f_minimum_uint16(int a, int b) { return f_chosen(b, a, f_less_uint16(a, b) * 0xFFFF); }
//: maximum_int16
int f_maximum_int16(int a, int b) { return f_chosen(a, b, f_less_int16(a, b) * 0xFFFF); }
//: minimum_int16
int f_minimum_int16(int a, int b) { return f_chosen(b, a, f_less_int16(a, b) * 0xFFFF); }
//: not_equal_8
int f_not_equal_8(int a, int b) { return f_truths(f_holds(a ^ b)); }
//: equal_8
int f_equal_8(int a, int b) { return f_truths(~f_holds(a ^ b)); }
//: logical_and_8
int f_logical_and_8(int a, int b) { return f_truths(f_holds(a) & f_holds(b)); }
//: logical_or_8
int f_logical_or_8(int a, int b) { return f_truths(f_holds(a | b)); }
//: logical_xor_8
int f_logical_xor_8(int a, int b) { return f_truths(f_holds(a) ^ f_holds(b)); }
//: logical_equal_8
int f_logical_equal_8(int a, int b) { return f_truths(~(f_holds(a) ^ f_holds(b))); }
