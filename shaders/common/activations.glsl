// What a product's epilogue applies to each element: functions of elementwise expressions, four at a time. Written by
// tools/compile_shaders.py, of the activations in vkpar/ops/elementwise/expressions.py.
#ifndef VKPAR_ACTIVATIONS_GLSL
#define VKPAR_ACTIVATIONS_GLSL

#include "functions.glsl"

const uint RELU = 1u;
const uint GELU = 2u;
const uint GELU_TANH = 3u;
const uint SILU = 4u;
const uint SIGMOID = 5u;
const uint TANH = 6u;

#define EACH(F) y = vec4(F(x.x), F(x.y), F(x.z), F(x.w));

vec4 activated(uint kind, vec4 x) {
    vec4 y = x;
    if (kind == RELU) {
        EACH(f_relu_float)
    } else if (kind == GELU) {
        EACH(f_gelu)
    } else if (kind == GELU_TANH) {
        EACH(f_gelu_tanh)
    } else if (kind == SILU) {
        EACH(f_silu)
    } else if (kind == SIGMOID) {
        EACH(f_sigmoid)
    } else if (kind == TANH) {
        EACH(f_tanh)
    }
    return y;
}

#endif
