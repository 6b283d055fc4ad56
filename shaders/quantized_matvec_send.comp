// variants of kinds: KIND
// variants: rows1: MOST_ROWS=1 MOST_TURNS=4u
// variants: alone: SUBGROUPS=0 | subgroups: SUBGROUPS=1
// variants of wires: OUT_WIRE
// The product of a row by quantised weights that fills a slot with its float32 outputs, too, for a sum over devices.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define SEND
#define GROUP 256
#define OUT_ACCESS coherent
#define SOURCE_ACCESS readonly coherent
#define SOURCE_BINDING 2
#define TARGET_BINDING 6
#define SLOTS_BINDING 7
#define STORED_BINDING 8
#include "common/quantized_matvec.glsl"
#include "common/send.glsl"

void main() {
    uint first = min(group_number() * WIDTH, push.n);
    quantized_matvec();
    send_stored(first, min(WIDTH, push.n - first));
}
