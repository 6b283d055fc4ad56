// Matrices of 16 columns that a subgroup holds (VK_KHR_cooperative_matrix), between registers and `tiles`, an array of
// uvec4 in shared memory. Rows in there begin AT a unit of 16 bytes, PITCH units apart. What is multiplied from the left has
// FM rows, and so have sums.
#ifndef VKPAR_FRAGMENTS_GLSL
#define VKPAR_FRAGMENTS_GLSL

#if BFLOAT
#define HALF bfloat16_t
#else
#define HALF float16_t
#endif

#define LEFT coopmat<HALF, gl_ScopeSubgroup, FM, 16, gl_MatrixUseA>
#define RIGHT coopmat<HALF, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, FM, 16, gl_MatrixUseAccumulator>
#define LOAD(MATRIX, AT, PITCH) coopMatLoad(MATRIX, tiles, AT, PITCH, gl_CooperativeMatrixLayoutRowMajor)
#define LOAD_TURNED(MATRIX, AT, PITCH) coopMatLoad(MATRIX, tiles, AT, PITCH, gl_CooperativeMatrixLayoutColumnMajor)
#define STORE(MATRIX, AT, PITCH) coopMatStore(MATRIX, tiles, AT, PITCH, gl_CooperativeMatrixLayoutRowMajor)
#define NOTHING SUMS(0.0)
#define ADD_PRODUCT(INTO, A, B) INTO = coopMatMulAdd(A, B, INTO)
#define SCALE(INTO, FACTORS) INTO = INTO * FACTORS

// What invocations of a subgroup wrote to shared memory can be read by the others of it.
#define MEET subgroupBarrier()
#define ANY(CONDITION) subgroupAny(CONDITION)
#define NEIGHBOUR(V, BIT) subgroupShuffleXor(V, BIT)
#define SUBGROUP gl_SubgroupID
#define LANE gl_SubgroupInvocationID

#endif
