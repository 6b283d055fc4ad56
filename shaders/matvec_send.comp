// variants: rows: TRANSPOSED=0 | columns: TRANSPOSED=1
// variants: scaled: OUT_WIRE=WIRE_SCALED_F16 | word: OUT_WIRE=WIRE_WORD DIRECT | bhalf: OUT_WIRE=WIRE_BF16 | q8: OUT_WIRE=WIRE_Q8
// Matrix product for up to 4 rows of a that fills a slot with its float32 outputs, too, for a sum over devices.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define SEND
#define OUT_ACCESS coherent
#define SOURCE_ACCESS readonly coherent
#define SOURCE_BINDING 2
#define TARGET_BINDING 3
#define SLOTS_BINDING 4
#include "common/matvec.glsl"
#include "common/send.glsl"

void main() {
    uint first = matvec_first();
    matvec();
    for (uint r = 0u; r < push.m; r++) {
        send_stored(r * push.n + min(first, push.n), first < push.n ? min(WIDTH, push.n - first) : 0u);
    }
}
