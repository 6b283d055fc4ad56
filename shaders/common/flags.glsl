// Flags of slots that copy engines carry between cards: words before the slots, one of a kind for each lane, 64 bytes apart,
// see vkpar/comm/rig/carriers.py. Those that a card raises say what is ready; those that a copy engine raises, what came.
// Needed before: SLOTS_BINDING.
#ifndef VKPAR_FLAGS_GLSL
#define VKPAR_FLAGS_GLSL

layout(set = 0, binding = SLOTS_BINDING, std430) coherent volatile buffer Flags { uint flag_word[]; };

const uint LANE_WORDS = 16u, RAISED = 0u, ARRIVED = 256u, AWAITED = 512u, ABORTED = 768u;
const uint STORED = RAISED + 2u;  // counts the work-groups of a launch, the last of which raises

// What two bits for each of 16 lanes say of the one that this invocation looks after.
uint of_lane(uint counts) {
    return gl_LocalInvocationID.x < 16u ? counts >> 2u * gl_LocalInvocationID.x & 3u : 0u;
}

// Tells of so many transfers more on each lane. What they carry was stored, and ordered before.
void raise(uint sends) {
    uint ready = of_lane(sends);
    if (ready != 0u) {
        atomicAdd(flag_word[RAISED + gl_LocalInvocationID.x * LANE_WORDS], ready);  // an abort may write it meanwhile
    }
}

// Waits until the transfers on a lane are so many. Where nothing comes, the host ends the wait by a word that says so.
void wait_for(uint lane, uint wanted) {
    uint seen;
    do {
        seen = flag_word[ARRIVED + lane * LANE_WORDS];
    } while (int(seen - wanted) < 0 && flag_word[ABORTED] == 0u);
    flag_word[AWAITED + lane * LANE_WORDS + 1u] = seen;  // optimizers drop loops whose results nobody uses
}

// Has this work-group wait for so many transfers more on each lane, as all groups of the launch do; the last one counts
// them. What came is read by coherent loads after the barriers: none of them is served by what a cache had before.
void wait_in_group(uint awaits) {
    uint more = of_lane(awaits), at = AWAITED + gl_LocalInvocationID.x * LANE_WORDS;
    if (more != 0u) {
        uint wanted = flag_word[at] + more, groups = gl_NumWorkGroups.x * gl_NumWorkGroups.y;
        wait_for(gl_LocalInvocationID.x, wanted);
        bool counts = groups == 1u;
        if (!counts) {
            memoryBarrierBuffer();
            counts = atomicAdd(flag_word[at + 2u], 1u) + 1u == groups;
            if (counts) flag_word[at + 2u] = 0u;
        }
        if (counts) flag_word[at] = wanted;
    }
    memoryBarrierBuffer();
    barrier();
}

#endif
