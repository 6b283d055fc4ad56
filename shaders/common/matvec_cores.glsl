// The body of matrix products for up to 16 rows of a by cooperative matrices of subgroups (VK_KHR_cooperative_matrix), for
// halves whose rows are whole units of 16 bytes.
//
// Such a product is bound by reading b once. A group makes COLUMNS of the result; its subgroups take turns of STEP steps
// of K, each by itself: there is no barrier of the group before the sums are added up. While a subgroup multiplies one
// turn's part of b and of a out of its place in shared memory, those of its next turn are on the way to registers.
//
// Columns of the result are the rows of its matrices, so that the rows of a are the columns, FN of them. Those that there
// are not are whatever lies in shared memory: what comes of them is not stored.
#ifndef VKPAR_MATVEC_CORES_GLSL
#define VKPAR_MATVEC_CORES_GLSL

#define FORMS
#ifdef EPILOGUE
#define HOLDS_RESIDUAL
#endif
#include "matmul.glsl"

layout(local_size_x_id = 19) in;
layout(constant_id = 7) const uint ROWS = 8;  // of a, up to FN
layout(constant_id = 8) const uint COLUMNS = 16;
layout(constant_id = 18) const uint STEP = 64;
layout(constant_id = 19) const uint THREADS = 256;  // four columns of a row or fewer to each
layout(constant_id = 20) const uint WARP = 32;      // invocations of a subgroup
layout(constant_id = 21) const uint TURNS = 1;      // on the way at once
layout(constant_id = 22) const uint FM = 16;        // of one matrix of sums: columns of the result
layout(constant_id = 23) const uint FN = 16;        // rows of a, ROWS or more
layout(constant_id = 24) const uint FK = 16;

#if BFLOAT
#define HALF bfloat16_t
#else
#define HALF float16_t
#endif

const uint GROUPS = THREADS / WARP;
const uint REPEATS = COLUMNS / FM;

// In units of 16 bytes. Rows have one unit more in shared memory, which spreads them over the banks.
const uint A_UNITS = STEP / 8u;
const uint A_SIZE = ROWS * (A_UNITS + 1u);
const uint A_TURNS = (ROWS * A_UNITS + WARP - 1u) / WARP;
const uint B_LINES = TRANSPOSE_B ? COLUMNS : STEP;
const uint B_UNITS = TRANSPOSE_B ? A_UNITS : COLUMNS / 8u;
const uint B_SIZE = B_LINES * (B_UNITS + 1u);
const uint B_TURNS = B_LINES * B_UNITS / WARP;
const uint QUADS = COLUMNS / 4u;
const uint PLACE = A_SIZE + B_SIZE;  // of a subgroup; its sums fit, too, and so do FN rows of a

#define SUMS coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define B_MATRIX coopmat<HALF, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA>
#define A_MATRIX coopmat<HALF, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB>

shared uvec4 places[GROUPS * PLACE];

// The last turn may have nothing to do for some.
#define EACH_A [[unroll]] for (uint p = 0u; p < A_TURNS; p++) if (lane + p * WARP < ROWS * A_UNITS)
#define EACH_B [[unroll]] for (uint p = 0u; p < B_TURNS; p++)

// Loads a lane's share of turn T, which begins at `k`, zeros past the end of K.
#define FETCH(T, K) { \
    uint k = K; \
    EACH_B { \
        bool there = k + (TRANSPOSE_B ? b_k : b_k + p * (WARP / B_UNITS)) < k_end(); \
        b_next[(T) * B_TURNS + p] = uvec4(0u); \
        if (there) b_next[(T) * B_TURNS + p] = b_word4[b_from[p] + (TRANSPOSE_B ? k / 8u : k * (push.b_row / 8u))]; \
    } \
    EACH_A { \
        a_next[(T) * A_TURNS + p] = uvec4(0u); \
        if (k + a_k < k_end()) a_next[(T) * A_TURNS + p] = a_word4[a_from + p * a_jump + k / 8u]; \
    } \
}

#define PUT(T) { \
    EACH_B places[b_put + p * (WARP / B_UNITS) * (B_UNITS + 1u)] = b_next[(T) * B_TURNS + p]; \
    EACH_A places[a_put + p * (WARP / A_UNITS) * (A_UNITS + 1u)] = a_next[(T) * A_TURNS + p]; \
}

void make(uint column0) {
    uint id = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, own = gl_SubgroupID * PLACE;
    uint row = id / QUADS, column = column0 + id % QUADS * 4u;  // of what this invocation stores
#ifdef EPILOGUE
    if (row < ROWS) hold_residual(row, column);
#endif

    uint a_line = lane / A_UNITS, a_unit = lane % A_UNITS, a_k = a_unit * 8u;
    uint a_from = (a_origin() + a_line * push.a_row) / 8u + a_unit, a_jump = WARP / A_UNITS * (push.a_row / 8u);
    uint a_put = own + a_line * (A_UNITS + 1u) + a_unit;

    // Past the end of N: the last columns again, which are not stored.
    uint b_line = lane / B_UNITS, b_unit = lane % B_UNITS, b_k = TRANSPOSE_B ? b_unit * 8u : b_line;
    uint b_put = own + A_SIZE + b_line * (B_UNITS + 1u) + b_unit, b_from[B_TURNS];
    EACH_B {
        uint line = b_line + p * (WARP / B_UNITS);
        uint at = min(column0 + b_unit * 8u, push.n - 8u) + line * push.b_row;
        if (TRANSPOSE_B) at = min(column0 + line, push.n - 1u) * push.b_row + b_unit * 8u;
        b_from[p] = (b_origin() + at) / 8u;
    }

    SUMS sums[REPEATS];
    [[unroll]] for (uint q = 0u; q < REPEATS; q++) sums[q] = SUMS(0.0);
    uvec4 a_next[TURNS * A_TURNS], b_next[TURNS * B_TURNS];
    uint k0 = k_begin() + gl_SubgroupID * TURNS * STEP;
    [[unroll]] for (uint t = 0u; t < TURNS; t++) FETCH(t, k0 + t * STEP)
    [[dont_unroll]] for (; k0 < k_end(); k0 += GROUPS * TURNS * STEP) {
        [[unroll]] for (uint t = 0u; t < TURNS; t++) {
            PUT(t)
            subgroupBarrier();
            FETCH(t, k0 + (GROUPS * TURNS + t) * STEP)
            [[unroll]] for (uint s = 0u; s < STEP / FK; s++) {
                A_MATRIX x;
                coopMatLoad(x, places, own + s * FK / 8u, A_UNITS + 1u, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint q = 0u; q < REPEATS; q++) {
                    B_MATRIX y;
                    if (TRANSPOSE_B) {
                        coopMatLoad(y, places, own + A_SIZE + q * FM * (B_UNITS + 1u) + s * FK / 8u, B_UNITS + 1u,
                                    gl_CooperativeMatrixLayoutRowMajor);
                    } else {
                        coopMatLoad(y, places, own + A_SIZE + s * FK * (B_UNITS + 1u) + q * FM / 8u, B_UNITS + 1u,
                                    gl_CooperativeMatrixLayoutColumnMajor);
                    }
                    sums[q] = coopMatMulAdd(y, x, sums[q]);
                }
            }
            subgroupBarrier();
        }
    }

    [[unroll]] for (uint q = 0u; q < REPEATS; q++) {
        coopMatStore(sums[q], places, own + q * FM / 4u, QUADS, gl_CooperativeMatrixLayoutColumnMajor);
    }
    barrier();
    if (row < ROWS) {
        vec4 sum = uintBitsToFloat(places[id]);
        [[unroll]] for (uint g = 1u; g < GROUPS; g++) sum += uintBitsToFloat(places[g * PLACE + id]);
        store_row4(row, column, sum);
    }
}

void main() {
    if (group_number() * COLUMNS < push.n) make(group_number() * COLUMNS);
}

#endif
