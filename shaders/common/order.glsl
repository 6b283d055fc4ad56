// Keys of elements, which order as whole numbers. Whoever includes it says KIND and LARGEST.
#ifndef VKPAR_ORDER_GLSL
#define VKPAR_ORDER_GLSL

const uint LAST = 0xFFFFFFFFu;  // the key of NaN

uint ordered(uint raw) {
    uint key = raw;
    bool none = false;
    if (KIND == 1u) key ^= 0x80000000u;
    if (KIND == 2u) {
        none = (raw & 0x7FFFFFFFu) > 0x7F800000u;
        key = raw == 0x80000000u ? 0u : raw;  // zeros are equal
        key ^= (key >> 31) != 0u ? 0xFFFFFFFFu : 0x80000000u;
    }
    return none ? LAST : LARGEST ? ~key : key;
}

// The key of an element of 64 bits, which orders by its upper word, y, and then by its lower one.
uvec2 ordered_pair(uvec2 raw) {
    uint low = raw.x;
    uint high = raw.y;
    bool none = false;
    if (KIND == 1u) high ^= 0x80000000u;
    if (KIND == 2u) {
        uint size = high & 0x7FFFFFFFu;
        none = size > 0x7FF00000u || size == 0x7FF00000u && low != 0u;
        bool zero = (size | low) == 0u;
        uint turn = !zero && (high >> 31) != 0u ? 0xFFFFFFFFu : 0u;
        low ^= turn;
        high = zero ? 0x80000000u : high ^ (turn | 0x80000000u);
    }
    return none ? uvec2(LAST) : LARGEST ? ~uvec2(low, high) : uvec2(low, high);
}

#endif
