// Attention by matrix cores: weights become factors by way of shared memory.
// variants: t128: THREADS=128 | t256: THREADS=256
// variants: f16: BFLOAT=0 K_TYPE=F16 | bf16: BFLOAT=1 K_TYPE=BF16
// needs: cooperative_matrix | bf16: bfloat16
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#if BFLOAT
#extension GL_EXT_bfloat16 : require
#endif
#include "common/attention_cores.glsl"
