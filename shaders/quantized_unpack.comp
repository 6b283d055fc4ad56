// Quantised weights as floats: four neighbours an invocation. Of rows by their numbers where TAKES.
// variants of kinds: KIND
#version 450
#extension GL_GOOGLE_include_directive : require
#define SCALES_BINDING 1
#include "common/elements.glsl"
#include "common/grid.glsl"
#include "common/kinds.glsl"
#if KIND == MIXED
layout(constant_id = 4) const uint KIND_CODE = 0;
#endif
#include "common/quantized.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint O_TYPE = 0;
layout(constant_id = 1) const bool O_WIDE = false;
layout(constant_id = 2) const bool TAKES = false;
layout(constant_id = 3) const bool SIGNED = false;  // numbers below zero count from the end
layout(set = 0, binding = 0, std430) readonly buffer Chunk_Words { uint chunk_word[]; };
layout(set = 0, binding = 0, std430) readonly buffer Chunk_Words2 { uvec2 chunk_word2[]; };
ELEMENTS_OUT(o, 2, O_TYPE, O_WIDE)
layout(set = 0, binding = 3, std430) readonly buffer Indices { uint indices[]; };

layout(push_constant) uniform Push {
    uint count;         // elements of the result
    uint chunks_first;  // word at which the table begins
    uint scales_first;  // scale, of Q4_K 16 bytes, at which its scales begin
    uint o_first;
    uint fours;         // of a row
    uint height;        // rows of the table; this and the following are for TAKES alone
    uint index_first;
} push;

void main() {
    uint i = group_number() * 256u + gl_LocalInvocationID.x;
    if (4u * i >= push.count) {
        return;
    }
    uint from = i;
    bool there = true;
    if (TAKES) {
        uint number = i / push.fours;
        uint index = indices[push.index_first + number];
        if (SIGNED) index += (index >> 31) * push.height;
        there = index < push.height;
        from = (there ? index : 0u) * push.fours + (i - number * push.fours);
    }
    uint chunk = push.scales_first * CHUNKS + from / FOURS;
    SCALE_BITS bits_of_scale = scale_bits(chunk);
#if KIND == MIXED
    uint row = from / push.fours, chunks = push.fours / FOURS, number = from / FOURS - row * chunks, i4 = from % FOURS;
    uint start = push.chunks_first / 4u + row * row_units(chunks);
    uvec2 above = uvec2(0u);
    LOAD_ABOVE(chunk_word, chunk_word2, start, chunks, number, above)
    LOAD_INNER(chunk_word, start, chunks, number, bits_of_scale.y)
#endif
    vec2 scale = chunk_scale(bits_of_scale, chunk);
#if KIND == MIXED
    vec4 weights = scaled(whole4(chunk_word[4u * (start + number) + (i4 & 3u)], above, i4), scale, i4);
#elif KIND == Q8_0
    vec4 whole = whole4(chunk_word[push.chunks_first + from]);
#else
    vec4 whole = whole4(chunk_word[push.chunks_first + (from >> 1)] >> ((from & 1u) << 4));
#endif
#if KIND != MIXED
    vec4 weights = scaled(whole, scale);
#endif
    uvec4 bits = floatBitsToUint(weights);
    if (!there) bits = uvec4(0x7FC00000u);
    o_store4(push.o_first + 4u * i, 4u, o_pack4(bits));
}
