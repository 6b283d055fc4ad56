// One row of a as whole numbers, whose products by the weights' are summed exactly, four bytes at a time.
//
// The elements of a chunk share a unit, 2^-21 of the largest of them or less. What they are in it, to nearest, is within
// 2^22, which makes three bytes: two unsigned ones and, highest, one with the sign. Each lies with the other elements' in a
// plane, in the order of a chunk's bytes or nibbles. Sums of products by a plane are whole numbers within 2^22. They start
// from the bits of 1.5 x 2^23, which makes floats of them, less what the weights' numbers are too large by.
//
// The numbers of MIXED kinds that have no minimum are signed bytes, a power of two too large, so that nothing is too large by
// anything; a scale is made that much smaller.
//
// For COLUMNS of one row and one turn; groups are whole subgroups of four or more. Chunks are read by neighbours, STRIDE
// apart, which is odd: from different banks.
#extension GL_KHR_shader_subgroup_quad : require
#extension GL_EXT_integer_dot_product : require

const uint MAKERS = CHUNK / 4u / EACH;      // invocations that make the whole numbers of a chunk
const uint HELD = AHEAD * PASSES * MAKERS;  // parts of the row in shared memory, one of an invocation: THREADS at most
const uint MAKING = (HELD + 127u) & ~127u;  // whole subgroups
const uint PLANE = CHUNK / 16u;             // fours of words
const uint STRIDE = 3u * PLANE + 1u + (PLANE & 1u);

const float SHIFT = 12582912.0;
const uint SHIFT_BITS = 0x4B400000u;
const uint ONES = 0x01010101u;
#if KIND == Q4_K
const bool SUMS_CHUNKS = true;
#elif KIND == MIXED
const bool SUMS_CHUNKS = HAS_LEAST;
#endif
const uint TOO_LARGE = KIND == Q8_0 ? 128u : KIND == Q4_0 ? 8u : 0u;

shared uvec4 planes[AHEAD * PASSES * STRIDE];  // of a chunk: the highest bytes first, and what its sums start from, and its unit
#ifdef FOLDED
shared vec4 held[THREADS / 4u * 2u];           // the sums of all invocations, and those of squares
#else
shared vec4 held[THREADS / 4u];                // the sums of all invocations
#endif

const uint MOST_EACH = 4u;
#define EACH_FOUR [[unroll]] for (uint q = 0u; q < MOST_EACH; q++) if (q < EACH)

uvec4 found[MOST_EACH];
#ifdef FOLDED
uvec4 scaling[MOST_EACH];
#endif

// Loads the elements of a that belong to chunks from `first` on.
void fetch(uint first) {
    uint i = gl_LocalInvocationID.x, k = first * CHUNK + i * EACH * 4u;
    bool there = i < HELD && k < push.k;
    EACH_FOUR {
        found[q] = uvec4(0u);
        if (there) found[q] = a_packed4(push.a_first + k + 4u * q, 4u);
#ifdef FOLDED
        scaling[q] = uvec4(0u);
        if (NORMED && there) scaling[q] = norm_packed4(push.norm_first + k + 4u * q, 4u);
#endif
    }
}

// Of the neighbours that make a chunk: one, two or four.
uint chunk_max(uint v) {
    if (MAKERS > 1u) v = max(v, subgroupQuadSwapHorizontal(v));
    if (MAKERS > 2u) v = max(v, subgroupQuadSwapVertical(v));
    return v;
}

uint chunk_sum(uint v) {
    if (MAKERS > 1u) v += subgroupQuadSwapHorizontal(v);
    if (MAKERS > 2u) v += subgroupQuadSwapVertical(v);
    return v;
}

uint signed_dot(uint a, uint b) {
    return uint(dotPacked4x8EXT(int(a), int(b)));
}

// Bytes 2, 1 and 0 of four numbers, side by side.
uvec3 bytes_of(uvec4 v) {
    const uint EVENS = 0x00FF00FFu;
    uvec2 low = (v.xy & 0xFFFFu) | (v.zw << 16), high = (v.xy >> 16) | (v.zw & 0xFFFF0000u);
    return uvec3((high.x & EVENS) | ((high.y << 8) & ~EVENS), ((low.x >> 8) & EVENS) | (low.y & ~EVENS),
                 (low.x & EVENS) | ((low.y << 8) & ~EVENS));
}

// Stores the words that a part of what is held makes for one of the planes, from word `at` of four on.
void put(uint plane, uint at, uint w[MOST_EACH]) {
    if (EACH == 4u) {
        planes[plane] = uvec4(w[0], w[1], w[2], w[3]);
    } else {
        planes[plane][at] = w[0];
        planes[plane][at + 1u] = w[1];
    }
}

// Stores part i of what is held, whose elements are x.
void keep(uint i, vec4 x[MOST_EACH]) {
    uvec4 most = uvec4(0u);
    EACH_FOUR most = max(most, floatBitsToUint(x[q]) & 0x7FFFFFFFu);
    uint size = chunk_max(max(max(most.x, most.y), max(most.z, most.w)));
    uint exponent = clamp(size >> 23, 22u, 254u);
    vec4 inverse = vec4(uintBitsToFloat((275u - exponent) << 23));
    uvec4 v[MOST_EACH];
    EACH_FOUR v[q] = floatBitsToUint(fma(x[q], inverse, vec4(SHIFT))) - SHIFT_BITS;
    uint high[MOST_EACH], middle[MOST_EACH], low[MOST_EACH];
    EACH_FOUR {
#if KIND == Q8_0 || KIND == MIXED
        uvec3 bytes = bytes_of(v[q]);
#else
        uvec4 one = v[q & ~1u], two = v[q | 1u];
        uvec3 bytes = bytes_of((q & 1u) == 0u ? uvec4(one.xz, two.xz) : uvec4(one.yw, two.yw));  // low nibbles, high ones
#endif
        high[q] = bytes.x;
        middle[q] = bytes.y;
        low[q] = bytes.z;
    }
#if KIND == Q4_K || KIND == MIXED
    uint sum = 0u;
    if (SUMS_CHUNKS) {
        uvec4 each_sum = uvec4(0u);
        EACH_FOUR each_sum += v[q];
        sum = chunk_sum((each_sum.x + each_sum.y) + (each_sum.z + each_sum.w));
    }
#else
    uint high_sum = 0u, low_sums = 0u;
    EACH_FOUR {
        high_sum += signed_dot(high[q], ONES);
        low_sums += dotPacked4x8EXT(middle[q], ONES) | (dotPacked4x8EXT(low[q], ONES) << 16);
    }
    high_sum = chunk_sum(high_sum);
    low_sums = chunk_sum(low_sums);
#endif
    if (i < HELD) {
        uint to = i / MAKERS * STRIDE, word = i % MAKERS * EACH;
        uint plane = to + word / 4u, at = word % 4u;
        put(plane, at, high);
        put(plane + PLANE, at, middle);
        put(plane + 2u * PLANE, at, low);
        if (word == 0u) {
            uint unit = size >= 0x7F800000u ? 0x7FC00000u : (exponent - 21u) << 23;
#if KIND == Q4_K || KIND == MIXED
            uvec3 start = uvec3(floatBitsToUint(float(int(sum)) * uintBitsToFloat(unit)), 0u, 0u);
#else
            uvec3 start = uvec3(SHIFT_BITS) - TOO_LARGE * uvec3(high_sum, low_sums & 0xFFFFu, low_sums >> 16);
#endif
            planes[to + 3u * PLANE] = uvec4(start, unit);
        }
    }
}

// Brings the elements of a that were loaded, which belong to chunks from `first` on, to shared memory, and loads those
// that follow them.
void hold(uint first) {
    barrier();
    if (gl_LocalInvocationID.x < MAKING) {
        vec4 x[MOST_EACH];
        EACH_FOUR x[q] = a_unpack4(found[q]);
#ifdef FOLDED
        if (NORMED) {
            EACH_FOUR {
                vec4 square = x[q] * x[q];
                squares[0] += (square.x + square.y) + (square.z + square.w);
                x[q] *= norm_unpack4(scaling[q]);
            }
        }
#endif
        keep(gl_LocalInvocationID.x, x);
    }
    barrier();
    if (first + AHEAD * PASSES < push.b_row) fetch(first + AHEAD * PASSES);
}

#if KIND == MIXED
// What sums by the three bytes stand for, in units.
float part_of(uint high, uint middle, uint low) {
    float f0 = uintBitsToFloat(high) - SHIFT, f1 = uintBitsToFloat(middle) - SHIFT;
    return fma(fma(f0, 256.0, f1), 256.0, uintBitsToFloat(low) - SHIFT);
}

// Codes as signed bytes: the highest bit of those of no minimum becomes that of the sign, so that they are 4 (of Q5_0 8) times
// too large.
uint numbers4(uint c, uint i) {
    uint word = packed[c][i & 3u], codes;
    if (IS_Q6_K) {
        codes = ((i < 4u ? word << 2 : word >> 2) & 0x3C3C3C3Cu) | ((above[c][i >> 2] << (6u - 2u * (i & 3u))) & 0xC0C0C0C0u);
    } else if (IS_Q5_0) {
        codes = ((i < 4u ? word << 3 : word >> 1) & 0x78787878u) | ((above[c].x << (7u - i)) & 0x80808080u);
    } else {
        codes = codes4(word, above[c], i);
    }
    return codes;
}

// As below.
void multiply(uint first, uint at) {
    uint apart = gl_LocalInvocationID.x % SPAN, from = (at + apart) * STRIDE;
    uvec4 start = planes[from + 3u * PLANE];
    float parts[MOST_COLUMNS];
    vec2 scale[MOST_COLUMNS];
    uint high[MOST_COLUMNS], middle[MOST_COLUMNS], low[MOST_COLUMNS];  // sums of products by such bytes
    EACH_COLUMN {
        if (IS_Q6_K) above[c] ^= 0xAAAAAAAAu;
        if (IS_Q5_0) above[c].x = ~above[c].x;
        high[c] = middle[c] = low[c] = SHIFT_BITS;
        parts[c] = 0.0;
        scale[c] = scale_in(0u, c, first + apart);
    }
    [[unroll]] for (uint h = 0u; h < PLANE; h++) {
        uvec4 x0 = planes[from + h], x1 = planes[from + PLANE + h], x2 = planes[from + 2u * PLANE + h];
        EACH_COLUMN {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                int y = int(numbers4(c, 4u * h + i));
                high[c] += uint(dotPacked4x8EXT(int(x0[i]), y));
                middle[c] += uint(dotPacked4x8EXT(y, x1[i]));
                low[c] += uint(dotPacked4x8EXT(y, x2[i]));
            }
            if (IS_Q6_K && h == 0u) {
                parts[c] = scale[c].x * part_of(high[c], middle[c], low[c]);
                scale[c].x = scale[c].y;
                high[c] = middle[c] = low[c] = SHIFT_BITS;
            }
        }
    }
    float unit = uintBitsToFloat(start.w);
    EACH_COLUMN {
        parts[c] += scale[c].x * part_of(high[c], middle[c], low[c]);
        sums[c] += parts[c] * unit;
        if (HAS_LEAST) sums[c] -= scale[c].y * uintBitsToFloat(start.x);
    }
}
#else
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
        vec2 scale = scale_in(0u, c, KIND == Q4_K ? gl_LocalInvocationID.x % SPAN : first + apart);
        sums[c] += scale.x * part;
#if KIND == Q4_K
        sums[c] -= scale.y * uintBitsToFloat(start.x);
#endif
    }
}
#endif
