// Matrix products for GPUs in every form.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define FORMS
#define EPILOGUE
#include "common/tiled.glsl"
