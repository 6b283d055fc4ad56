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

#endif
