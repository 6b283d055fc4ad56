#version 450
// Flags of slots that copy engines carry between cards: raises this rank's word for each rank that is sent something, then
// waits until as many transfers have come from each rank as it was told to. Invocation i looks after rank i.
//
// A copy engine raises the words of what came while the kernel runs. The wait is bounded: whoever gives up tells so.

layout(local_size_x = 16) in;

layout(set = 0, binding = 0, std430) coherent volatile buffer Slots { uint slot_word[]; };

layout(push_constant) uniform Push {
    uint sends;         // bits 2 r and 2 r + 1: so many transfers to rank r are ready
    uint turns;         // of a wait, at most, in units of 65,536
    uint arrivals[16];  // from rank r: how many more transfers to wait for
};

// Words, one for each rank, 64 bytes apart: see vkpar/comm/rig/carriers.py.
const uint APART = 16u, RAISED = 0u, ARRIVED = 256u, AWAITED = 512u, ABORTED = 768u, MISSED = 784u;

bool comes(uint rank) {
    uint wanted = slot_word[AWAITED + rank * APART] + arrivals[rank];
    slot_word[AWAITED + rank * APART] = wanted;
    for (uint turn = 0u; turn < turns; turn++) {
        for (uint look = 0u; look < 65536u; look++) {
            if (int(slot_word[ARRIVED + rank * APART] - wanted) >= 0 || slot_word[ABORTED] != 0u) {
                return true;
            }
        }
    }
    return false;
}

void main() {
    uint rank = gl_LocalInvocationID.x;
    uint ready = sends >> 2u * rank & 3u;
    if (ready != 0u) {
        slot_word[RAISED + rank * APART] = slot_word[RAISED + rank * APART] + ready;
    }
    memoryBarrierBuffer();
    barrier();
    if (arrivals[rank] != 0u && !comes(rank)) {
        slot_word[MISSED] = rank + 1u;
    }
    memoryBarrierBuffer();
}
