// Which work-group is the last of some to store its part, and so may bring all of them together.
// Needed before: COUNTERS, the binding of the counters.
#ifndef VKPAR_LAST_GROUP_GLSL
#define VKPAR_LAST_GROUP_GLSL

// Per block, how many parts were stored; zero before the first launch and after each.
layout(set = 0, binding = COUNTERS, std430) coherent buffer Stored { uint stored[]; };

shared bool is_last;

// Whether this is the last group of the block; what the others stored is visible to it then.
bool comes_last(uint block, uint parts) {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0u) {
        is_last = atomicAdd(stored[block], 1u) + 1u == parts;
        if (is_last) stored[block] = 0u;
    }
    barrier();
    if (is_last) {
        memoryBarrierBuffer();
    }
    return is_last;
}

#endif
