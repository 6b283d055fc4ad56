// The body of matrix products for CPU drivers into float32: ROWS rows x 8 columns an invocation, straight from the buffers,
// b transposed or not by its strides alone. A_TYPE and B_TYPE are 0 (float32), 1 (float16) or 2 (bfloat16). It compiles quickly: no specialization constants, since some CPU drivers run
// every branch on them. Its one loop makes push.k turns: some stop an invocation after 65,535, without an error. With
// FORMS, a is transposed or not by its strides, too, and a batch is counted in z.
#ifndef VKPAR_SMALL_GLSL
#define VKPAR_SMALL_GLSL

#include "grid.glsl"
#include "halfs.glsl"

layout(local_size_x = 8, local_size_y = 4) in;
// Halves lie in words of 32 bits.
#define WORD_0 float
#define WORD_1 uint
#define WORD_2 uint
#define HALF(WORDS, I) ((WORDS[(I) >> 1] >> (((I) & 1u) << 4)) & 0xFFFFu)
#define FLOAT_0(WORDS, I) WORDS[I]
#define FLOAT_1(WORDS, I) f16_bits_to_f32(HALF(WORDS, I))
#define FLOAT_2(WORDS, I) bf16_bits_to_f32(HALF(WORDS, I))
#define PASTE(NAME, TYPE) NAME##TYPE
#define OF(NAME, TYPE) PASTE(NAME, TYPE)
#define A_AT(I) OF(FLOAT_, A_TYPE)(a, I)
#define B_AT(I) OF(FLOAT_, B_TYPE)(b, I)

layout(set = 0, binding = 0, std430) readonly buffer A { OF(WORD_, A_TYPE) a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { OF(WORD_, B_TYPE) b[]; };
layout(set = 0, binding = 2, std430) buffer O { float o[]; };

layout(push_constant) uniform Push {
    uint m;
    uint n;
    uint k;
    uint a_first;  // element of each binding at which the operand begins
    uint b_first;
    uint o_first;
    uint a_row;  // elements from one row to the next
    uint b_step;  // from one step of K to the next
    uint b_column;  // from one column of the product to the next
    uint o_row;
    uint accumulate;  // add to what the output holds
#ifdef FORMS
    uint a_step;  // from one step of K to the next
    uint a_batch;  // from one product of a batch to the next
    uint b_batch;
    uint o_batch;
#endif
} push;

#ifdef FORMS
#define STEP_AT(R) at##R + k_at
#define ORIGIN(NAME) push.NAME##_first + gl_WorkGroupID.z * push.NAME##_batch
#else
#define STEP_AT(R) at##R + k
#define ORIGIN(NAME) push.NAME##_first
#endif

#if ROWS == 1
#define EACH_ROW(DO) DO(0)
#elif ROWS == 4
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#else
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#endif

// Rows and columns past the end are computed from the last ones, and not written.
#define BEGIN(R) \
    uint at##R = ORIGIN(a) + min(row + R, push.m - 1u) * push.a_row; \
    vec4 low##R = vec4(0.0), high##R = vec4(0.0);

#define MULTIPLY(R) \
    x = A_AT(STEP_AT(R)); \
    low##R += x * b_low; \
    high##R += x * b_high;

#define KEEP(R) \
    sums[2 * R] = low##R; \
    sums[2 * R + 1] = high##R;

vec4 load(uvec4 at) {
    return vec4(B_AT(at.x), B_AT(at.y), B_AT(at.z), B_AT(at.w));
}

void main() {
    uint groups_n = (push.n + 63u) / 64u;
    uint group = group_number();
    uint column = (group % groups_n * 8u + gl_LocalInvocationID.x) * 8u;
    uint row = (group / groups_n * 4u + gl_LocalInvocationID.y) * ROWS;
    if (row >= push.m || column >= push.n) {
        return;
    }
    uvec4 last = uvec4(push.n - 1u);
    uvec4 at_low = ORIGIN(b) + min(column + uvec4(0u, 1u, 2u, 3u), last) * push.b_column;
    uvec4 at_high = ORIGIN(b) + min(column + uvec4(4u, 5u, 6u, 7u), last) * push.b_column;
    EACH_ROW(BEGIN)
    for (uint k = 0u; k < push.k; k++) {
        vec4 b_low = load(at_low + k * push.b_step);
        vec4 b_high = load(at_high + k * push.b_step);
        float x;
#ifdef FORMS
        uint k_at = k * push.a_step;
#endif
        EACH_ROW(MULTIPLY)
    }
    // One copy of the code that stores, not one for each row: it would take most of the time to compile.
    vec4 sums[2 * ROWS];
    EACH_ROW(KEEP)
    uint width = min(push.n - column, 8u);
    for (uint r = 0u; r < min(ROWS, push.m - row); r++) {
        uint at = ORIGIN(o) + (row + r) * push.o_row + column;
        for (uint j = 0u; j < width; j++) {
            float sum = sums[2 * r + j / 4u][j % 4u];
            if (push.accumulate != 0u) {
                sum += o[at + j];
            }
            o[at + j] = sum;
        }
    }
}

#endif
