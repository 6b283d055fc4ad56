#version 450
// Debugging: writes the generations of slots, or compares them with those that the global order gives. The first
// wrong one is kept in the rank's report: 1, which slot's stamp, expected, found.

layout(local_size_x = 8) in;

layout(set = 0, binding = 0, std430) coherent buffer Slots { uint slot_word[]; };

layout(push_constant) uniform Push {
    uint write;     // 1: write the generations; 0: compare
    uint report;    // word of the rank's report
    uint count;     // pairs in use
    uint pad;
    uint pairs[16];  // word of a slot's stamp, generation
};

void main() {
    uint i = gl_LocalInvocationID.x;
    if (i >= count) {
        return;
    }
    uint stamp = pairs[2u * i], generation = pairs[2u * i + 1u];
    if (write == 1u) {
        slot_word[stamp] = generation;
    } else if (slot_word[stamp] != generation && atomicCompSwap(slot_word[report], 0u, 1u) == 0u) {
        slot_word[report + 1u] = stamp;
        slot_word[report + 2u] = generation;
        slot_word[report + 3u] = slot_word[stamp];
    }
}
