// One product of 16 x 16 halves added to float32 a work-group, which is one subgroup, by a cooperative matrix.
// Debian 12's compilers do not know these; after changing this file, with the compiler of tools/lib/glslang.sh:
//   glslangValidator -V --target-env vulkan1.2 -o matrices.spv matrices.comp
#version 450
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require

layout(local_size_x = 32) in;
layout(binding = 0) readonly buffer A { float16_t a[]; };
layout(binding = 1) readonly buffer B { float16_t b[]; };
layout(binding = 2) buffer C { float c[]; };

const uint SIDE = 16u;

void main() {
    uint first = gl_WorkGroupID.x * SIDE * SIDE;
    coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> x;
    coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> y;
    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sum;
    coopMatLoad(x, a, first, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(y, b, first, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(sum, c, first, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    sum = coopMatMulAdd(x, y, sum);
    coopMatStore(sum, c, first, SIDE, gl_CooperativeMatrixLayoutRowMajor);
}
