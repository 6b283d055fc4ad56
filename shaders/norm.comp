// y = x / rms(x) * w, or (x - mean(x)) / deviation(x) * w + b, along rows; or the first of h = x + r, which is written too.
// variants: layer: LAYER | rms: RMS | residual: RMS RESIDUAL
// variants: f32: X_TYPE=F32 | f16: X_TYPE=F16 | bf16: X_TYPE=BF16
// variants: kept: KEPT | long: LONG
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/elements.glsl"
#include "common/grid.glsl"
#include "common/rows.glsl"
#include "common/norm.glsl"
