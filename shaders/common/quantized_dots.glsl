// One row of a as whole numbers, whose products by the weights' are summed exactly, four bytes at a time.
//
// The elements of a chunk share a unit, 2^-21 of the largest of them or less. What they are in it, to nearest, is within
// 2^22, which makes three bytes: two unsigned ones and, highest, one with the sign. Each lies with the other elements' in a
// plane, in the order of a chunk's bytes or nibbles. Sums of products by a plane are whole numbers within 2^22. They start
// from the bits of 1.5 x 2^23, which makes floats of them, less what the weights' numbers are too large by.
//
// For COLUMNS of one row and one turn; groups are whole subgroups of four or more. Chunks are read by neighbours, STRIDE
// apart, which is odd: from different banks.
#extension GL_KHR_shader_subgroup_quad : require
#extension GL_EXT_integer_dot_product : require

const uint OCTETS = CHUNK / 8u;             // of a's elements, of a chunk
const uint HELD = AHEAD * PASSES * OCTETS;  // in shared memory: 1,024 at most
const uint MOST_HELD = 2u;                  // over THREADS, which are 512 or more
const uint PLANE = CHUNK / 16u;             // fours of words
const uint STRIDE = 3u * PLANE + 1u + (PLANE & 1u);

const float SHIFT = 12582912.0;
const uint SHIFT_BITS = 0x4B400000u;
const uint ONES = 0x01010101u;
const uint TOO_LARGE = KIND == Q8_0 ? 128u : KIND == Q4_0 ? 8u : 0u;

shared uvec4 planes[AHEAD * PASSES * STRIDE];  // of a chunk: the highest bytes first, and what its sums start from, and its unit
#ifdef FOLDED
shared vec4 held[THREADS / 4u * 2u];           // the sums of all invocations, and those of squares
#else
shared vec4 held[THREADS / 4u];                // the sums of all invocations
#endif

uvec4 found[MOST_HELD * 2u];
#ifdef FOLDED
uvec4 scaling[MOST_HELD * 2u];
#endif

// Loads the elements of a that belong to chunks from `first` on.
void fetch(uint first) {
    [[unroll]] for (uint t = 0u; t < MOST_HELD; t++) {
        if (t * THREADS < HELD) {
            uint i = t * THREADS + gl_LocalInvocationID.x, k = first * CHUNK + i * 8u;
            uint n = i < HELD && k < push.k ? 4u : 0u;
            found[2u * t] = a_packed4(push.a_first + k, n);
            found[2u * t + 1u] = a_packed4(push.a_first + k + 4u, n);
#ifdef FOLDED
            if (NORMED) {
                scaling[2u * t] = norm_packed4(push.norm_first + k, n);
                scaling[2u * t + 1u] = norm_packed4(push.norm_first + k + 4u, n);
            }
#endif
        }
    }
}

// Of the two or four neighbours that hold a chunk.
uint quad_max(uint v) {
    v = max(v, subgroupQuadSwapHorizontal(v));
    if (OCTETS == 4u) v = max(v, subgroupQuadSwapVertical(v));
    return v;
}

uint quad_sum(uint v) {
    v += subgroupQuadSwapHorizontal(v);
    if (OCTETS == 4u) v += subgroupQuadSwapVertical(v);
    return v;
}

uint signed_dot(uint a, uint b) {
    return uint(dotPacked4x8EXT(int(a), int(b)));
}

// Bytes 2, 1 and 0 of four numbers, side by side.
uvec3 bytes_of(uvec4 v) {
    const uint EVENS = 0x00FF00FFu;
    uvec2 low = (v.xy & 0xFFFFu) | (v.zw << 16), high = (v.xy >> 16) | (v.zw & 0xFFFF0000u);
    return uvec3((high.x & EVENS) | ((high.y & EVENS) << 8), ((low.x >> 8) & EVENS) | (low.y & ~EVENS),
                 (low.x & EVENS) | ((low.y & EVENS) << 8));
}

// Stores octet i of what is held.
void keep(uint i, vec4 low, vec4 high) {
    uvec4 each = max(floatBitsToUint(low) & 0x7FFFFFFFu, floatBitsToUint(high) & 0x7FFFFFFFu);
    uint size = quad_max(max(max(each.x, each.y), max(each.z, each.w)));
    uint exponent = clamp(size >> 23, 22u, 254u);
    vec4 inverse = vec4(uintBitsToFloat((275u - exponent) << 23));
    uvec4 v = floatBitsToUint(fma(low, inverse, vec4(SHIFT))) - SHIFT_BITS;
    uvec4 w = floatBitsToUint(fma(high, inverse, vec4(SHIFT))) - SHIFT_BITS;
#if KIND == Q8_0
    uvec3 one = bytes_of(v), two = bytes_of(w);
#else
    uvec3 one = bytes_of(uvec4(v.xz, w.xz)), two = bytes_of(uvec4(v.yw, w.yw));  // low nibbles, high ones
#endif
    uint high_sum = quad_sum(signed_dot(one.x, ONES) + signed_dot(two.x, ONES));
    uvec2 low_sums = uvec2(dotPacked4x8EXT(one.y, ONES) + dotPacked4x8EXT(two.y, ONES),
                           dotPacked4x8EXT(one.z, ONES) + dotPacked4x8EXT(two.z, ONES));
    uint both = quad_sum(low_sums.x | (low_sums.y << 16));
    uvec3 sums_of_bytes = uvec3(high_sum, both & 0xFFFFu, both >> 16);
    if (i < HELD) {
        uint to = i / OCTETS * STRIDE, at = (i & 1u) << 1;
        uint plane = to + (i >> 1) % PLANE;
        planes[plane][at] = one.x;
        planes[plane][at + 1u] = two.x;
        planes[plane + PLANE][at] = one.y;
        planes[plane + PLANE][at + 1u] = two.y;
        planes[plane + 2u * PLANE][at] = one.z;
        planes[plane + 2u * PLANE][at + 1u] = two.z;
        if (i % OCTETS == 0u) {
            uint unit = size >= 0x7F800000u ? 0x7FC00000u : (exponent - 21u) << 23;
            uvec3 start = uvec3(SHIFT_BITS) - TOO_LARGE * sums_of_bytes;
#if KIND == Q4_K
            int sum = int((sums_of_bytes.x << 16) + (sums_of_bytes.y << 8) + sums_of_bytes.z);
            start.x = floatBitsToUint(float(sum) * uintBitsToFloat(unit));
#endif
            planes[to + 3u * PLANE] = uvec4(start, unit);
        }
    }
}

// Brings the elements of a that were loaded, which belong to chunks from `first` on, to shared memory, and loads those
// that follow them.
void hold(uint first) {
    barrier();
    [[unroll]] for (uint t = 0u; t < MOST_HELD; t++) {
        if (t * THREADS < HELD) {
            vec4 low = a_unpack4(found[2u * t]), high = a_unpack4(found[2u * t + 1u]);
#ifdef FOLDED
            if (NORMED) {
                vec4 both = low * low + high * high;
                squares[0] += (both.x + both.y) + (both.z + both.w);
                low *= norm_unpack4(scaling[2u * t]);
                high *= norm_unpack4(scaling[2u * t + 1u]);
            }
#endif
            keep(t * THREADS + gl_LocalInvocationID.x, low, high);
        }
    }
    barrier();
    if (first + AHEAD * PASSES < push.b_row) fetch(first + AHEAD * PASSES);
}

// Adds the products of the chunks that were loaded from number `first` on, `at` chunks behind where what is held begins.
void multiply(uint first, uint at) {
    uint apart = gl_LocalInvocationID.x % SPAN, from = (at + apart) * STRIDE;
    uvec4 start = planes[from + 3u * PLANE];
    uint high[MOST_COLUMNS], middle[MOST_COLUMNS], low[MOST_COLUMNS];  // sums of products by such bytes
    EACH_COLUMN {
        high[c] = KIND == Q4_K ? SHIFT_BITS : start.x;
        middle[c] = KIND == Q4_K ? SHIFT_BITS : start.y;
        low[c] = KIND == Q4_K ? SHIFT_BITS : start.z;
    }
    [[unroll]] for (uint h = 0u; h < PLANE; h++) {
        uvec4 x0 = planes[from + h], x1 = planes[from + PLANE + h], x2 = planes[from + 2u * PLANE + h];
        EACH_COLUMN {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
#if KIND == Q8_0
                uint y = packed[c][i];
                high[c] += uint(dotPacked4x8EXT(int(x0[i]), y));
#else
                uint y = (packed[c][2u * h + (i >> 1)] >> ((i & 1u) << 2)) & 0x0F0F0F0Fu;
                high[c] += signed_dot(y, x0[i]);
#endif
                middle[c] += dotPacked4x8EXT(y, x1[i]);
                low[c] += dotPacked4x8EXT(y, x2[i]);
            }
        }
    }
    EACH_COLUMN {
        float f0 = uintBitsToFloat(high[c]) - SHIFT, f1 = uintBitsToFloat(middle[c]) - SHIFT;
        float part = fma(fma(f0, 256.0, f1), 256.0, uintBitsToFloat(low[c]) - SHIFT) * uintBitsToFloat(start.w);
        vec2 scale = scale_in(0u, c, first + apart);
        sums[c] += scale.x * part;
#if KIND == Q4_K
        sums[c] -= scale.y * uintBitsToFloat(start.x);
#endif
    }
}
