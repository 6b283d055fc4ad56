// Reduces rows on CPU drivers that read storage buffers element by element.
// variants: sum_f32_f32: SUM A_TYPE=F32 O_TYPE=F32 | sum_i32_i32: SUM WORDS A_TYPE=I32 O_TYPE=I32 | extreme_f32_f32: EXTREME A_TYPE=F32 O_TYPE=F32 | extreme_i32_i32: EXTREME A_TYPE=I32 O_TYPE=I32 | place_f32: PLACE A_TYPE=F32 O_TYPE=I32 | place_i32: PLACE A_TYPE=I32 O_TYPE=I32
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_ARB_gpu_shader_int64 : require
#define W64
#include "common/reduce_rows.glsl"
