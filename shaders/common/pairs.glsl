// Four words, or floats, as pairs: CPU drivers that read and write storage buffers lane by lane then take half as many turns.
#ifndef VKPAR_PAIRS_GLSL
#define VKPAR_PAIRS_GLSL

uvec4 words(u64vec2 pairs) {
    return uvec4(unpackUint2x32(pairs.x), unpackUint2x32(pairs.y));
}

vec4 four(u64vec2 pairs) {
    return uintBitsToFloat(words(pairs));
}

u64vec2 stored(vec4 sums) {
    uvec4 words = floatBitsToUint(sums);
    return u64vec2(packUint2x32(words.xy), packUint2x32(words.zw));
}

#endif
