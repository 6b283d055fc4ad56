// What the matrix kernels share: out (M, N) = a (M, K) x b, where b is (K, N), or (N, K) when transposed.
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

ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
ELEMENTS_IN(b, 1, B_TYPE, B_WIDE)
ELEMENTS_OUT(o, 2, O_TYPE, O_WIDE)

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
#ifdef SEND
    uint source_at;  // of the output's binding: its first element
    uint target_at;  // of the binding where what the readers decode is kept
    uint tail;       // 16-byte units from a slot's start to its scales
    uint out_slot;   // first 16-byte unit of the slot to fill
    uint count;      // elements in all
#endif
} push;

// Writes (or adds) four neighbours of one row, as far as the matrix reaches.
void store_row4(uint row, uint column, vec4 sum) {
    if (row < push.m && column < push.n) {
        uint at = push.o_first + row * push.o_row + column;
        uint count = min(push.n - column, 4u);
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
