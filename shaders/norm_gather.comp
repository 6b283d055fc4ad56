// The last step of a sum x, and at once y and h of the RMS norm of h = x + r along its rows.
// variants of wires: IN_WIRE
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define RMS
#define RESIDUAL
#define KEPT
#define GATHERS
#define X_TYPE F32
#define LANES 1
#define ELEM ELEM_F32
#define OUT_WIRE IN_WIRE
#define TAIL
#define SOURCE_BINDING 0
#define SOURCE_ACCESS
#define TARGET_BINDING 0
#define SLOTS_BINDING 5
#define SLOTS_ACCESS coherent
#include "common/elements.glsl"
#include "common/grid.glsl"
#include "common/rows.glsl"
#include "common/flags.glsl"
#include "common/gather.glsl"
#include "common/norm.glsl"
