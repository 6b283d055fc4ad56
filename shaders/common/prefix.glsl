// Running sums over the 256 lanes of a work-group, in its shared memory.
#ifndef VKPAR_PREFIX_GLSL
#define VKPAR_PREFIX_GLSL

#ifndef PREFIX
#define PREFIX uvec4
#endif

shared PREFIX part[256];

// Leaves in PART of each lane what VALUE of all lanes up to it comes to by JOINED.
#define PREFIXES(PART, VALUE, JOINED) \
    PART[gl_LocalInvocationID.x] = VALUE; \
    barrier(); \
    for (uint apart = 1u; apart < 256u; apart <<= 1) { \
        PREFIX mine = PART[gl_LocalInvocationID.x]; \
        if (gl_LocalInvocationID.x >= apart) mine = JOINED(PART[gl_LocalInvocationID.x - apart], mine); \
        barrier(); \
        PART[gl_LocalInvocationID.x] = mine; \
        barrier(); \
    }

#endif
