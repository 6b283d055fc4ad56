// What the matrix kernels share: out (M, N) = a (M, K) x b, where b is (K, N), or (N, K) when transposed.
// With FORMS defined, also: a (K, M) transposed, batches and parts of K, and with EPILOGUE what follows the product.
// With FOLDED, see folded.glsl. Kernels without them stay as lean as the plain product allows.
#ifndef VKPAR_MATMUL_GLSL
#define VKPAR_MATMUL_GLSL

#include "elements.glsl"
#include "grid.glsl"

layout(constant_id = 0) const uint A_TYPE = 0;
layout(constant_id = 1) const uint B_TYPE = 0;
layout(constant_id = 2) const uint O_TYPE = 0;  // a half only where rows of the output are whole words
layout(constant_id = 3) const bool TRANSPOSE_B = false;
layout(constant_id = 4) const bool A_WIDE = false;  // first element and row length are multiples of 4, and so on
layout(constant_id = 5) const bool B_WIDE = false;
layout(constant_id = 6) const bool O_WIDE = false;

#ifdef FORMS
layout(constant_id = 11) const bool TRANSPOSE_A = false;
#else
const bool TRANSPOSE_A = false;
#endif
#ifdef EPILOGUE
#include "activations.glsl"
layout(constant_id = 12) const uint ACTIVATION = 0;
layout(constant_id = 13) const bool HAS_BIAS = false;
layout(constant_id = 14) const uint BIAS_TYPE = 0;
layout(constant_id = 15) const bool HAS_RESIDUAL = false;
layout(constant_id = 16) const uint RESIDUAL_TYPE = 0;
layout(constant_id = 17) const bool RESIDUAL_WIDE = false;
#endif

ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
ELEMENTS_IN(b, 1, B_TYPE, B_WIDE)
ELEMENTS_OUT(o, 2, O_TYPE, O_WIDE)
#ifdef EPILOGUE
ELEMENTS_IN(bias, 3, BIAS_TYPE, false)
ELEMENTS_IN(residual, 4, RESIDUAL_TYPE, RESIDUAL_WIDE)
#endif

layout(push_constant) uniform Push {
    uint m;
    uint n;
    uint k;
    uint a_first;  // element of each binding at which the operand begins
    uint b_first;
    uint o_first;
    uint a_row;  // elements from one row to the next
    uint b_row;
    uint o_row;
    uint accumulate;  // add to what a float32 output holds
#ifdef FORMS
    uint a_batch;  // elements from one product of a batch to the next; work groups count parts in z, then products
    uint b_batch;
    uint o_batch;
    uint parts;   // of K, each with an output of its own
    uint k_part;  // steps of K of a part, a multiple of 16, or K
    uint o_part;  // elements from one part's output to the next
    uint bias_first;
    uint bias_step;  // 0: one element for all columns
    uint residual_first;
#endif
#ifdef WINDOWED
    uint across;  // rows of b that are windows side by side, and elements from behind the last of them to the next
    uint down;
    uint span;  // steps of K that lie side by side, and elements from behind the last of them to the next
    uint gap;
#endif
#ifdef SCALES
    uint scales_first;  // of quantised weights: scale, of Q4_K 16 bytes, at which b's begin
#endif
#ifdef EXPERTS
    uint each;     // experts that a row takes
    uint first;    // expert whose matrix comes first in b
    uint experts;  // matrices
    uint rows;     // that take experts: their numbers come first, then the weights of their results
    uint choice_first;
#endif
#ifdef FOLDED
    uint norm_first;  // the vector that normalized rows are multiplied by
    float norm_eps;   // what is added to the mean of their squares
#endif
#ifdef SEND
    uint source_at;  // of the output's binding: its first element
    uint target_at;  // of the binding where what the readers decode is kept
    uint tail;       // 16-byte units from a slot's start to its scales
    uint out_slot;   // first 16-byte unit of the slot to fill
    uint count;      // elements in all
    uint sends;      // bits 2 i and 2 i + 1: so many transfers on lane i are ready then
#endif
} push;

#ifdef FORMS
uint product_number() {
    return gl_WorkGroupID.z / push.parts;
}

uint part_number() {
    return gl_WorkGroupID.z % push.parts;
}

uint a_origin() {
    return push.a_first + product_number() * push.a_batch;
}

uint b_origin() {
    return push.b_first + product_number() * push.b_batch;
}

uint k_begin() {
    return part_number() * push.k_part;
}

uint k_end() {
    return min(push.k, k_begin() + push.k_part);
}

#ifdef EPILOGUE
#ifdef HOLDS_RESIDUAL
vec4 residual_held;

// Reads the residual of the four neighbours that this invocation stores, before it makes their sums: nothing waits then.
void hold_residual(uint row, uint column) {
    if (HAS_RESIDUAL && row < push.m && column < push.n) {
        uint at = row * push.o_row + column + product_number() * push.o_batch + part_number() * push.o_part;
        residual_held = residual_at4(push.residual_first + at, min(push.n - column, 4u));
    }
}
#endif

// What is stored for the sums of four neighbours, of which the first `count` count, `at` elements from the output's first.
vec4 finished(uint at, uint column, uint count, vec4 sum) {
    if (HAS_BIAS) {
        uint from = push.bias_first + column * push.bias_step;
        sum.x += bias_at(from);
        if (count > 1u) sum.y += bias_at(from + push.bias_step);
        if (count > 2u) sum.z += bias_at(from + 2u * push.bias_step);
        if (count > 3u) sum.w += bias_at(from + 3u * push.bias_step);
    }
    sum = activated(ACTIVATION, sum);
    if (HAS_RESIDUAL) {
#ifdef HOLDS_RESIDUAL
        sum += residual_held;
#else
        sum += residual_at4(push.residual_first + at, count);
#endif
    }
    return sum;
}
#endif
#else
uint a_origin() {
    return push.a_first;
}

uint b_origin() {
    return push.b_first;
}

uint k_begin() {
    return 0u;
}

uint k_end() {
    return push.k;
}
#endif

// Writes (or adds) four neighbours of one row, as far as the matrix reaches.
void store_row4(uint row, uint column, vec4 sum) {
    if (row < push.m && column < push.n) {
        uint at = row * push.o_row + column;
        uint count = min(push.n - column, 4u);
#ifdef FORMS
        at += product_number() * push.o_batch + part_number() * push.o_part;
#endif
#ifdef EPILOGUE
        sum = finished(at, column, count, sum);
#endif
        at += push.o_first;
        if (push.accumulate != 0u) {
            sum.x += uintBitsToFloat(o_word[at]);
            if (count > 1u) sum.y += uintBitsToFloat(o_word[at + 1u]);
            if (count > 2u) sum.z += uintBitsToFloat(o_word[at + 2u]);
            if (count > 3u) sum.w += uintBitsToFloat(o_word[at + 3u]);
        }
        o_store4(at, count, o_pack4(floatBitsToUint(sum)));
    }
}

#endif
