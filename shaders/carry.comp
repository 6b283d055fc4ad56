#version 450
#extension GL_GOOGLE_include_directive : require
// Flags of slots that copy engines carry between cards: raises this rank's word of each lane on which something is ready,
// then waits until as many transfers have come on each lane as it was told to. Each invocation looks after a lane.

layout(local_size_x = 16) in;

layout(push_constant) uniform Push {
    uint sends;         // bits 2 i and 2 i + 1: so many transfers on lane i are ready
    uint arrivals[16];  // on lane i: how many more transfers to wait for
};

#define SLOTS_BINDING 0
#include "common/flags.glsl"

void main() {
    uint lane = gl_LocalInvocationID.x;
    raise(sends);
    memoryBarrierBuffer();
    barrier();
    if (arrivals[lane] != 0u) {
        uint wanted = flag_word[AWAITED + lane * LANE_WORDS] + arrivals[lane];
        flag_word[AWAITED + lane * LANE_WORDS] = wanted;
        wait_for(lane, wanted);
    }
    memoryBarrierBuffer();
}
