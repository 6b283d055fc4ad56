// How elements cross a link. A slot holds blocks of 256 elements: payloads first, then, for wires with scales, those of
// each block in the slot's tail. LANES invocations share a block, eight elements at a time each.
// Macros give LANES, GROUP (invocations of a work-group, not in all kernels; with OWN_SIZE it is not set here), ELEM (the
// array's type), IN_WIRE and OUT_WIRE (what slots hold), TEXELS, defined where arrays and slots are read as texel buffers,
// and TAIL, defined where the last block is cut short: types are no specialization constants, as SwiftShader folds none.
#ifndef VKPAR_WIRE_GLSL
#define VKPAR_WIRE_GLSL

#ifdef TEXELS
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

#include "halfs.glsl"

// What arrays hold; elements of the last four are counted, moved and stored as words, of which each holds several or half
// of one. Wires: what slots hold.
const uint ELEM_F32 = 0u, ELEM_F16 = 1u, ELEM_BF16 = 2u, ELEM_INT = 3u;
const uint ELEM_I8 = 4u, ELEM_I16 = 5u, ELEM_I64 = 6u, ELEM_F64 = 7u;
const uint WIRE_WORD = 0u, WIRE_F16 = 1u, WIRE_BF16 = 2u, WIRE_SCALED_F16 = 3u, WIRE_Q8 = 4u;

const uint BLOCK = 256u;
const uint PER_LANE = BLOCK / LANES;
const uint ROUNDS = PER_LANE / 8u;

#ifdef GROUP
const uint BLOCKS_PER_GROUP = GROUP / LANES;

#ifndef OWN_SIZE
layout(local_size_x = GROUP) in;
#endif
#endif

#ifndef SOURCE_BINDING
#define SOURCE_BINDING 0
#define SOURCE_ACCESS readonly
#define TARGET_BINDING 1
#define SLOTS_BINDING 2
#endif
#ifndef SLOTS_ACCESS
#define SLOTS_ACCESS
#endif

layout(set = 0, binding = SOURCE_BINDING, std430) SOURCE_ACCESS buffer Source { uint source_word[]; };
layout(set = 0, binding = SOURCE_BINDING, std430) SOURCE_ACCESS buffer Source4 { uvec4 source_word4[]; };
layout(set = 0, binding = TARGET_BINDING, std430) buffer Target { uint target_word[]; };
layout(set = 0, binding = TARGET_BINDING, std430) buffer Target4 { uvec4 target_word4[]; };
layout(set = 0, binding = SLOTS_BINDING, std430) SLOTS_ACCESS buffer Slots { uint slot_word[]; };
layout(set = 0, binding = SLOTS_BINDING, std430) SLOTS_ACCESS buffer Slots2 { uvec2 slot_word2[]; };
layout(set = 0, binding = SLOTS_BINDING, std430) SLOTS_ACCESS buffer Slots4 { uvec4 slot_word4[]; };

#ifdef TAIL
const bool IS_WHOLE = false;
#else
const bool IS_WHOLE = true;
#endif
const bool IS_WORDS = ELEM >= ELEM_INT;  // 32 bits at a time, which no wire changes
const bool IS_HALF = ELEM == ELEM_F16 || ELEM == ELEM_BF16;

// Eight elements, as the bits of float32 or as integers: consecutive ones, as a rule. Where arrays and slots alike have
// 16 bytes for four elements, invocations that share a block take four of its first half and the same of its second,
// so that neighbours touch neighbouring bytes.
struct Eight {
    uvec4 low, high;
};

const bool IS_SPLIT = LANES > 1 && !IS_HALF && IN_WIRE == WIRE_WORD && OUT_WIRE == WIRE_WORD;
const uint APART = IS_SPLIT ? BLOCK / 8u : 1u;  // from the low four to the high four, in fours

// The low four of a unit, in fours from the start.
uint low_four(uint unit) {
    return IS_SPLIT ? 2u * unit - unit % APART : 2u * unit;
}

#ifdef TEXELS
// lavapipe reads a texel of each lane in one go, and storage buffers word by word.
layout(set = 0, binding = 3) uniform usamplerBuffer source_texels;
layout(set = 0, binding = 4) uniform usamplerBuffer slot_texels;

// A subgroup does a block; each of its invocations has as many consecutive units.
uint units_of_invocation() {
    return BLOCK / 8u / min(gl_SubgroupSize, GROUP);
}

uint first_unit(uint block) {
    return block * (BLOCK / 8u) + gl_SubgroupInvocationID * units_of_invocation();
}

uvec4 source_four(uint i) {
    return texelFetch(source_texels, int(i));
}

uvec4 slot_four(uint i) {
    return texelFetch(slot_texels, int(i));
}

uvec2 slot_two(uint i) {
    uvec4 four = slot_four(i / 2u);
    return i % 2u == 0u ? four.xy : four.zw;
}

uint slot_one(uint i) {
    uvec2 two = slot_two(i / 2u);
    return i % 2u == 0u ? two.x : two.y;
}
#else
uvec4 source_four(uint i) {
    return source_word4[i];
}

uvec4 slot_four(uint i) {
    return slot_word4[i];
}

uvec2 slot_two(uint i) {
    return slot_word2[i];
}

uint slot_one(uint i) {
    return slot_word[i];
}
#endif

vec2 half_pair(uint wire, uint word) {
    return wire == WIRE_F16 ? f16_word_to_f32_pair(word) : bf16_word_to_f32_pair(word);
}

Eight eight_of_floats(vec4 low, vec4 high) {
    return Eight(floatBitsToUint(low), floatBitsToUint(high));
}

Eight eight_of_halves(uint wire, uvec4 words) {
    return eight_of_floats(vec4(half_pair(wire, words.x), half_pair(wire, words.y)),
                           vec4(half_pair(wire, words.z), half_pair(wire, words.w)));
}

uint half_word(uint wire, uvec2 bits) {
    vec2 pair = uintBitsToFloat(bits);
    return wire == WIRE_F16 ? f32_pair_to_f16_word(pair) : f32_pair_to_bf16_word(pair);
}

uvec4 halves_of_eight(uint wire, Eight v) {
    return uvec4(half_word(wire, v.low.xy), half_word(wire, v.low.zw), half_word(wire, v.high.xy),
                 half_word(wire, v.high.zw));
}

// Integers as they are; any NaN as the one that every driver agrees on.
uvec4 canonical(uvec4 bits) {
    if (IS_WORDS) {
        return bits;
    }
    return mix(bits, uvec4(0x7FC00000u), greaterThan(bits & 0x7FFFFFFFu, uvec4(0x7F800000u)));
}

uint largest_finite(Eight v) {
    uvec4 a = v.low & 0x7FFFFFFFu, b = v.high & 0x7FFFFFFFu;
    a = mix(a, uvec4(0u), greaterThanEqual(a, uvec4(0x7F800000u)));
    b = mix(b, uvec4(0u), greaterThanEqual(b, uvec4(0x7F800000u)));
    a = max(a, b);
    return max(max(a.x, a.y), max(a.z, a.w));
}

// Results below the smallest normal float32 become zero on every driver, whether it flushes them or not.
uvec4 flushed(vec4 v) {
    uvec4 bits = floatBitsToUint(v);
    return mix(bits, bits & 0x80000000u, lessThan(bits & 0x7FFFFFFFu, uvec4(0x00800000u)));
}

// What elements that share a scale are multiplied by before they are rounded, and the word that tells the reader.
struct Scale {
    float multiplier;
    uint word;
};

// ---- the scaled wire: block values times 2^shift, so that the largest finite one lies in [2^14, 2^15) ----

const int LARGEST_SHIFT = 126;  // 2^shift and 2^-shift stay normal
const int SMALLEST_SHIFT = -113;

float power_of_two(int exponent) {
    return uintBitsToFloat(uint(exponent + 127) << 23);
}

Scale half_scale(uint largest) {
    int shift = largest == 0u ? 0 : clamp(141 - int(largest >> 23), SMALLEST_SHIFT, LARGEST_SHIFT);
    return Scale(power_of_two(shift), uint(shift));
}

// At the smallest shift a value may round up to 2^15, which stands for 2^128: the largest half below is sent instead.
uint saturated(uint word) {
    uint low = word & 0x7FFFu, high = (word >> 16) & 0x7FFFu;
    uint take = (low == 0x7800u ? 1u : 0u) | (high == 0x7800u ? 0x10000u : 0u);
    return word - take;
}

uvec4 scaled_encode(Eight v, Scale scale) {
    float factor = scale.multiplier;
    Eight scaled = eight_of_floats(uintBitsToFloat(v.low) * factor, uintBitsToFloat(v.high) * factor);
    uvec4 words = halves_of_eight(WIRE_F16, scaled);
    if (int(scale.word) == SMALLEST_SHIFT) {
        words = uvec4(saturated(words.x), saturated(words.y), saturated(words.z), saturated(words.w));
    }
    return words;
}

Eight scaled_decode(uvec4 words, uint word) {
    float scale = power_of_two(-int(word));
    Eight v = eight_of_halves(WIRE_F16, words);
    return Eight(flushed(uintBitsToFloat(v.low) * scale), flushed(uintBitsToFloat(v.high) * scale));
}

// ---- the q8 wire: 32 elements share a float32 scale s; a code c of -126 .. 126 stands for c s ----
// Every step is one that all drivers do alike (integers, single products), so that they encode the same bits; float
// division is not. docs/algorithms.md derives the error.

const uint Q8_UNITS = 4u;  // of eight elements
const int Q8_MOST = 126, Q8_INF = 127, Q8_NAN = -128;  // -127 is -Inf
const float Q8_PART = 1.0 / 126.0;

// The largest magnitude m is rounded up to 13 bits and kept from 2^-118 (below, scales would not be normal) to the last
// such number: 126 s must not overflow. The scale is m / 126; the multiplier 126 / m, rounded down to 19 bits at least.
Scale q8_scale(uint largest) {
    uint m = clamp((largest + 0x7FFu) & 0xFFFFF800u, 0x04800000u, 0x7F7FF800u);
    uint mantissa = m & 0x007FFFFFu, exponent = m >> 23;
    uint quotient = (uint(Q8_MOST) << 25) / ((mantissa | 0x00800000u) >> 11);
    uint multiplier = floatBitsToUint(float(quotient)) + ((114u - exponent) << 23);
    precise float part = uintBitsToFloat(mantissa | 0x3F800000u) * Q8_PART;
    return Scale(uintBitsToFloat(multiplier), floatBitsToUint(part) + ((exponent - 127u) << 23));
}

uint q8_encode_four(uvec4 bits, float multiplier) {
    uvec4 magnitude = bits & 0x7FFFFFFFu;
    ivec4 codes = ivec4(roundEven(uintBitsToFloat(bits) * multiplier));
    ivec4 special = mix(ivec4(Q8_INF), ivec4(-Q8_INF), notEqual(bits, magnitude));
    special = mix(special, ivec4(Q8_NAN), greaterThan(magnitude, uvec4(0x7F800000u)));
    codes = mix(codes, special, greaterThanEqual(magnitude, uvec4(0x7F800000u))) & 0xFF;
    return uint(codes.x | (codes.y << 8) | (codes.z << 16) | (codes.w << 24));
}

uvec4 q8_decode_four(uint word, float scale) {
    ivec4 codes = ivec4(word << 24, word << 16, word << 8, word) >> 24;
    precise vec4 values = vec4(codes) * scale;
    uvec4 special = mix(uvec4(0x7F800000u), uvec4(0xFF800000u), lessThan(codes, ivec4(0)));
    special = mix(special, uvec4(0x7FC00000u), equal(codes, ivec4(Q8_NAN)));
    return mix(floatBitsToUint(values), special, greaterThan(abs(codes), ivec4(Q8_MOST)));
}

// ---- slots: `at` is a slot's first 16-byte unit; `unit` counts eight elements from its start ----

bool has_scales(uint wire) {
    return wire == WIRE_SCALED_F16 || wire == WIRE_Q8;
}

// Units of eight elements that share a scale.
uint units_per_scale(uint wire) {
    return wire == WIRE_Q8 ? Q8_UNITS : BLOCK / 8u;
}

Scale scale_of(uint wire, uint largest) {
    return wire == WIRE_Q8 ? q8_scale(largest) : half_scale(largest);
}

struct Raw {
    uvec4 w0, w1;  // w1 is used by the 4-byte wire alone
    uint scale;
};

Raw load_raw(uint wire, uint at, uint tail, uint unit) {
    Raw raw = Raw(uvec4(0u), uvec4(0u), 0u);
    if (wire == WIRE_WORD) {
        raw.w0 = slot_four(at + low_four(unit));
        raw.w1 = slot_four(at + low_four(unit) + APART);
    } else if (wire == WIRE_Q8) {
        raw.w0.xy = slot_two(2u * at + unit);
    } else {
        raw.w0 = slot_four(at + unit);
    }
    if (has_scales(wire)) {
        raw.scale = slot_one(4u * (at + tail) + unit / units_per_scale(wire));
    }
    return raw;
}

// Half of what load_raw reads: what decodes to the low four are elements 4 four to 4 four + 3 of the slot.
Raw load_four(uint wire, uint at, uint tail, uint four) {
    Raw raw = Raw(uvec4(0u), uvec4(0u), 0u);
    if (wire == WIRE_WORD) {
        raw.w0 = slot_four(at + four);
    } else if (wire == WIRE_Q8) {
        raw.w0.x = slot_one(4u * at + four);
    } else {
        raw.w0.xy = slot_two(2u * at + four);
    }
    if (has_scales(wire)) {
        raw.scale = slot_one(4u * (at + tail) + four / (2u * units_per_scale(wire)));
    }
    return raw;
}

void store_raw(uint wire, uint at, uint tail, uint unit, Raw raw) {
    if (wire == WIRE_WORD) {
        slot_word4[at + low_four(unit)] = raw.w0;
        slot_word4[at + low_four(unit) + APART] = raw.w1;
    } else if (wire == WIRE_Q8) {
        slot_word2[2u * at + unit] = raw.w0.xy;
    } else {
        slot_word4[at + unit] = raw.w0;
    }
    if (has_scales(wire) && unit % units_per_scale(wire) == 0u) {
        slot_word[4u * (at + tail) + unit / units_per_scale(wire)] = raw.scale;
    }
}

Eight decode_raw(uint wire, Raw raw) {
    if (wire == WIRE_WORD) {
        return Eight(raw.w0, raw.w1);
    }
    if (wire == WIRE_Q8) {
        float scale = uintBitsToFloat(raw.scale);
        return Eight(q8_decode_four(raw.w0.x, scale), q8_decode_four(raw.w0.y, scale));
    }
    return wire == WIRE_SCALED_F16 ? scaled_decode(raw.w0, raw.scale) : eight_of_halves(wire, raw.w0);
}

Raw encode_raw(uint wire, Eight v, Scale scale) {
    Raw raw = Raw(uvec4(0u), uvec4(0u), scale.word);
    if (wire == WIRE_WORD) {
        raw.w0 = canonical(v.low);
        raw.w1 = canonical(v.high);
    } else if (wire == WIRE_Q8) {
        raw.w0.x = q8_encode_four(v.low, scale.multiplier);
        raw.w0.y = q8_encode_four(v.high, scale.multiplier);
    } else if (wire == WIRE_SCALED_F16) {
        raw.w0 = scaled_encode(v, scale);
    } else {
        raw.w0 = halves_of_eight(wire, v);
    }
    return raw;
}

// ---- arrays: `at` is the first element's index in the binding; n of the low and the high four of a unit exist ----

uint element_wire() {
    return ELEM == ELEM_F16 ? WIRE_F16 : WIRE_BF16;
}

bool all_exist(uvec2 n) {
    return IS_WHOLE || n.x + n.y == 8u;
}

Eight load_elements(uint at, uint unit, uvec2 n) {
    if (IS_HALF) {
        uint e = at + 8u * unit, some = n.x + n.y;
        uvec4 words = uvec4(0u);
        if (all_exist(n)) {
            words = source_four(e / 8u);
        } else {
            for (uint i = 0u; 2u * i < some; i++) {
                words[i] = source_word[e / 2u + i] & (2u * i + 1u < some ? 0xFFFFFFFFu : 0xFFFFu);
            }
        }
        return eight_of_halves(element_wire(), words);
    }
    uint e = at + 4u * low_four(unit);
    uvec4 low = uvec4(0u), high = uvec4(0u);
    if (all_exist(n)) {
        low = source_four(e / 4u);
        high = source_four(e / 4u + APART);
    } else {
        for (uint i = 0u; i < n.x; i++) low[i] = source_word[e + i];
        for (uint i = 0u; i < n.y; i++) high[i] = source_word[e + 4u * APART + i];
    }
    return Eight(low, high);
}

void store_elements(uint at, uint unit, uvec2 n, Eight v) {
    if (IS_HALF) {
        uint e = at + 8u * unit, some = n.x + n.y;
        uvec4 words = halves_of_eight(element_wire(), v);
        if (all_exist(n)) {
            target_word4[e / 8u] = words;
            return;
        }
        for (uint i = 0u; 2u * i < some; i++) {
            bool whole = 2u * i + 1u < some;  // else the word's other half may belong to a neighbouring view
            target_word[e / 2u + i] =
                whole ? words[i] : (target_word[e / 2u + i] & 0xFFFF0000u) | (words[i] & 0xFFFFu);
        }
        return;
    }
    uint e = at + 4u * low_four(unit);
    uvec4 low = canonical(v.low), high = canonical(v.high);
    if (all_exist(n)) {
        target_word4[e / 4u] = low;
        target_word4[e / 4u + APART] = high;
        return;
    }
    for (uint i = 0u; i < n.x; i++) target_word[e + i] = low[i];
    for (uint i = 0u; i < n.y; i++) target_word[e + 4u * APART + i] = high[i];
}

uint left_of_four(uint count, uint four) {
    return count > 4u * four ? min(count - 4u * four, 4u) : 0u;
}

// How many of the low and of the high four of a unit exist: no high one without all of the low ones.
uvec2 elements_left(uint count, uint unit) {
    if (IS_WHOLE) return uvec2(4u);
    uint low = low_four(unit);
    return uvec2(left_of_four(count, low), left_of_four(count, low + APART));
}

#endif
