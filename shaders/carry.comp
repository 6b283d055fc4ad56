#version 450
// Flags of slots that copy engines carry between cards: raises this rank's word of each lane on which something is ready,
// then waits until as many transfers have come on each lane as it was told to. Each invocation looks after a lane.
//
// A copy engine raises the words of what came while the kernel runs. Where nothing comes, the host ends the wait: it
// raises the word that says so.

layout(local_size_x = 16) in;

layout(set = 0, binding = 0, std430) coherent volatile buffer Slots { uint slot_word[]; };

layout(push_constant) uniform Push {
    uint sends;         // bits 2 i and 2 i + 1: so many transfers on lane i are ready
    uint arrivals[16];  // on lane i: how many more transfers to wait for
};

// Words, one for each lane, 64 bytes apart: see vkpar/comm/rig/carriers.py.
const uint APART = 16u, RAISED = 0u, ARRIVED = 256u, AWAITED = 512u, ABORTED = 768u;

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint ready = sends >> 2u * lane & 3u;
    if (ready != 0u) {
        atomicAdd(slot_word[RAISED + lane * APART], ready);  // an abort may write the word meanwhile
    }
    memoryBarrierBuffer();
    barrier();
    if (arrivals[lane] != 0u) {
        uint wanted = slot_word[AWAITED + lane * APART] + arrivals[lane];
        slot_word[AWAITED + lane * APART] = wanted;
        uint seen;
        do {
            seen = slot_word[ARRIVED + lane * APART];
        } while (int(seen - wanted) < 0 && slot_word[ABORTED] == 0u);
        slot_word[AWAITED + lane * APART + 1u] = seen;  // optimizers drop loops whose results nobody uses
    }
    memoryBarrierBuffer();
}
