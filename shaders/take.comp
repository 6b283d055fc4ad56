// Rows of a table by indices: a word, or a four of words, of the result an invocation. UNIT is how many bytes are moved
// at a time: 64 (for CPU drivers that read storage buffers element by element), 16, 4, 2 or 1.
// variants: u1: UNIT=1 | u2: UNIT=2 | u4: UNIT=4 | u16: UNIT=16 | u64: UNIT=64
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/grid.glsl"

layout(local_size_x = 256) in;
#if UNIT == 64
#extension GL_ARB_gpu_shader_int64 : require
#extension GL_EXT_control_flow_attributes : require
#define WORD u64vec2
#elif UNIT == 16
#define WORD uvec4
#else
#define WORD uint
#endif
layout(set = 0, binding = 0, std430) readonly buffer Table { WORD table[]; };
layout(set = 0, binding = 1, std430) readonly buffer Indices { uint indices[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Rows { WORD rows[]; };

layout(push_constant) uniform Push {
    uint count;         // units of the result
    uint row;           // units of a row
    uint height;        // rows of the table
    uint table_first;   // unit at which the table begins, of 16 bytes at most
    uint index_first;   // word at which the indices begin
    uint rows_first;    // WORD at which the result begins
    uint is_signed;     // 1 where indices below zero count from the end
    uint missing_even;  // what stands for the units of a row that is not there
    uint missing_odd;
} push;

uint index_at(uint number) {
    uint index = indices[push.index_first + number];
    return index + (index >> 31) * push.is_signed * push.height;
}

#if UNIT == 64
void main() {
    uint i = group_number() * 256u + gl_LocalInvocationID.x;
    if (i >= push.count) {
        return;
    }
    uint number = i / push.row, index = index_at(number);
    uint from = 4u * (index * push.row + i - number * push.row) + push.table_first, to = 4u * i + push.rows_first;
    u64vec2 four[4];
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        four[j] = u64vec2(packUint2x32(uvec2(push.missing_even, push.missing_odd)));
    }
    if (index < push.height) {
        [[unroll]] for (uint j = 0u; j < 4u; j++) four[j] = table[from + j];
    }
    [[unroll]] for (uint j = 0u; j < 4u; j++) rows[to + j] = four[j];
}
#elif UNIT == 16
void main() {
    uint i = group_number() * 256u + gl_LocalInvocationID.x;
    if (i >= push.count) {
        return;
    }
    uint number = i / push.row;
    uint index = index_at(number);
    uvec4 four = uvec2(push.missing_even, push.missing_odd).xyxy;
    if (index < push.height) {
        four = table[push.table_first + index * push.row + (i - number * push.row)];
    }
    rows[push.rows_first + i] = four;
}
#else
const uint PER_WORD = 4u / uint(UNIT);
const uint BITS = 8u * uint(UNIT);
const uint MASK = 0xFFFFFFFFu >> (32u - BITS);

uint unit_of(uint i) {
    uint number = i / push.row;
    uint column = i - number * push.row;
    uint index = index_at(number);
    uint bits = (column & 1u) == 0u ? push.missing_even : push.missing_odd;
    if (index < push.height) {
        uint at = push.table_first + index * push.row + column;
        bits = table[at / PER_WORD] >> (at % PER_WORD * BITS);
    }
    return bits & MASK;
}

void main() {
    uint word = group_number() * 256u + gl_LocalInvocationID.x;
    uint i = word * PER_WORD;
    if (i >= push.count) {
        return;
    }
    uint bits = 0u;
    uint n = min(push.count - i, PER_WORD);
    for (uint j = 0u; j < n; j++) {
        bits |= unit_of(i + j) << (j * BITS);
    }
    rows[push.rows_first + word] = bits;
}
#endif
