// Sorts pairs of a token and an expert by expert, in tiles of so many pairs that each belong to one expert: which expert
// a tile has, and which pairs, in their order. A work-group has an expert.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/grid.glsl"
#define PREFIX uint
#include "common/prefix.glsl"

layout(constant_id = 0) const uint TILE = 8u;

const uint MOST = 512u;
const uint NONE = 0xFFFFFFFFu;

layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) readonly buffer Choice { uint choice[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Groups { uint groups[]; };  // experts of tiles, then their pairs

layout(push_constant) uniform Push {
    uint pairs;
    uint first;    // expert that this device has; others' pairs are left out
    uint experts;  // that it has
    uint tiles;    // that there is room for
    uint choice_first;
    uint groups_first;
} push;

shared uint counts[MOST];

uint added(uint x, uint y) { return x + y; }

uint tiles_of(uint pairs) { return (pairs + TILE - 1u) / TILE; }

void main() {
    uint own = group_number();
    if (own >= push.experts) return;
    uint lane = gl_LocalInvocationID.x;
    for (uint e = lane; e < push.experts; e += 256u) counts[e] = 0u;
    barrier();
    uint each = (push.pairs + 255u) / 256u;  // a lane's pairs lie side by side
    uint begin = min(lane * each, push.pairs), end = min(begin + each, push.pairs), mine = 0u;
    for (uint i = begin; i < end; i++) {
        uint expert = choice[push.choice_first + i] - push.first;
        if (expert < push.experts) atomicAdd(counts[expert], 1u);
        if (expert == own) mine++;
    }
    PREFIXES(part, mine, added)
    uint tile = 0u, count = counts[own];
    for (uint e = 0u; e < own; e++) tile += tiles_of(counts[e]);
    uint used = tiles_of(count), from = push.groups_first + push.tiles + tile * TILE;
    for (uint t = lane; t < used; t += 256u) groups[push.groups_first + tile + t] = own;
    uint at = part[lane] - mine;
    for (uint i = begin; i < end; i++) {
        if (choice[push.choice_first + i] - push.first == own) groups[from + at++] = i;
    }
    for (uint i = count + lane; i < used * TILE; i += 256u) groups[from + i] = NONE;
    if (own == push.experts - 1u) {
        for (uint t = tile + used + lane; t < push.tiles; t += 256u) groups[push.groups_first + t] = NONE;
    }
}
