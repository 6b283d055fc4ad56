// variants of wires: OUT_WIRE
// The product of a row by the floats matrices of all the experts that it takes, which fills a slot with its outputs, too, for a
// sum over devices.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define SEND
#define GROUP THREADS
#define OUT_ACCESS coherent
#define SOURCE_ACCESS readonly coherent
#define SOURCE_BINDING 2
#define TARGET_BINDING 7
#define SLOTS_BINDING 8
#define STORED_BINDING 9
#include "common/expert_few.glsl"
#include "common/send.glsl"

void main() {
    uint first = min(group_number() * WIDTH, push.n);
    expert_few();
    send_stored(first, min(WIDTH, push.n - first));
}
