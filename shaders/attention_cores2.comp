// Attention by matrix cores: weights become factors where they are (VK_NV_cooperative_matrix2).
// variants: t128: THREADS=128 | t256: THREADS=256
// variants: f16: BFLOAT=0 K_TYPE=F16 | bf16: BFLOAT=1 K_TYPE=BF16
// target: vulkan1.3
// needs: cooperative_matrix cooperative_matrix2 | bf16: bfloat16
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#if BFLOAT
#extension GL_EXT_bfloat16 : require
#endif
#define CONVERTS
#include "common/attention_cores.glsl"
