// variants: f16: BFLOAT=0 | bf16: BFLOAT=1
// needs: cooperative_matrix | bf16: bfloat16
// Matrix product for up to 16 rows of a by matrix cores, by subgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#if BFLOAT
#extension GL_EXT_bfloat16 : require
#endif
#include "common/matvec_cores.glsl"
