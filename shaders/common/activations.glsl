// What a product's epilogue applies to each element. NaN stays NaN; where a function tends to zero at minus infinity, it
// is within 2e-36 of it there.
#ifndef VKPAR_ACTIVATIONS_GLSL
#define VKPAR_ACTIVATIONS_GLSL

// The codes of vkpar/ops/epilogue.py.
const uint NO_ACTIVATION = 0u;
const uint RELU = 1u;
const uint GELU = 2u;
const uint GELU_TANH = 3u;
const uint SILU = 4u;
const uint SIGMOID = 5u;
const uint TANH = 6u;

bvec4 is_nan(vec4 x) {
    return greaterThan(floatBitsToUint(x) & 0x7FFFFFFFu, uvec4(0x7F800000u));
}

vec4 sigmoid_of(vec4 x) {
    return 1.0 / (1.0 + exp(clamp(-x, -88.0, 88.0)));
}

// With t = 1 / (1 + z/2), erfc(z) exp(z^2) is a polynomial of degree 9 in t to a relative 4.3e-8 for z in [0, 10]; the
// tail of the normal distribution comes from it on its own side of 0, so nothing cancels.
vec4 gelu_of(vec4 x) {
    vec4 z = min(abs(x) * 0.70710678, 10.0);
    vec4 t = 1.0 / (1.0 + 0.5 * z);
    vec4 p = vec4(-0.059069216);
    p = p * t + 0.28457618;
    p = p * t - 0.48720227;
    p = p * t + 0.27806980;
    p = p * t - 0.026627384;
    p = p * t + 0.20268756;
    p = p * t + 0.24310361;
    p = p * t + 0.28237534;
    p = p * t + 0.28208640;
    vec4 tail = 0.5 * p * t * exp(-min(z * z, 88.0));
    return max(x, -14.2) * mix(1.0 - tail, tail, lessThan(x, vec4(0.0)));
}

vec4 tanh_of(vec4 x) {
    vec4 z = x * x;
    vec4 near = x * (1.0 + z * (-0.33333333 + z * (0.13333333 + z * (-0.053968254 + z * 0.021869489))));
    vec4 far = sign(x) * (1.0 - 2.0 / (exp(min(2.0 * abs(x), 88.0)) + 1.0));
    return mix(far, near, lessThan(abs(x), vec4(0.25)));
}

vec4 activated(uint kind, vec4 x) {
    vec4 y = x;
    if (kind == RELU) {
        y = max(x, 0.0);
    } else if (kind == GELU) {
        y = gelu_of(x);
    } else if (kind == GELU_TANH) {
        vec4 inside = clamp(x, -14.2, 1e12);
        y = max(x, -14.2) * sigmoid_of(1.5957691 * (inside + 0.044715 * inside * inside * inside));
    } else if (kind == SILU) {
        y = max(x, -200.0) * sigmoid_of(x);
    } else if (kind == SIGMOID) {
        y = sigmoid_of(x);
    } else if (kind == TANH) {
        y = tanh_of(x);
    }
    return mix(y, x, is_nan(x));
}

#endif
