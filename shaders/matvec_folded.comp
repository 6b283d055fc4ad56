// variants: pairs1: MOST_ROWS=1 TURNS=4 | columns8: MOST_ROWS=8 TURNS=2
// variants: alone: SUBGROUPS=0 | subgroups: SUBGROUPS=1
// Matrix products for up to 8 rows of a by a transposed b, with a norm before them, or a gate after them.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define TRANSPOSED 1
#define COLUMNS 2
#define FORMS
#define EPILOGUE
#define FOLDED
#define NORM_BINDING 5
#include "common/matvec.glsl"

void main() {
    matvec();
}
