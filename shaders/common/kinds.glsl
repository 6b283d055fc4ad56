// The kinds of quantised weights, of which KIND is one: those of vkpar/ops/quantized/kinds.py, in capitals. MIXED stands for
// those behind it, which share modules: the specialization constant KIND_CODE says which of them it is.
#ifndef VKPAR_KINDS_GLSL
#define VKPAR_KINDS_GLSL

#define Q8_0 1
#define Q4_0 2
#define Q4_K 3
#define MIXED 4
#define Q4_1 5
#define Q5_0 6
#define Q5_1 7
#define Q5_K 8
#define Q6_K 9

#if KIND == 0
#error "KIND is none of these"
#endif

#endif
