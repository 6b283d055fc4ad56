// The kinds of quantised weights, of which KIND is one: those of vkpar/ops/quantized/kinds.py, in capitals.
#ifndef VKPAR_KINDS_GLSL
#define VKPAR_KINDS_GLSL

#define Q8_0 1
#define Q4_0 2
#define Q4_K 3

#if KIND == 0
#error "KIND is none of these"
#endif

#endif
