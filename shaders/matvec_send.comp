// variants: rows256: TRANSPOSED=0 THREADS=256 | rows1024: TRANSPOSED=0 THREADS=1024 | columns1: TRANSPOSED=1 MOST_ROWS=1 COLUMNS=1 TURNS=4 | columns8: TRANSPOSED=1 MOST_ROWS=8 COLUMNS=2 TURNS=2 | columns1_subgroups: TRANSPOSED=1 MOST_ROWS=1 COLUMNS=1 TURNS=4 SUBGROUPS=1 | columns8_subgroups: TRANSPOSED=1 MOST_ROWS=8 COLUMNS=2 TURNS=2 SUBGROUPS=1
// variants of wires: OUT_WIRE
// Matrix product for up to 8 rows of a that fills a slot with its float32 outputs, too, for a sum over devices.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define SEND
#define GROUP THREADS
#define OUT_ACCESS coherent
#define SOURCE_ACCESS readonly coherent
#define SOURCE_BINDING 2
#define TARGET_BINDING 3
#define SLOTS_BINDING 4
#define STORED_BINDING 5
#include "common/matvec.glsl"
#include "common/send.glsl"

void main() {
    uint first = matvec_first();
    matvec();
    for (uint r = 0u; r < push.m; r++) {
        send_stored(r * push.n + min(first, push.n), first < push.n ? min(WIDTH, push.n - first) : 0u);
    }
}
