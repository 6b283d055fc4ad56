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
layout(constant_id = 19) const uint TURNS = 16;  // steps before the loop turns: 1, 2, 4, 8 or 16
layout(constant_id = 20) const bool O_EIGHTS = false;

#if BFLOAT
#define HALF bfloat16_t
#else
#define HALF float16_t
#endif

layout(set = 0, binding = 0, std430) readonly buffer A_Halves { HALF a_elements[]; };
layout(set = 0, binding = 1, std430) readonly buffer B_Halves { HALF b_elements[]; };
layout(set = 0, binding = 2, std430) buffer O_Bits { uint16_t o_bits[]; };

const uint THREADS = 256;
const uint HELD = TILE_M * TILE_N / THREADS;  // elements of a tile that an invocation holds

#define SUMS coopmat<float, gl_ScopeWorkgroup, TILE_M, TILE_N, gl_MatrixUseAccumulator>
#define X_MATRIX coopmat<HALF, gl_ScopeWorkgroup, TILE_M, STEP, gl_MatrixUseA>
#define Y_MATRIX coopmat<HALF, gl_ScopeWorkgroup, STEP, TILE_N, gl_MatrixUseB>
#define CLAMPED gl_CooperativeMatrixClampModeConstantNV

// From the output's first element.
uint output_at(uint row, uint column) {
    return row * push.o_row + column + product_number() * push.o_batch + part_number() * push.o_part;
}

#ifdef EPILOGUE
// What is stored for the sum of an element of the tile that begins at `corner`.
float followed(const in uint row, const in uint column, const in float sum, const in uvec2 corner) {
    uvec2 at = corner + uvec2(row, column);
    float result = sum;
    if (at.x < push.m && at.y < push.n) {
        if (HAS_BIAS) result += bias_at(push.bias_first + at.y * push.bias_step);
        result = activated(ACTIVATION, vec4(result)).x;
        if (HAS_RESIDUAL) result += residual_at(push.residual_first + output_at(at.x, at.y));
    }
    return result;
}
#endif

// An element's place in the tile, as bits of a float that is not subnormal.
float placed(const in uint row, const in uint column, const in float sum) {
    return uintBitsToFloat(0x3F800000u | row * TILE_N + column);
}

uint packed_pair(float first, float second) {
    return O_TYPE == BF16 ? f32_pair_to_bf16_word(vec2(first, second)) : f32_pair_to_f16_word(vec2(first, second));
}

// Of four times four pairs, those of an invocation each, the lane-th invocation's: the lane-th of each.
uvec4 exchanged(uvec4 pairs, uint lane) {
    bool odd = (lane & 1u) != 0u, high = (lane & 2u) != 0u;
    uvec2 passed = subgroupShuffleXor(odd ? pairs.xz : pairs.yw, 1u);
    pairs = odd ? uvec4(passed.x, pairs.y, passed.y, pairs.w) : uvec4(pairs.x, passed.x, pairs.z, passed.y);
    passed = subgroupShuffleXor(high ? pairs.xy : pairs.zw, 2u);
    return high ? uvec4(passed, pairs.zw) : uvec4(pairs.xy, passed);
}

// Stores two sums of a row, the first `count` of them, `at` elements from the binding's start.
void store_pair(uint at, uint count, vec2 sums) {
    if (push.accumulate != 0u) {
        sums.x += uintBitsToFloat(o_word[at]);
        if (count > 1u) sums.y += uintBitsToFloat(o_word[at + 1u]);
    }
    if (O_EIGHTS) {
        o_word2[at >> 1] = floatBitsToUint(sums);
    } else {
        o_word[at] = floatBitsToUint(sums.x);
        if (count > 1u) o_word[at + 1u] = floatBitsToUint(sums.y);
    }
}

// The same of eight halves.
void store_eight(uint at, uint count, uvec4 eight) {
    if (O_EIGHTS) {
        o_word4[at >> 3] = eight;
    } else {
        [[dont_unroll]] for (uint i = 0u; i < min(count, 8u); i++) {
            o_bits[at + i] = uint16_t(eight[i / 2u] >> i % 2u * 16u);
        }
    }
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

// The tile's elements as this invocation holds them.
#define PLACE(I) (floatBitsToUint(places[I]) & 0x7FFFFFu)
#define PAIR(I) packed_pair(sums[I], sums[(I) + 1u])

// Each element is stored by one tile, although the last ones begin within those before.
#define IS_OWN(AT) (all(greaterThanEqual(AT, own)) && all(lessThan(AT, end)))

void make(uvec2 begin) {
    // The last tiles begin earlier, so that they lie within the result, where bounds need no check. (With the sizes read
    // before the branch, NVIDIA's driver 580 makes a loop of it that is 6% slower.)
    uvec2 corner = begin;
    if (push.m >= TILE_M && push.n >= TILE_N && ((push.m | push.n) & 7u) == 0u) {
        corner = min(begin, (uvec2(push.m, push.n) - uvec2(TILE_M, TILE_N)) & ~7u);
    }
    tensorViewNV<2, false, 1, 0> turned = createTensorViewNV(2, false, 1, 0);
    uint stop = k_end();
    OPERAND(a, A_EIGHTS, (TRANSPOSE_A ? stop : push.m), (TRANSPOSE_A ? push.m : stop))
    OPERAND(b, B_EIGHTS, (TRANSPOSE_B ? push.n : stop), (TRANSPOSE_B ? stop : push.n))

    SUMS sums = SUMS(0.0);
    uint at = k_begin();
    if (corner.x + TILE_M <= push.m && corner.y + TILE_N <= push.n) {
        [[dont_unroll]] while (at + TURNS * STEP <= stop) {
            INSIDE(0u) INSIDE(1u) INSIDE(2u) INSIDE(3u) INSIDE(4u) INSIDE(5u) INSIDE(6u) INSIDE(7u)
            INSIDE(8u) INSIDE(9u) INSIDE(10u) INSIDE(11u) INSIDE(12u) INSIDE(13u) INSIDE(14u) INSIDE(15u)
        }
        [[dont_unroll]] while (at + STEP <= stop) INSIDE(0u)
    }
    [[dont_unroll]] while (at < stop) MULTIPLY(a_edge, b_edge)

#ifdef EPILOGUE
    coopMatPerElementNV(sums, sums, followed, corner);
#endif

    // How a driver spreads elements over invocations is its own affair. vkpar takes this kernel where it was seen that each
    // holds pairs of neighbours, and that of eight neighbours in a row, at a multiple of eight, each of four invocations
    // has one pair: their I-th, or (I + 4)-th, or one of the next two such.
    SUMS places = SUMS(0.0);
    coopMatPerElementNV(places, places, placed);
    uint lane = gl_SubgroupInvocationID & 3u;
    uint row = O_EIGHTS ? push.o_row & ~7u : push.o_row;
    uint first = push.o_first + output_at(corner.x, corner.y);
    if (O_EIGHTS) first &= ~7u;
    uvec2 own = begin - corner, end = min(uvec2(push.m, push.n) - corner, uvec2(TILE_M, TILE_N));
    if (O_TYPE == F32) {
        [[unroll]] for (uint i = 0u; i < HELD; i += 2u) {
            uvec2 at = uvec2(PLACE(i) / TILE_N, PLACE(i) % TILE_N);
            if (IS_OWN(at)) store_pair(first + at.x * row + at.y, end.y - at.y, vec2(sums[i], sums[i + 1u]));
        }
    } else {
        [[unroll]] for (uint i = 0u; i < HELD; i += i % 4u == 0u ? 2u : 14u) {
            uvec4 eight = exchanged(uvec4(PAIR(i), PAIR(i + 4u), PAIR(i + 8u), PAIR(i + 12u)), lane);
            uint place = lane == 0u ? PLACE(i) : lane == 1u ? PLACE(i + 4u) : lane == 2u ? PLACE(i + 8u) : PLACE(i + 12u);
            uvec2 at = uvec2(place / TILE_N, place % TILE_N & ~7u);
            if (IS_OWN(at)) store_eight(first + at.x * row + at.y, end.y - at.y, eight);
        }
    }
}

#include "coop_main.glsl"

#endif
