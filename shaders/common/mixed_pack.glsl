// How quantized_pack.comp lays out blocks of the MIXED kinds.

const bool IS_Q4_1 = KIND_CODE == Q4_1, IS_Q5_0 = KIND_CODE == Q5_0, IS_Q5_K = KIND_CODE == Q5_K, IS_Q6_K = KIND_CODE == Q6_K;
const bool HALF_SCALES = IS_Q5_0 || IS_Q6_K;  // one for each block
const uint BLOCK_NBYTES = IS_Q4_1 ? 20u : IS_Q5_0 ? 22u : IS_Q5_K ? 176u : IS_Q6_K ? 210u : 24u;
const uint PARTS = IS_Q5_K || IS_Q6_K ? 8u : 1u;  // chunks of a block

// Every eighth bit of four bytes: bit b of each byte of `word` goes to bit i of them.
uint bit_of(uint word, uint b, uint i) {
    return ((word >> b) & 0x01010101u) << i;
}

// Four bytes of 32 bits of elements in order, for elements 4 i .. 4 i + 3: one in the lowest bit of each.
uint spread(uint bits, uint i) {
    uint four = bits >> (4u * i);
    return (four & 1u) | ((four & 2u) << 7) | ((four & 4u) << 14) | ((four & 8u) << 21);
}

// Lays out block number `block` but for a half scale, which is returned.
uint pack(uint block) {
    uint at = push.first + BLOCK_NBYTES * block, row = block / push.row, count = push.row * PARTS;
    uint units = count + (IS_Q4_1 ? 0u : IS_Q6_K ? count / 8u * 5u : (count + 3u) / 4u);
    uint start = push.chunks_first + 4u * units * row, first = (block - row * push.row) * PARTS, half_scale = 0u;
    uint behind = start + 4u * count;
    if (IS_Q6_K) {
        // Of each half of a block 64 bytes of nibbles, low ones of 64 elements and then high ones, and 32 of two bits, those of 32
        // elements each time.
        for (uint part = 0u; part < 8u; part++) {
            uint low = at + 64u * (part >> 2) + 32u * (part & 1u), nibble = 2u * (part & 2u);
            uint two = at + 128u + 32u * (part >> 2), shift = 2u * (part & 3u);
            uvec2 above = uvec2(0u);
            for (uint j = 0u; j < 4u; j++) {
                uint one = (bytes4(low + 4u * j) >> nibble) & 0x0F0F0F0Fu;
                uint other = (bytes4(low + 16u + 4u * j) >> nibble) & 0x0F0F0F0Fu;
                chunks[start + 4u * (first + part) + j] = one | (other << 4);
                above.x |= ((bytes4(two + 4u * j) >> shift) & 0x03030303u) << (2u * j);
                above.y |= ((bytes4(two + 16u + 4u * j) >> shift) & 0x03030303u) << (2u * j);
            }
            chunks[behind + 2u * (first + part)] = above.x;
            chunks[behind + 2u * (first + part) + 1u] = above.y;
        }
        for (uint i = 0u; i < 4u; i++) chunks[behind + 2u * count + first / 2u + i] = bytes4(at + 192u + 4u * i);
        half_scale = bytes2(at + 208u);
    } else if (IS_Q5_K) {
        pack_scales(at, push.scales_first + 4u * block);
        for (uint part = 0u; part < 8u; part++) {
            uint low = at + 48u + 32u * (part >> 1), nibble = 4u * (part & 1u), above = 0u;
            for (uint j = 0u; j < 4u; j++) {
                uint one = (bytes4(low + 4u * j) >> nibble) & 0x0F0F0F0Fu;
                uint other = (bytes4(low + 16u + 4u * j) >> nibble) & 0x0F0F0F0Fu;
                chunks[start + 4u * (first + part) + j] = one | (other << 4);
                above |= bit_of(bytes4(at + 16u + 4u * j), part, j) | bit_of(bytes4(at + 32u + 4u * j), part, j + 4u);
            }
            chunks[behind + first + part] = above;
        }
    } else {
        uint head = IS_Q5_0 ? 2u : 4u;
        if (!IS_Q4_1) {
            uint bits = bytes4(at + head), above = 0u;
            for (uint i = 0u; i < 8u; i++) above |= spread(bits, i) << i;
            chunks[behind + first] = above;
            head += 4u;
        }
        for (uint j = 0u; j < 4u; j++) chunks[start + 4u * first + j] = bytes4(at + head + 4u * j);
        if (IS_Q5_0) {
            half_scale = bytes2(at);
        } else {
            scales[push.scales_first + block] = bytes4(at);
        }
    }
    return half_scale;
}
