// Running sums in one pass over memory: see scan.comp. Chunks are taken in the order in which work-groups ask for them, so
// that whoever waits waits for chunks that a running group has. Windows of 256 chunks have a sum, too, at most 256 in a row.
// Sums of chunks before a chunk, and of windows before its window, are joined in a tree that shapes alone fix. A group
// publishes the sum of its next chunk before it waits for what precedes its current one.
#ifndef VKPAR_SCAN_PASS_GLSL
#define VKPAR_SCAN_PASS_GLSL

// Three counters: of chunks that were taken, of groups that are done, of chunks that are left; then what chunks and windows
// come to. All is zero before a launch and after it.
layout(set = 0, binding = 2, std430) coherent volatile buffer Counters { uint counted[]; };
layout(set = 0, binding = 2, std430) coherent volatile buffer Known { uvec2 known[]; };
const uint FIRST = 2u;  // of what is known
const uint IS_LEFT = 2u;  // a bit: the chunk's results are left to the last group
const uint MOST_SUBGROUPS = 64u;

struct Chunk {
    uint number;
    PREFIX fours[4];  // of a lane
    PREFIX before;    // what comes before these in the chunk
    uint total;
};

shared PREFIX of_subgroup[MOST_SUBGROUPS];
shared uvec2 sums_of[MOST_SUBGROUPS];
shared uint ticket;
shared bool missed;

// A value is two halves, each in a word that says that it is there: whoever finds both needs no order of memory.
void publish(uint at, uint value, uint more) {
    if (gl_LocalInvocationID.x == 0u) known[FIRST + at] = uvec2(value & 0xFFFF0000u, value << 16) | (1u | more);
}

// Looks for a value that is wanted; then it is wanted no longer.
void look(uint at, inout bool wanted, inout uint value) {
    if (wanted) {
        uvec2 halves = known[FIRST + at];
        if ((halves.x & halves.y & 1u) != 0u) {
            value = (halves.x & 0xFFFF0000u) | halves.y >> 16;
            wanted = false;
        }
    }
}

uvec2 both_joined(uvec2 x, uvec2 y) { return uvec2(joined(x.x, y.x), joined(x.y, y.y)); }

// What the values of all lanes come to.
uvec2 all_lanes(uvec2 mine) {
    [[unroll]] for (uint apart = 1u; apart < gl_SubgroupSize; apart <<= 1) {
        uvec2 other = subgroupShuffleXor(mine, apart);
        bool is_low = (gl_SubgroupInvocationID & apart) == 0u;
        mine = is_low ? both_joined(mine, other) : both_joined(other, mine);
    }
    if (gl_SubgroupInvocationID == 0u) sums_of[gl_SubgroupID] = mine;
    barrier();
    uvec2 sum = sums_of[0];
    for (uint i = 1u; i < gl_NumSubgroups; i++) sum = both_joined(sum, sums_of[i]);
    barrier();
    return sum;
}

// Sets what comes before each lane, and tells others what the chunk comes to.
void begin(inout Chunk chunk) {
    PREFIX mine = PREFIX(chunk.fours[0].w, chunk.fours[1].w, chunk.fours[2].w, chunk.fours[3].w);
    [[unroll]] for (uint apart = 1u; apart < gl_SubgroupSize; apart <<= 1) {
        PREFIX other = subgroupShuffle(mine, (gl_SubgroupInvocationID - apart) & (gl_SubgroupSize - 1u));
        if (gl_SubgroupInvocationID >= apart) mine = all_joined(other, mine);
    }
    PREFIX shifted = subgroupShuffle(mine, (gl_SubgroupInvocationID - 1u) & (gl_SubgroupSize - 1u));
    if (gl_SubgroupInvocationID == gl_SubgroupSize - 1u) of_subgroup[gl_SubgroupID] = mine;
    barrier();
    PREFIX whole = PREFIX(NOTHING);
    for (uint i = 0u; i < gl_NumSubgroups; i++) {
        if (i == gl_SubgroupID) chunk.before = whole;
        whole = all_joined(whole, of_subgroup[i]);
    }
    if (gl_SubgroupInvocationID > 0u) chunk.before = all_joined(chunk.before, shifted);
    whole.y = joined(whole.x, whole.y);
    whole.z = joined(whole.y, whole.z);
    whole.w = joined(whole.z, whole.w);
    chunk.before = before_fours(chunk.before, whole);
    chunk.total = whole.w;
    publish(chunk.number, chunk.total, 0u);
}

// Stores a chunk's results; false, and the chunk is marked, where sums were waited for in vain.
bool end(Chunk chunk, uint turns) {
    uint lane = gl_LocalInvocationID.x;
    uint row = chunk.number / push.chunks, at = chunk.number - row * push.chunks;
    uint window = at / 256u, place = at % 256u;
    uint mine = chunk.number - place + lane;
    uint windows = push.rows * push.chunks + row * ((push.chunks + 255u) / 256u);
    bvec2 wanted = bvec2(lane < place, lane < window);
    uvec2 found = uvec2(NOTHING);
    if (place == 255u) {  // others wait for what the window comes to
        for (uint turn = 0u; turn < turns && wanted.x; turn++) look(mine, wanted.x, found.x);
        if (wanted.x) missed = true;
        uint near = all_lanes(found).x;
        if (!missed) publish(windows + window, joined(near, chunk.total), 0u);
    }
    for (uint turn = 0u; turn < turns && any(wanted); turn++) {
        look(mine, wanted.x, found.x);
        look(windows + lane, wanted.y, found.y);
    }
    if (any(wanted)) missed = true;
    uvec2 sums = all_lanes(found);
    bool left = missed;
    if (left) publish(chunk.number, chunk.total, IS_LEFT);
    else put_fours(row, at, joined(sums.y, sums.x), chunk.fours, chunk.before);
    return !left;
}

void load(inout Chunk chunk) {
    uint row = chunk.number / push.chunks;
    fours_of(row, chunk.number - row * push.chunks, chunk.fours);
}

// Makes chunks. The last group then makes what others have left, in order, and zeros for the next launch.
void make_all(uint group) {
    uint lane = gl_LocalInvocationID.x, all = push.rows * push.chunks;
    if (group >= push.groups) return;
    Chunk chunk;
    if (lane == 0u) ticket = atomicAdd(counted[0], 1u);
    barrier();
    chunk.number = ticket;
    uint left = 0u, after = 0u;
    if (chunk.number < all) {
        load(chunk);
        if (lane == 0u) after = atomicAdd(counted[0], 1u);
        begin(chunk);
    }
    while (chunk.number < all) {
        if (lane == 0u) {
            ticket = after;
            missed = false;
        }
        barrier();
        Chunk next;
        next.number = ticket;
        if (next.number < all) {
            load(next);
            if (lane == 0u) after = atomicAdd(counted[0], 1u);
            begin(next);
        }
        if (!end(chunk, push.turns)) left++;
        barrier();
        chunk = next;
    }
    barrier();
    if (lane == 0u) {
        if (left > 0u) atomicAdd(counted[2], left);
        memoryBarrierBuffer();  // what the lane has published comes before
        ticket = atomicAdd(counted[1], 1u);
    }
    barrier();
    if (ticket + 1u < push.groups) return;
    memoryBarrierBuffer();
    chunk.number = 0u;
    for (left = counted[2]; left > 0u; left--) {
        while ((known[FIRST + chunk.number].x & IS_LEFT) == 0u) chunk.number++;
        load(chunk);
        if (lane == 0u) missed = false;
        begin(chunk);
        end(chunk, push.turns + 1u);  // all sums are there
        barrier();
        chunk.number++;
    }
    uint words = 2u * (FIRST + all + push.rows * ((push.chunks + 255u) / 256u));
    for (uint at = lane; at < words; at += 256u) counted[at] = 0u;
}

#endif
