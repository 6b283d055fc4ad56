// Sums of elements that go to one place, of rows of sorted places, added to what lies there: 32 elements an invocation.
// A run of equal places that lies inside of these is added to its place. The first and the last one, which may go on
// beside them, are left to the next dispatch, as two elements; the last dispatch has them all. So the order of additions
// depends on the places alone, and no two invocations write to one.
// variants: f32: VALUE=float NOTHING=-0.0 | u32: VALUE=uint NOTHING=0u | u64: VALUE=uint64_t NOTHING=uint64_t(0) LONG | f64: VALUE=double NOTHING=-0.0lf LONG
#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef LONG
#extension GL_ARB_gpu_shader_int64 : require
#endif
#include "common/grid.glsl"

layout(constant_id = 0) const bool BEGINS = false;  // the first dispatch: values lie where they came from
layout(constant_id = 1) const bool ENDS = false;

layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) readonly buffer Keys { uint keys[]; };
layout(set = 0, binding = 1, std430) readonly buffer Places { uint places[]; };
layout(set = 0, binding = 2, std430) readonly buffer Values { VALUE values[]; };
layout(set = 0, binding = 3, std430) writeonly buffer LeftKeys { uint left_keys[]; };
layout(set = 0, binding = 4, std430) writeonly buffer LeftValues { VALUE left_values[]; };
layout(set = 0, binding = 5, std430) buffer Totals { VALUE totals[]; };

layout(push_constant) uniform Push {
    uint count;   // elements of a row
    uint rows;
    uint chunks;  // of 32 elements of a row
    uint size;    // of a row of what is added to; places from there on are nowhere
    uint keys_first;
    uint places_first;
    uint values_first;
    uint left_keys_first;
    uint left_values_first;
    uint totals_first;
} push;

void add(uint row, uint key, VALUE sum) {
    if (key < push.size) totals[push.totals_first + row * push.size + key] += sum;
}

void leave(uint at, uint key, VALUE sum) {
    left_keys[push.left_keys_first + at] = key;
    left_values[push.left_values_first + at] = sum;
}

void main() {
    uint number = group_number() * 64u + gl_LocalInvocationID.x;
    uint row = number / push.chunks;
    if (row >= push.rows) return;
    uint at = (number - row * push.chunks) * 32u;
    uint n = min(push.count - at, 32u);
    uint from = row * push.count;
    uint key = 0u;
    VALUE sum = NOTHING;
    bool first = true;
    for (uint j = 0u; j < n; j++) {
        uint next = keys[push.keys_first + from + at + j];
        uint place = at + j;
        if (BEGINS) place = places[push.places_first + from + at + j];
        VALUE value = values[push.values_first + from + place];
        if (j > 0u && next != key) {
            if (ENDS || !first) {
                add(row, key, sum);
            } else {
                leave(2u * number, key, sum);
            }
            first = false;
            sum = NOTHING;
        }
        key = next;
        sum += value;
    }
    if (ENDS) {
        add(row, key, sum);
    } else {
        if (first) leave(2u * number, key, sum);
        if (first) sum = NOTHING;
        leave(2u * number + 1u, key, sum);
    }
}
