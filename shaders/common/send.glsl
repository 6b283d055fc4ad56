// Sends what a kernel stores, without a kernel of its own: the work-group that stores the last elements of a block
// encodes the block for the link as wire_reduce does, and keeps what its readers will decode. The group that sends the last
// block raises flags, where the slots are carried between cards.
// The outputs are float32, one after the other from element push.source_at of binding SOURCE_BINDING on. Work-groups have
// GROUP invocations, 256 or more.
#ifndef VKPAR_SEND_GLSL
#define VKPAR_SEND_GLSL

#define LANES 32
#define ELEM ELEM_F32
#define IN_WIRE OUT_WIRE
#define TAIL
#define SLOTS_ACCESS coherent
#define COUNTERS STORED_BINDING  // elements of each block, then blocks
#include "flags.glsl"
#include "last_group.glsl"
#include "wire.glsl"

const uint PER_SCALE = OUT_WIRE == WIRE_Q8 ? Q8_UNITS : BLOCK / 8u;  // units that share a scale
shared uint largest_in[BLOCK / 8u / PER_SCALE];

void send_block(uint block) {
    uint lane = gl_LocalInvocationID.x, unit = block * LANES + lane;
    bool inside = lane < LANES;
    uvec2 n = uvec2(0u);
    Eight own = Eight(uvec4(0u), uvec4(0u));
    if (inside) {
        n = elements_left(push.count, unit);
        own = load_elements(push.source_at, unit, n);
    }
    uint largest = 0u;
    if (has_scales(OUT_WIRE)) {
        if (lane < BLOCK / 8u / PER_SCALE) largest_in[lane] = 0u;
        barrier();
        if (inside) atomicMax(largest_in[lane / PER_SCALE], largest_finite(own));
        barrier();
        if (inside) largest = largest_in[lane / PER_SCALE];
    }
    if (inside) {
        Raw raw = encode_raw(OUT_WIRE, own, scale_of(OUT_WIRE, largest));
        store_raw(OUT_WIRE, push.out_slot, push.tail, unit, raw);
        store_elements(push.target_at, unit, n, decode_raw(OUT_WIRE, raw));
    }
    barrier();
}

// To be called by all invocations of a group that has stored elements first to first + number, of all of push.count.
void send_stored(uint first, uint number) {
    uint at = first, end = min(first + number, push.count), blocks = (push.count + BLOCK - 1u) / BLOCK;
    memoryBarrierBuffer();
    barrier();
    while (at < end) {
        uint block = at / BLOCK, next = min((block + 1u) * BLOCK, end);
        if (gl_LocalInvocationID.x == 0u) {
            uint whole = min(BLOCK, push.count - block * BLOCK);
            is_last = atomicAdd(stored[block], next - at) + (next - at) == whole;
            if (is_last) stored[block] = 0u;
        }
        barrier();
        if (is_last) {
            memoryBarrierBuffer();
            send_block(block);
            if (push.sends != 0u && comes_last(blocks, blocks)) raise(push.sends);
        }
        barrier();
        at = next;
    }
}

#endif
