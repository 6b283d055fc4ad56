// y = gate / (1 + exp(-gate)) * up: four elements of a row an invocation; the rows of either operand may lie apart.
// variants: f32: A_TYPE=F32 | f16: A_TYPE=F16 | bf16: A_TYPE=BF16
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/elements.glsl"
#include "common/gate.glsl"
#include "common/grid.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const bool A_WIDE = false;  // rows begin at multiples of 4
layout(constant_id = 1) const bool B_WIDE = false;
layout(constant_id = 2) const bool O_WIDE = false;
layout(constant_id = 3) const uint B_TYPE = 0;
layout(constant_id = 4) const uint O_TYPE = 0;
layout(constant_id = 5) const bool WHOLE = false;  // rows are multiples of 4

ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
ELEMENTS_IN(b, 1, B_TYPE, B_WIDE)
ELEMENTS_OUT(o, 2, O_TYPE, O_WIDE)

layout(push_constant) uniform Push {
    uint rows;
    uint extent;  // of a row; even for halves, or there is one row
    uint a_row;   // elements from one row to the next
    uint b_row;
    uint a_first;
    uint b_first;
    uint o_first;  // even for halves
} push;

void main() {
    uint fours = (push.extent + 3u) / 4u;
    uint i = group_number() * 256u + gl_LocalInvocationID.x;
    uint row = i / fours;
    uint k = i % fours * 4u;
    if (row >= push.rows) {
        return;
    }
    uint n = WHOLE ? 4u : push.extent - k;
    vec4 gate = a_at4(push.a_first + row * push.a_row + k, n);
    vec4 up = b_at4(push.b_first + row * push.b_row + k, n);
    o_store4(push.o_first + row * push.extent + k, n, o_pack4(floatBitsToUint(gated(gate, up))));
}
