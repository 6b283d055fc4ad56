// Whole numbers and floats of 64 bits, in buffers of 32-bit words; kernels take the sections that they call.
//: moved
// Declares an input, or an output, NAME at BINDING, as WHOLE_IN and WHOLE_OUT do; VECTOR is four of TYPE.
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
