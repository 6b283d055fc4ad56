// Reduces columns in parts, and what these come to, in one dispatch.
// variants: sum_f32_f32: SUM A_TYPE=F32 O_TYPE=F32 | sum_f32_f16: SUM A_TYPE=F32 O_TYPE=F16 | sum_f32_bf16: SUM A_TYPE=F32 O_TYPE=BF16 | sum_f16_f16: SUM A_TYPE=F16 O_TYPE=F16 | sum_f16_f32: SUM A_TYPE=F16 O_TYPE=F32 | sum_bf16_bf16: SUM A_TYPE=BF16 O_TYPE=BF16 | sum_bf16_f32: SUM A_TYPE=BF16 O_TYPE=F32 | sum_i32_i32: SUM WORDS A_TYPE=I32 O_TYPE=I32 | sum_i32_f32: SUM SIGNED A_TYPE=I32 O_TYPE=F32 | sum_u32_f32: SUM UNSIGNED A_TYPE=I32 O_TYPE=F32 | extreme_f32_f32: EXTREME A_TYPE=F32 O_TYPE=F32 | extreme_f32_f16: EXTREME A_TYPE=F32 O_TYPE=F16 | extreme_f32_bf16: EXTREME A_TYPE=F32 O_TYPE=BF16 | extreme_f16_f16: EXTREME A_TYPE=F16 O_TYPE=F16 | extreme_f16_f32: EXTREME A_TYPE=F16 O_TYPE=F32 | extreme_bf16_bf16: EXTREME A_TYPE=BF16 O_TYPE=BF16 | extreme_bf16_f32: EXTREME A_TYPE=BF16 O_TYPE=F32 | extreme_i32_i32: EXTREME A_TYPE=I32 O_TYPE=I32 | place_f32: PLACE A_TYPE=F32 O_TYPE=I32 | place_f16: PLACE A_TYPE=F16 O_TYPE=I32 | place_bf16: PLACE A_TYPE=BF16 O_TYPE=I32 | place_i32: PLACE A_TYPE=I32 O_TYPE=I32
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define FINISHES
#include "common/reduce_columns.glsl"
