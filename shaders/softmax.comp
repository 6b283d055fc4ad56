// What follows from exp(x - the largest x) along rows: SOFTMAX, LOG of it, LOSS (cross entropy of a label) and GRAD (of
// that loss, times a scale). A row with +inf or NaN, or without anything above -inf, gives NaN.
// variants: softmax: SOFTMAX | log: LOG | loss: LOSS | grad: GRAD
// variants: f32: X_TYPE=F32 | f16: X_TYPE=F16 | bf16: X_TYPE=BF16
// variants: kept: KEPT | long: LONG
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/elements.glsl"
#include "common/grid.glsl"
#include "common/rows.glsl"

ELEMENTS_IN(x, 0, X_TYPE, X_WIDE)
#ifdef LOSS
layout(set = 0, binding = 1, std430) readonly buffer Labels { uint label[]; };
layout(set = 0, binding = 2, std430) buffer Losses { float loss[]; };
#elif defined(GRAD)
layout(set = 0, binding = 1, std430) readonly buffer Labels { uint label[]; };
ELEMENTS_OUT(y, 2, Y_TYPE, Y_WIDE)
#else
ELEMENTS_OUT(y, 1, Y_TYPE, Y_WIDE)
#endif

#define NOT uintBitsToFloat(0x7FC00000u)

vec4 exps(vec4 v, float top, uint n) {
    return mix(vec4(0.0), exp(v - top), first_of(n));
}

bool is_nan(float v) {
    return (floatBitsToUint(v) & 0x7FFFFFFFu) > 0x7F800000u;
}

// Whether one of four makes the row NaN: by bits, since some drivers' exp takes NaN and infinities for numbers.
bool spoils(vec4 v) {
    ivec4 bits = floatBitsToInt(v);
    ivec4 size = (bits & 0x7FFFFFFF) + (bits >> 31);  // -inf counts as finite
    return max(max(size.x, size.y), max(size.z, size.w)) >= 0x7F800000;
}

// The row's largest element, or the least number where all are -inf, and the sum of exp(x - that) or NaN.
vec2 statistics(uint at) {
    float top = LOWEST;
    float sum = 0.0;
    bool spoilt = false;
#ifdef KEPT
    uvec4 packed[KEEP];
    EACH_FOUR {
        packed[j] = x_packed4(at + k, n);
    }
    EACH_FOUR {
        vec4 v = mix(vec4(LOWEST), x_unpack4(packed[j]), first_of(n));
        kept[j] = v;
        spoilt = spoilt || spoils(v);
        top = max(top, max(max(v.x, v.y), max(v.z, v.w)));
    }
    top = max_of_row(top);
    EACH_FOUR {
        vec4 e = exps(kept[j], top, n);
        sum += across(e);
#ifndef LOG
        kept[j] = e;
#endif
    }
#else
    EACH_FOUR {
        vec4 v = mix(vec4(LOWEST), x_at4(at + k, n), first_of(n));
        spoilt = spoilt || spoils(v);
        float higher = max(top, max(max(v.x, v.y), max(v.z, v.w)));
        sum = (higher != top ? sum * exp(top - higher) : sum) + across(exps(v, higher, n));
        top = higher;
    }
    float mine = top;
    top = max_of_row(top);
    sum *= mine != top ? exp(mine - top) : 1.0;
#endif
    sum = sum_of_row(spoilt ? NOT : sum);
    return vec2(top, is_nan(sum) || sum == 0.0 ? NOT : sum);
}

// Of four elements, or where rows are kept of their exponentials, but for LOG.
vec4 result(vec4 v, float top, float sum, uint k, uint target) {
    bool lost = is_nan(sum);
    vec4 made;
#if defined(LOG)
    made = (v - top) - log(sum);
#elif defined(KEPT)
    made = v * (1.0 / sum);
#else
    made = exp(v - top) / sum;
#endif
#ifdef GRAD
    vec4 one = vec4(equal(uvec4(k, k + 1u, k + 2u, k + 3u), uvec4(target)));
    made = (made - one) * push.value;
    lost = lost || target >= push.extent;
#endif
    return lost ? vec4(NOT) : made;
}

void main() {
    uint at = push.x_first + row() * push.extent;
    vec2 found = statistics(at);
    uint target = 0u;
#if defined(LOSS) || defined(GRAD)
    if (row() < push.rows) {
        target = label[push.w_first + row()];
    }
#endif
#ifdef LOSS
    if (lane() == 0u && row() < push.rows) {
        float v = x_at(at + min(target, push.extent - 1u));
        bool lost = is_nan(found.y) || target >= push.extent;
        loss[push.y_first + row()] = lost ? NOT : log(found.y) - (v - found.x);
    }
#else
    EACH_FOUR {
#ifdef KEPT
        vec4 v = kept[j];
#else
        vec4 v = x_at4(at + k, n);
#endif
        y_store4(push.y_first + row() * push.extent + k, n, y_pack4(floatBitsToUint(result(v, found.x, found.y, k, target))));
    }
#endif
}
