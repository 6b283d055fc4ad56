// Running sums or products of rows, in chunks of 4,096 elements: a work-group makes what a chunk comes to, or its results.
// Rows of several chunks take three dispatches: what chunks come to, running sums of these, and all results. The order
// of additions depends on the sizes alone. In work-groups of 32, which CPU drivers take for whole numbers, a lane goes
// through 128 neighbours, one after the other; with ALONE through a chunk, 32 bytes at once: CPU drivers' memory is read
// in longer runs, and nobody waits. In one pass (ONCE, PHASE 3) a work-group waits for what the chunks before its own come to,
// and a work-group that has waited for too long leaves its results to the last one.
// variants: u32: SHORT VALUE=uint PREFIX=uvec4 | once_u32: SHORT ONCE VALUE=uint PREFIX=uvec4 | w64_u32: SHORT VALUE=uint PREFIX=uvec4 INT64 | u64: VALUE=uint64_t PREFIX=u64vec4 INT64 | f64: VALUE=double PREFIX=dvec4
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef INT64
#extension GL_ARB_gpu_shader_int64 : require
#endif
#ifdef ONCE
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#include "common/grid.glsl"

layout(constant_id = 0) const bool FLOATS = true;  // of 32 bits
layout(constant_id = 1) const bool PRODUCT = false;
layout(constant_id = 2) const uint PHASE = 1u;  // 0: what chunks come to; 1: results; 2: results after other chunks; 3: all
layout(constant_id = 3) const uint THREADS = 256u;
layout(constant_id = 4) const bool PLACES = false;  // of one row of ones and zeros: stores where the ones lie

layout(constant_id = 5) const bool ALONE = false;  // each invocation has a chunk; rows are of whole units of 32 bytes
layout(constant_id = 6) const bool WIDE = false;   // rows are of whole fours, at multiples of four

layout(local_size_x_id = 3) in;
layout(set = 0, binding = 0, std430) readonly buffer Elements { VALUE a[]; };
layout(set = 0, binding = 1, std430) buffer Results { VALUE o[]; };
layout(set = 0, binding = 0, std430) readonly buffer Fours { PREFIX a_four[]; };
layout(set = 0, binding = 1, std430) writeonly buffer FourResults { PREFIX o_four[]; };
layout(set = 0, binding = 2, std430) buffer Totals { VALUE s[]; };

layout(push_constant) uniform Push {
    uint count;    // elements of a row
    uint rows;
    uint chunks;   // of a row
    uint a_first;  // where elements, results and what chunks come to begin
    uint o_first;
    uint s_first;
    uint turns;    // of a wait
    uint groups;   // of one pass
} push;

shared PREFIX part[512];

#ifdef SHORT
const uint NOTHING = PRODUCT ? (FLOATS ? 0x3F800000u : 1u) : 0u;

uint joined(uint x, uint y) {
    uint made;
    if (FLOATS) {
        float p = uintBitsToFloat(x);
        float q = uintBitsToFloat(y);
        made = floatBitsToUint(PRODUCT ? p * q : p + q);
    } else {
        made = PRODUCT ? x * y : x + y;
    }
    return made;
}
#else
#define NOTHING (PRODUCT ? VALUE(1) : VALUE(0))

VALUE joined(VALUE x, VALUE y) { return PRODUCT ? x * y : x + y; }
#endif

PREFIX all_joined(PREFIX x, PREFIX y) {
    return PREFIX(joined(x.x, y.x), joined(x.y, y.y), joined(x.z, y.z), joined(x.w, y.w));
}

// The elements of a four and those before them in it; nothing behind the end of a row.
PREFIX running(uint at, uint first) {
    PREFIX four = PREFIX(NOTHING);
    if (WIDE) {
        if (at < push.count) four = a_four[(first + at) / 4u];
    } else {
        if (at < push.count) four.x = a[first + at];
        if (at + 1u < push.count) four.y = a[first + at + 1u];
        if (at + 2u < push.count) four.z = a[first + at + 2u];
        if (at + 3u < push.count) four.w = a[first + at + 3u];
    }
    four.y = joined(four.x, four.y);
    four.z = joined(four.y, four.z);
    four.w = joined(four.z, four.w);
    return four;
}

// Stores a sum, or a place where it is more than the one before.
void store(uint at, uint first, VALUE before, VALUE sum) {
    if (PLACES) {
        if (sum != before) o[first + uint(before)] = VALUE(at);
    } else if (at < push.count) {
        o[first + at] = sum;
    }
}

void put(uint at, uint first, VALUE before, PREFIX four) {
    PREFIX sums = PREFIX(joined(before, four.x), joined(before, four.y), joined(before, four.z), joined(before, four.w));
    if (WIDE && !PLACES) {
        if (at < push.count) o_four[(first + at) / 4u] = sums;
    } else {
        store(at, first, before, sums.x);
        store(at + 1u, first, sums.x, sums.y);
        store(at + 2u, first, sums.y, sums.z);
        store(at + 3u, first, sums.z, sums.w);
    }
}

// Leaves in `part` of each lane what all lanes up to it come to.
void prefixes(PREFIX mine) {
    uint lane = gl_LocalInvocationID.x, half_of = 0u;
    for (uint apart = 1u; apart < 256u; apart <<= 1) {
        part[half_of + lane] = mine;
        barrier();
        if (lane >= apart) mine = all_joined(part[half_of + lane - apart], mine);
        half_of ^= 256u;
    }
    part[lane] = mine;
    barrier();
}

// The fours of a lane, 1,024 elements apart, each with what comes before in it.
void fours_of(uint row, uint chunk, out PREFIX fours[4]) {
    uint at = chunk * 4096u + gl_LocalInvocationID.x * 4u, first = push.a_first + row * push.count;
    [[unroll]] for (uint j = 0u; j < 4u; j++) fours[j] = running(at + j * 1024u, first);
}

// What the chunk's quarters come to, each with those before; `part` has what lanes come to.
PREFIX totals_of(PREFIX fours[4]) {
    prefixes(PREFIX(fours[0].w, fours[1].w, fours[2].w, fours[3].w));
    PREFIX whole = part[255];
    whole.y = joined(whole.x, whole.y);
    whole.z = joined(whole.y, whole.z);
    whole.w = joined(whole.z, whole.w);
    return whole;
}

// What comes before a lane's fours in the chunk, of what comes before them in their quarters.
PREFIX before_fours(PREFIX before, PREFIX totals) {
    return PREFIX(before.x, joined(totals.x, before.y), joined(totals.y, before.z), joined(totals.z, before.w));
}

// Stores a chunk's results, of which `prior` comes before all, and `before` before the lane's fours.
void put_fours(uint row, uint chunk, VALUE prior, PREFIX fours[4], PREFIX before) {
    uint at = chunk * 4096u + gl_LocalInvocationID.x * 4u, to = push.o_first + row * push.count;
    put(at, to, joined(prior, before.x), fours[0]);
    put(at + 1024u, to, joined(prior, before.y), fours[1]);
    put(at + 2048u, to, joined(prior, before.z), fours[2]);
    put(at + 3072u, to, joined(prior, before.w), fours[3]);
}

#ifdef ONCE
#include "common/scan_pass.glsl"
#endif

// Goes through what a lane has, and gives the chunk's sum or its results.
void run(uint row, uint chunk, uint group, VALUE prior) {
    uint lane = gl_LocalInvocationID.x;
    uint most = (min(push.count, 4096u) + THREADS - 1u) / THREADS;
    uint at = chunk * 4096u + lane * most;
    uint n = push.count > at ? min(push.count - at, most) : 0u;
    uint from = push.a_first + row * push.count + at;
    uint fours = n & ~3u;
    VALUE sum = NOTHING;
    for (uint j = 0u; j < fours; j += 4u) {
        VALUE low = joined(a[from + j], a[from + j + 1u]);
        sum = joined(sum, joined(low, joined(a[from + j + 2u], a[from + j + 3u])));
    }
    for (uint j = fours; j < n; j++) sum = joined(sum, a[from + j]);
    part[lane].x = sum;
    barrier();
    VALUE before = prior;
    for (uint other = 0u; other < lane; other++) before = joined(before, part[other].x);
    if (PHASE == 0u) {
        if (lane == THREADS - 1u) s[push.s_first + group] = joined(before, sum);
    } else {
        uint to = push.o_first + row * push.count;
        for (uint j = 0u; j < fours; j += 4u) {
            PREFIX four = PREFIX(a[from + j], a[from + j + 1u], a[from + j + 2u], a[from + j + 3u]);
            four.y = joined(four.x, four.y);
            four.z = joined(four.y, four.z);
            four.w = joined(four.z, four.w);
            put(at + j, to, before, four);
            before = joined(before, four.w);
        }
        for (uint j = fours; j < n; j++) {
            VALUE next = joined(before, a[from + j]);
            store(at + j, to, before, next);
            before = next;
        }
    }
}

#ifdef INT64
#ifdef SHORT
const uint UNIT = 8u;
#else
const uint UNIT = 4u;
#endif

layout(set = 0, binding = 0, std430) readonly buffer Units { u64vec4 a_unit[]; };
layout(set = 0, binding = 1, std430) writeonly buffer UnitResults { u64vec4 o_unit[]; };

// The running sums of a unit after what comes before it, which goes on with the last one.
u64vec4 summed(u64vec4 unit, inout VALUE before) {
#ifdef SHORT
    uvec4 low = uvec4(unpackUint2x32(unit.x), unpackUint2x32(unit.y));
    uvec4 high = uvec4(unpackUint2x32(unit.z), unpackUint2x32(unit.w));
    low = uvec4(low.x, joined(low.x, low.y), low.z, joined(low.z, low.w));
    high = uvec4(high.x, joined(high.x, high.y), high.z, joined(high.z, high.w));
    low.zw = uvec2(joined(low.y, low.z), joined(low.y, low.w));
    high.zw = uvec2(joined(high.y, high.z), joined(high.y, high.w));
    low = all_joined(uvec4(before), low);
    high = all_joined(uvec4(low.w), high);
    before = high.w;
    return u64vec4(packUint2x32(low.xy), packUint2x32(low.zw), packUint2x32(high.xy), packUint2x32(high.zw));
#else
    u64vec4 four = u64vec4(unit.x, joined(unit.x, unit.y), unit.z, joined(unit.z, unit.w));
    four = u64vec4(four.x, four.y, joined(four.y, four.z), joined(four.y, four.w));
    four = all_joined(u64vec4(before), four);
    before = four.w;
    return four;
#endif
}

// Goes through a chunk of whole units alone.
void run_alone(uint number) {
    uint row = number / push.chunks;
    uint chunk = number - row * push.chunks;
    if (row >= push.rows) return;
    uint units = min(push.count - chunk * 4096u, 4096u) / UNIT;
    uint from = (push.a_first + row * push.count + chunk * 4096u) / UNIT;
    uint to = (push.o_first + row * push.count + chunk * 4096u) / UNIT;
    VALUE before = NOTHING;
    if (PHASE == 2u && chunk > 0u) before = s[push.s_first + number - 1u];
    for (uint j = 0u; j < units; j++) {
        u64vec4 sums = summed(a_unit[from + j], before);
        if (PHASE > 0u) o_unit[to + j] = sums;
    }
    if (PHASE == 0u) s[push.s_first + number] = before;
}
#endif

void main() {
    uint group = group_number();
#ifdef INT64
    if (ALONE) {
        run_alone(group * THREADS + gl_LocalInvocationID.x);
        return;
    }
#endif
#ifdef ONCE
    if (PHASE == 3u) {
        make_all(group);
        return;
    }
#endif
    uint row = group / push.chunks;
    uint chunk = group - row * push.chunks;
    if (row >= push.rows) return;
    VALUE prior = NOTHING;
    if (PHASE == 2u && chunk > 0u) prior = s[push.s_first + group - 1u];
    if (THREADS == 32u) {
        run(row, chunk, group, prior);
        return;
    }
    uint lane = gl_LocalInvocationID.x;
    PREFIX fours[4];
    fours_of(row, chunk, fours);
    PREFIX totals = totals_of(fours);
    if (PHASE == 0u) {
        if (lane == 0u) s[push.s_first + group] = totals.w;
    } else {
        PREFIX before = lane == 0u ? PREFIX(NOTHING) : part[max(lane, 1u) - 1u];
        put_fours(row, chunk, prior, fours, before_fours(before, totals));
    }
}
