// Four elements of the input `a`, packed; zero from the n-th on.
#ifndef VKPAR_FOUR_GLSL
#define VKPAR_FOUR_GLSL

#ifdef W64
// For CPU drivers that read storage buffers element by element: half as many. All fours are whole, and of 32-bit elements.
layout(set = 0, binding = 0, std430) readonly buffer Pairs { u64vec2 pair[]; };

uvec4 a_four(uint i, uint n) {
    uvec4 packed = uvec4(0u);
    if (n > 0u) {
        u64vec2 two = pair[i >> 2];
        packed = uvec4(unpackUint2x32(two.x), unpackUint2x32(two.y));
    }
    return packed;
}
#else
uvec4 a_four(uint i, uint n) {
    return a_packed4(i, n);
}
#endif

#endif
