// Work groups beyond the limit of one axis are folded into the second: their linear number.
#ifndef VKPAR_GRID_GLSL
#define VKPAR_GRID_GLSL

uint group_number() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}

#endif
