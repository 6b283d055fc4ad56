// variants: f16: BFLOAT=0 | bf16: BFLOAT=1
// target: vulkan1.3
// needs: cooperative_matrix cooperative_matrix2 | bf16: bfloat16
// Matrix product by matrix cores, by work-groups.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#if BFLOAT
#extension GL_EXT_bfloat16 : require
#endif
#include "common/coop2.glsl"
