// variants of kinds: KIND
// variants: rows1: MOST_ROWS=1 MOST_TURNS=4u | rows8: MOST_ROWS=8 MOST_TURNS=2u
// variants: alone: SUBGROUPS=0 | subgroups: SUBGROUPS=1
// Products of up to 8 rows of a by quantised weights, in every form.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/quantized_matvec.glsl"

void main() {
    quantized_matvec();
}
