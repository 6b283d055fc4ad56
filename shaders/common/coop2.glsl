// The body of matrix products by cooperative matrices of work-groups (VK_NV_cooperative_matrix2): a group makes a tile of
// TILE_M x TILE_N. Its operands, STEP steps of K at a time, are loaded from memory as two matrices by tensor layouts;
// staging is the driver's.
//
// Tiles within the result, and whole steps, are loaded without a check of bounds, which costs half of the rate or more.
#ifndef VKPAR_COOP2_GLSL
#define VKPAR_COOP2_GLSL

#define FORMS
#include "matmul.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 7) const uint TILE_M = 128;
layout(constant_id = 8) const uint TILE_N = 128;
layout(constant_id = 9) const bool A_EIGHTS = false;  // first element and row length are multiples of 8, and so on
layout(constant_id = 10) const bool B_EIGHTS = false;
layout(constant_id = 18) const uint STEP = 64;
layout(constant_id = 19) const uint TURNS = 8;  // steps before the loop turns: 1, 2, 4 or 8

#if BFLOAT
#define HALF bfloat16_t
const uint HALF_TYPE = BF16;
#else
#define HALF float16_t
const uint HALF_TYPE = F16;
#endif

layout(set = 0, binding = 0, std430) readonly buffer A_Halves { HALF a_elements[]; };
layout(set = 0, binding = 1, std430) readonly buffer B_Halves { HALF b_elements[]; };
layout(set = 0, binding = 2, std430) buffer O_Floats { float o_floats[]; };
layout(set = 0, binding = 2, std430) buffer O_Halves { HALF o_elements[]; };
layout(set = 0, binding = 2, std430) buffer O_Bits { uint16_t o_bits[]; };

#define SUMS(T) coopmat<T, gl_ScopeWorkgroup, TILE_M, TILE_N, gl_MatrixUseAccumulator>
#define X_MATRIX coopmat<HALF, gl_ScopeWorkgroup, TILE_M, STEP, gl_MatrixUseA>
#define Y_MATRIX coopmat<HALF, gl_ScopeWorkgroup, STEP, TILE_N, gl_MatrixUseB>
#define CLAMPED gl_CooperativeMatrixClampModeConstantNV

// Of this group's tile: what is stored for the sum of one element, without and with what the output holds.
uint output_at(uint row, uint column) {
    return row * push.o_row + column + product_number() * push.o_batch + part_number() * push.o_part;
}

float followed(uint row, uint column, float sum) {
    uint at = output_at(row, column);
#ifdef EPILOGUE
    if (HAS_BIAS) sum += bias_at(push.bias_first + column * push.bias_step);
    sum = activated(ACTIVATION, vec4(sum)).x;
    if (HAS_RESIDUAL) sum += residual_at(push.residual_first + at);
#endif
    if (push.accumulate != 0u) sum += o_floats[push.o_first + at];
    return sum;
}

float follow(const in uint row, const in uint column, const in float sum, const in uvec2 corner) {
    uvec2 at = corner + uvec2(row, column);
    float result = sum;
    if (at.x < push.m && at.y < push.n) result = followed(at.x, at.y, sum);
    return result;
}

// The nearest bfloat16: what converts it has nothing to round.
float rounded(const in uint row, const in uint column, const in float sum) {
    return uintBitsToFloat(f32_bits_to_bf16_bits(floatBitsToUint(sum)) << 16);
}

float store_bits(const in uint row, const in uint column, const in float sum, const in uvec2 corner) {
    uvec2 at = corner + uvec2(row, column);
    if (at.x < push.m && at.y < push.n) {
        uint bits = O_TYPE == BF16 ? f32_bits_to_bf16_bits(floatBitsToUint(sum)) : f32_to_f16_bits(sum);
        o_bits[push.o_first + output_at(at.x, at.y)] = uint16_t(bits);
    }
    return sum;
}

// Adds the product of one step of K that begins at `at`, loaded by layouts of the operands as they lie in memory. Where the
// compiler does not know that it begins at a multiple of eight elements, it loads them one by one.
#define MULTIPLY(A_LAYOUT, B_LAYOUT) { \
    X_MATRIX x; \
    Y_MATRIX y; \
    uint k = at & ~7u; \
    if (TRANSPOSE_A) { \
        coopMatLoadTensorNV(x, a_elements, a_first, sliceTensorLayoutNV(A_LAYOUT, k, STEP, corner.x, TILE_M), turned); \
    } else { \
        coopMatLoadTensorNV(x, a_elements, a_first, sliceTensorLayoutNV(A_LAYOUT, corner.x, TILE_M, k, STEP)); \
    } \
    if (TRANSPOSE_B) { \
        coopMatLoadTensorNV(y, b_elements, b_first, sliceTensorLayoutNV(B_LAYOUT, corner.y, TILE_N, k, STEP), turned); \
    } else { \
        coopMatLoadTensorNV(y, b_elements, b_first, sliceTensorLayoutNV(B_LAYOUT, k, STEP, corner.y, TILE_N)); \
    } \
    sums = coopMatMulAdd(x, y, sums); \
    at += STEP; \
}

#define INSIDE(I) if (TURNS > I) MULTIPLY(a_inside, b_inside)

// The layout of an operand, without the checks of bounds and with them.
#define OPERAND(NAME, EIGHTS, HIGH, BROAD) \
    uint NAME##_first = EIGHTS ? NAME##_origin() & ~7u : NAME##_origin(); \
    uint NAME##_pitch = EIGHTS ? push.NAME##_row & ~7u : push.NAME##_row; \
    tensorLayoutNV<2> NAME##_inside = createTensorLayoutNV(2); \
    NAME##_inside = setTensorLayoutDimensionNV(NAME##_inside, HIGH, BROAD); \
    NAME##_inside = setTensorLayoutStrideNV(NAME##_inside, NAME##_pitch, 1u); \
    tensorLayoutNV<2, CLAMPED> NAME##_edge = createTensorLayoutNV(2, CLAMPED); \
    NAME##_edge = setTensorLayoutDimensionNV(NAME##_edge, HIGH, BROAD); \
    NAME##_edge = setTensorLayoutStrideNV(NAME##_edge, NAME##_pitch, 1u);

#define STORE(MATRIX, OUT) coopMatStoreTensorNV(MATRIX, OUT, push.o_first + output_at(0u, 0u), place);

void make(uvec2 corner) {
    tensorViewNV<2, false, 1, 0> turned = createTensorViewNV(2, false, 1, 0);
    uint end = k_end();
    OPERAND(a, A_EIGHTS, (TRANSPOSE_A ? end : push.m), (TRANSPOSE_A ? push.m : end))
    OPERAND(b, B_EIGHTS, (TRANSPOSE_B ? push.n : end), (TRANSPOSE_B ? end : push.n))

    SUMS(float) sums = SUMS(float)(0.0);
    uint at = k_begin();
    if (corner.x + TILE_M <= push.m && corner.y + TILE_N <= push.n) {
        [[dont_unroll]] while (at + TURNS * STEP <= end) {
            INSIDE(0u) INSIDE(1u) INSIDE(2u) INSIDE(3u) INSIDE(4u) INSIDE(5u) INSIDE(6u) INSIDE(7u)
        }
        [[dont_unroll]] while (at + STEP <= end) INSIDE(0u)
    }
    [[dont_unroll]] while (at < end) MULTIPLY(a_edge, b_edge)

#ifdef EPILOGUE
    coopMatPerElementNV(sums, sums, follow, corner);
#else
    if (push.accumulate != 0u) coopMatPerElementNV(sums, sums, follow, corner);
#endif
    tensorLayoutNV<2, CLAMPED> place = createTensorLayoutNV(2, CLAMPED);
    place = setTensorLayoutDimensionNV(place, push.m, push.n);
    place = setTensorLayoutStrideNV(place, O_WIDE ? push.o_row & ~3u : push.o_row, 1u);
    place = sliceTensorLayoutNV(place, corner.x, TILE_M, corner.y, TILE_N);
    if (O_TYPE == F32) {
        STORE(sums, o_floats)
    } else if (O_TYPE == HALF_TYPE) {
#if BFLOAT
        coopMatPerElementNV(sums, sums, rounded);
#endif
        SUMS(HALF) halves = SUMS(HALF)(sums);
        STORE(halves, o_elements)
    } else {
        coopMatPerElementNV(sums, sums, store_bits, corner);
    }
}

#include "coop_main.glsl"

#endif
