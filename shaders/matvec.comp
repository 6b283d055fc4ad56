// variants: rows256: TRANSPOSED=0 THREADS=256 | rows1024: TRANSPOSED=0 THREADS=1024 | columns1: TRANSPOSED=1 MOST_ROWS=1 COLUMNS=1 TURNS=4 | columns8: TRANSPOSED=1 MOST_ROWS=8 COLUMNS=2 TURNS=2 | columns1_subgroups: TRANSPOSED=1 MOST_ROWS=1 COLUMNS=1 TURNS=4 SUBGROUPS=1 | columns8_subgroups: TRANSPOSED=1 MOST_ROWS=8 COLUMNS=2 TURNS=2 SUBGROUPS=1
// Matrix product for up to 8 rows of a.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/matvec.glsl"

void main() {
    matvec();
}
