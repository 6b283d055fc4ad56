// variants of kinds: KIND
// variants of wires: OUT_WIRE
// needs: integer_dot
// The product of a row by quantised weights as whole numbers that fills a slot with its float32 outputs, too, for a sum over
// devices.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define SEND
#define GROUP THREADS
#define OWN_SIZE
#define OUT_ACCESS coherent
#define SOURCE_ACCESS readonly coherent
#define SOURCE_BINDING 2
#define TARGET_BINDING 6
#define SLOTS_BINDING 7
#define STORED_BINDING 8
#define MOST_ROWS 1
#define MOST_TURNS 1u
#define SUBGROUPS 1
#define DOTS 1
#include "common/quantized_matvec.glsl"
#include "common/send.glsl"

void main() {
    uint first = min(group_number() * WIDTH, push.n);
    quantized_matvec();
    send_stored(first, min(WIDTH, push.n - first));
}
