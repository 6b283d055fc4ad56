// variants: rows: TRANSPOSED=0 | columns: TRANSPOSED=1
// variants: plain: | forms: FORMS
// Matrix product for up to 4 rows of a.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/matvec.glsl"

void main() {
    matvec();
}
