// Blocks of GGUF files to chunks and scales: two blocks an invocation (so that it stores whole words of scales), or one whose
// scales are whole words.
// variants of kinds: KIND
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/grid.glsl"
#include "common/kinds.glsl"

layout(local_size_x = 256) in;
#if KIND == MIXED
layout(constant_id = 0) const uint KIND_CODE = 0;
#endif
layout(set = 0, binding = 0, std430) readonly buffer Blocks { uint blocks[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Chunks { uint chunks[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Scales { uint scales[]; };

layout(push_constant) uniform Push {
    uint count;        // blocks
    uint first;        // byte at which they begin
    uint chunks_first; // word at which the chunks begin
    uint scales_first; // and the scales
    uint row;          // blocks of one
} push;

// Four bytes from any byte on.
uint bytes4(uint at) {
    uint shift = (at & 3u) << 3;
    uint word = blocks[at >> 2] >> shift;
    if (shift != 0u) {
        word |= blocks[(at >> 2) + 1u] << (32u - shift);
    }
    return word;
}

// Two bytes from any byte on.
uint bytes2(uint at) {
    uint shift = (at & 3u) << 3;
    uint word = blocks[at >> 2] >> shift;
    if (shift == 24u) {
        word |= blocks[(at >> 2) + 1u] << 8;
    }
    return word & 0xFFFFu;
}

// The low (shift 0) or high (shift 4) nibbles of four bytes, side by side.
uint nibbles(uint word, uint shift) {
    uint each = (word >> shift) & 0x0F0F0F0Fu;
    each = (each | (each >> 4)) & 0x00FF00FFu;
    return (each | (each >> 8)) & 0xFFFFu;
}

// Low nibbles of 32 bytes from `at` on, or high ones, as the four words of a chunk.
void store_nibbles(uint at, uint shift, uint to) {
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint low = nibbles(bytes4(at + 8u * i), shift), high = nibbles(bytes4(at + 8u * i + 4u), shift);
        chunks[to + i] = low | (high << 16);
    }
}

// Each of the 8 scales and minima of Q4_K has 6 bits. Bytes 0 to 3 hold scales 0 to 3, bytes 4 to 7 minima 0 to 3, their two high
// bits those of numbers 4 to 7; the low four of these lie in the nibbles of bytes 8 to 11. Here: the low four bits of all
// scales, those of all minima, and the high bits of both.
void pack_scales(uint at, uint to) {
    uint scale = bytes4(at + 4u), least = bytes4(at + 8u), rest = bytes4(at + 12u);
    scales[to] = bytes4(at);
    scales[to + 1u] = nibbles(scale, 0u) | (nibbles(rest, 0u) << 16);
    scales[to + 2u] = nibbles(least, 0u) | (nibbles(rest, 4u) << 16);
    // Nibbles whose high two bits are those of numbers 4 to 7, and whose low two those of numbers 0 to 3.
    uint scale_high = nibbles(scale, 4u), least_high = nibbles(least, 4u);
    uint first_four = (scale_high & 0x3333u) | ((least_high & 0x3333u) << 2);
    uint last_four = ((scale_high & 0xCCCCu) >> 2) | (least_high & 0xCCCCu);
    scales[to + 3u] = first_four | (last_four << 16);
}

#if KIND == MIXED
#include "common/mixed_pack.glsl"
#elif KIND == Q4_K
void pack(uint block) {
    uint at = push.first + 144u * block;
    pack_scales(at, push.scales_first + 4u * block);
    for (uint part = 0u; part < 8u; part++) {
        store_nibbles(at + 16u + 32u * (part >> 1), (part & 1u) << 2, push.chunks_first + 32u * block + 4u * part);
    }
}
#else
// Stores what a block has but for its scale, which is returned.
uint pack(uint block) {
#if KIND == Q8_0
    uint at = push.first + 34u * block, to = push.chunks_first + 8u * block;
    for (uint i = 0u; i < 8u; i++) {
        chunks[to + i] = bytes4(at + 2u + 4u * i) ^ 0x80808080u;
    }
#else
    // Low nibbles are elements 0 to 15, high ones elements 16 to 31.
    uint at = push.first + 18u * block, to = push.chunks_first + 4u * block;
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        uint one = bytes4(at + 2u + 8u * i), two = bytes4(at + 6u + 8u * i);
        chunks[to + i] = nibbles(one, 0u) | (nibbles(two, 0u) << 16);
        chunks[to + 2u + i] = nibbles(one, 4u) | (nibbles(two, 4u) << 16);
    }
#endif
    return bytes2(at);
}
#endif

void main() {
    uint i = group_number() * 256u + gl_LocalInvocationID.x;
#if KIND == MIXED
    uint together = HALF_SCALES ? 2u : 1u, word = 0u;
    for (uint j = together * i; j < min(together * (i + 1u), push.count); j++) {
        word |= pack(j) << (16u * (j - together * i));
    }
    if (HALF_SCALES && 2u * i < push.count) {
        scales[push.scales_first + i] = word;
    }
#elif KIND == Q4_K
    if (i < push.count) {
        pack(i);
    }
#else
    if (2u * i < push.count) {
        uint word = pack(2u * i);
        if (2u * i + 1u < push.count) {
            word |= pack(2u * i + 1u) << 16;
        }
        scales[push.scales_first + i] = word;
    }
#endif
}
