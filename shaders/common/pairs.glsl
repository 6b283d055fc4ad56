// Four floats as pairs of words: CPU drivers that read and write storage buffers lane by lane then take half as many turns.
#ifndef VKPAR_PAIRS_GLSL
#define VKPAR_PAIRS_GLSL

vec4 four(u64vec2 pairs) {
    return uintBitsToFloat(uvec4(unpackUint2x32(pairs.x), unpackUint2x32(pairs.y)));
}

u64vec2 stored(vec4 sums) {
    uvec4 words = floatBitsToUint(sums);
    return u64vec2(packUint2x32(words.xy), packUint2x32(words.zw));
}

#endif
