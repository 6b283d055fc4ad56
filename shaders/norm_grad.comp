// What comes back through a norm, along rows: of g, the gradient of y, that of x, and for each element what adds up
// to that of w. Where WEIGHTED is false, w is ones, and h is not written.
// variants: layer: LAYER | rms: RMS
// variants: f32: X_TYPE=F32 | f16: X_TYPE=F16 | bf16: X_TYPE=BF16
// variants: long: LONG
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/elements.glsl"
#include "common/grid.glsl"
#include "common/rows.glsl"

layout(constant_id = 6) const bool WEIGHTED = true;
layout(constant_id = 7) const uint W_TYPE = 0;
layout(constant_id = 8) const bool W_WIDE = false;
layout(constant_id = 9) const uint B_TYPE = 0;
layout(constant_id = 10) const bool B_WIDE = false;
layout(constant_id = 11) const bool H_WIDE = false;

ELEMENTS_IN(x, 0, X_TYPE, X_WIDE)
ELEMENTS_IN(w, 1, W_TYPE, W_WIDE)
ELEMENTS_IN(b, 2, B_TYPE, B_WIDE)
ELEMENTS_OUT(y, 3, Y_TYPE, Y_WIDE)
ELEMENTS_OUT(h, 4, F32, H_WIDE)

vec4 weighted(vec4 g, uint k, uint n) {
    if (WEIGHTED) {
        g *= w_at4(push.w_first + k, n);
    }
    return g;
}

void main() {
    uint first = row() * push.extent;
    float size = float(push.extent);
    float mean = 0.0;
    vec4 sum = vec4(0.0);
#ifdef LAYER
    EACH_FOUR {
        sum += x_at4(push.x_first + first + k, n);
    }
    mean = sum_of_row(across(sum)) / size;
    sum = vec4(0.0);
#endif
    vec4 straight = vec4(0.0);
    vec4 along = vec4(0.0);
    EACH_FOUR {
        vec4 off = mix(vec4(0.0), x_at4(push.x_first + first + k, n) - mean, first_of(n));
        vec4 g = weighted(b_at4(push.b_first + first + k, n), k, n);
        sum += off * off;
        straight += g;
        along += g * off;
    }
    float inverse = 1.0 / sqrt(sum_of_row(across(sum)) / size + push.value);
    float slope = sum_of_row(across(along)) * inverse / size;
    float level = 0.0;
#ifdef LAYER
    level = sum_of_row(across(straight)) / size;
#endif
    EACH_FOUR {
        vec4 unit = (x_at4(push.x_first + first + k, n) - mean) * inverse;
        vec4 g = b_at4(push.b_first + first + k, n);
        vec4 made = ((weighted(g, k, n) - level) - unit * slope) * inverse;
        if (WEIGHTED) {
            h_store4(push.h_first + first + k, n, floatBitsToUint(g * unit));
        }
        y_store4(push.y_first + first + k, n, y_pack4(floatBitsToUint(made)));
    }
}
