// Running sums in one pass over memory: see scan.comp. Chunks are taken in the order in which work-groups begin, so that
// whoever waits waits for groups that have begun. Windows of 256 chunks have a sum, too. Sums of chunks before a chunk,
// and of windows before its window, are joined in a tree that shapes alone fix.
#ifndef VKPAR_SCAN_PASS_GLSL
#define VKPAR_SCAN_PASS_GLSL

// Three counters: of groups that have begun, that are done, that have given up; then what chunks and windows come to.
// All is zero before a launch and after it.
layout(set = 0, binding = 2, std430) coherent volatile buffer Counters { uint counted[]; };
layout(set = 0, binding = 2, std430) coherent volatile buffer Known { uvec2 known[]; };
const uint FIRST = 2u;  // of what is known
const uint IS_LEFT = 2u;  // a bit: the chunk's results are left to the last group

shared uint tree[256];
shared uint told;
shared bool missed;

// A value is two halves, each in a word that says that it is there: whoever finds both needs no order of memory.
void publish(uint at, uint value, uint more) {
    known[FIRST + at] = uvec2(value & 0xFFFF0000u, value << 16) | (1u | more);
}

uint awaited(uint at, bool wanted, uint turns) {
    uint value = NOTHING;
    bool found = !wanted;
    for (uint turn = 0u; turn < turns && !found; turn++) {
        uvec2 halves = known[FIRST + at];
        found = (halves.x & halves.y & 1u) != 0u;
        if (found) value = (halves.x & 0xFFFF0000u) | halves.y >> 16;
    }
    if (!found) missed = true;
    return value;
}

// What the values of all lanes come to.
uint all_lanes(uint value) {
    uint lane = gl_LocalInvocationID.x;
    tree[lane] = value;
    for (uint left = 64u; left > 0u; left >>= 2) {
        barrier();
        if (lane < left) {
            uint low = joined(tree[lane], tree[lane + left]);
            tree[lane] = joined(low, joined(tree[lane + 2u * left], tree[lane + 3u * left]));
        }
    }
    barrier();
    value = tree[0];
    barrier();
    return value;
}

// Makes a chunk's results; false, and the chunk is marked, where sums were waited for in vain.
bool make_one(uint number, uint turns) {
    uint lane = gl_LocalInvocationID.x;
    uint row = number / push.chunks, chunk = number - row * push.chunks;
    uint window = chunk / 256u, place = chunk % 256u;
    uint windows = push.rows * push.chunks + row * ((push.chunks + 255u) / 256u);
    PREFIX fours[4];
    fours_of(row, chunk, fours);
    if (lane == 0u) missed = false;
    PREFIX totals = totals_of(fours);
    if (lane == 0u) publish(number, totals.w, 0u);
    uint near = all_lanes(awaited(number - place + lane, lane < place, turns));
    bool left = missed;
    if (place == 255u && lane == 0u && !left) publish(windows + window, joined(near, totals.w), 0u);
    uint far = NOTHING;
    for (uint first = 0u; first < window; first += 256u) {
        far = joined(far, all_lanes(awaited(windows + first + lane, first + lane < window, turns)));
    }
    left = missed;
    if (!left) put_fours(row, chunk, joined(far, near), fours, totals);
    else if (lane == 0u) publish(number, totals.w, IS_LEFT);
    return !left;
}

// Makes a chunk; the last group then makes what others have left, in order, and zeros for the next launch.
void make_all(uint group) {
    uint lane = gl_LocalInvocationID.x, all = push.rows * push.chunks;
    if (group >= all) return;
    if (lane == 0u) told = atomicAdd(counted[0], 1u);
    barrier();
    uint number = told, next = 0u, left = 1u;
    for (bool ends = false; left > 0u; left--) {
        bool made = make_one(number, ends ? 1u : push.turns);
        if (!ends) {
            memoryBarrierBuffer();
            barrier();
            if (lane == 0u) {
                if (!made) atomicAdd(counted[2], 1u);
                memoryBarrierBuffer();
                told = atomicAdd(counted[1], 1u);
            }
            barrier();
            if (told + 1u < all) return;
            memoryBarrierBuffer();
            ends = true;
            left += counted[2];
        }
        while (left > 1u && (known[FIRST + next].x & IS_LEFT) == 0u) next++;
        number = next++;
        barrier();
    }
    uint words = 2u * (FIRST + all + push.rows * ((push.chunks + 255u) / 256u));
    for (uint at = lane; at < words; at += 256u) counted[at] = 0u;
}

#endif
