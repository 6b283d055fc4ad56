// The gate of a feed-forward block: gate / (1 + exp(-gate)) * up.
#ifndef VKPAR_GATE_GLSL
#define VKPAR_GATE_GLSL

vec4 gated(vec4 gate, vec4 up) {
    vec4 small = exp(-abs(gate));  // never overflows
    vec4 share = mix(vec4(1.0), small, lessThan(gate, vec4(0.0))) / (1.0 + small);
    return gate * share * up;
}

#endif
