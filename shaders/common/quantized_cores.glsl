// The body of products of 2 to 16 rows of halves by quantised weights, by cooperative matrices of subgroups
// (VK_KHR_cooperative_matrix).
//
// A group makes COLUMNS of the result; its subgroups take turns of STEP steps of K, each by itself. Bytes of weights lie in
// shared memory as they came, and are loaded into matrices as if they were halves: a matrix of 16 x 16 of them has two
// weights in each element (four where weights have four bits). What these are is made in registers, in matrices of the same
// type, whose elements lie where those do: whole numbers, exact as halves. The rows of a are put so that the elements that
// meet are those: even places, then odd ones. A product over a block is multiplied by the block's scale, which a matrix
// holds whose columns are all the same 16 scales (a stride of 0), and only then added up.
//
// Of MIXED kinds the places are the low nibbles, elements 0 to 15 of a block, and the high ones. The bits above lie in a matrix
// of their own, in each half below those nibbles that they belong to.
#ifndef VKPAR_QUANTIZED_CORES_GLSL
#define VKPAR_QUANTIZED_CORES_GLSL

#define FORMS
#define EPILOGUE
#define HOLDS_RESIDUAL
#define SCALES
#define SCALES_BINDING 5
#include "kinds.glsl"
#if KIND == MIXED
#define B_TYPE KIND_CODE
#endif
#include "matmul.glsl"
#include "quantized.glsl"

layout(local_size_x_id = 19) in;
layout(constant_id = 7) const uint ROWS = 8;  // of a, up to HIGH
layout(constant_id = 8) const uint COLUMNS = 32;
layout(constant_id = 18) const uint TURNS = 1;      // steps on the way at once
layout(constant_id = 19) const uint THREADS = 256;  // four columns of a row or fewer to each
layout(constant_id = 20) const uint WARP = 32;      // invocations of a subgroup
layout(constant_id = 21) const uint HIGH = 16;      // rows of a that a matrix holds

#if KIND != Q8_0
layout(set = 0, binding = SCALES_BINDING, std430) readonly buffer Scales_Words2 { uvec2 scales_word2[]; };
#endif

const uint SIDE = 16u;  // of matrices of weights
const uint GROUPS = THREADS / WARP;
const uint REPEATS = COLUMNS / SIDE;

// A block's 32 weights are two matrices of 16 halves along K: those at even places and those at odd ones.
const uint BLOCK = 32u;
const uint BLOCKS = KIND == Q8_0 ? 1u : 2u;  // of a tile: 32 bytes of each column
const uint STEP = 2u * BLOCKS * BLOCK;       // two tiles
const uint PLANES = 2u * BLOCKS;

const uint X_UNITS = BLOCKS * BLOCK / 8u;  // 16 bytes of a's halves, of a tile
const uint X_LOADS = (ROWS * X_UNITS + WARP - 1u) / WARP;
const uint X_ROW = X_UNITS * 2u + 2u;      // in 8 bytes, those that keep rows on different banks included
const uint B_LOADS = COLUMNS * 2u / WARP;  // of 16 bytes of a tile
const uint S_LOADS = (COLUMNS + WARP - 1u) / WARP;
const uint B_ROW = 3u;                     // in 16 bytes, the same
const uint QUADS = COLUMNS / 4u;
const uint PLACE = COLUMNS * (B_ROW > HIGH / 4u ? B_ROW : HIGH / 4u);  // of a subgroup: its sums fit, too
#if KIND == MIXED
const uint SCALED = HAS_LEAST || IS_Q6_K ? 2u : 1u;
#else
const uint SCALED = KIND == Q4_K ? 2u : 1u;
#endif
const uint S_PLACE = SCALED * BLOCKS * COLUMNS;

#define SUMS coopmat<float, gl_ScopeSubgroup, SIDE, HIGH, gl_MatrixUseAccumulator>
#define B_MATRIX coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA>
#define A_MATRIX coopmat<float16_t, gl_ScopeSubgroup, SIDE, HIGH, gl_MatrixUseB>

shared uvec4 places[GROUPS * PLACE];
shared uvec2 rows[(GROUPS * ROWS + HIGH - ROWS) * X_ROW];  // matrices reach beyond the rows that there are
shared float multipliers[GROUPS * S_PLACE];
#if KIND == MIXED
shared uvec4 tops[IS_Q4_1 ? 1u : GROUPS * PLACE];
#endif

#if KIND == Q4_K
#define SUMS_CHUNKS true
#elif KIND == MIXED
#define SUMS_CHUNKS HAS_LEAST
#endif

#if KIND == Q8_0
#define SCALE_WORDS uint
#elif KIND == Q4_0
#define SCALE_WORDS uvec2
#else
#define SCALE_WORDS uvec4
#endif

// The number of a tile's block in its step.
uint block_of(uint tile, uint block) {
    return KIND == Q8_0 ? tile : tile + 2u * block;
}

#if KIND == MIXED
// The bits above two nibbles of every second byte of a chunk's word: of the low ones at bit 0, of the high ones at bit 4.
uint tops2(uvec2 above, uint word, uint odd) {
    uint found;
    if (IS_Q6_K) {
        uvec2 two = (above >> (8u * odd + 2u * word)) & 0x00030003u;
        found = two.x | (two.y << 4);
    } else {
        found = (above.x >> (8u * odd + word)) & 0x00110011u;
    }
    return found;
}

uint tops_of(uvec2 one, uvec2 two, uint word, uint odd) {
    return tops2(one, word, odd) | (tops2(two, word, odd) << 8);
}

uint mixed2(uint bits, uint top, uint plane) {
    uint part = bits >> (8u * (plane >> 1)), above = (top >> (8u * (plane >> 1))) << 4;
    float zero = IS_Q6_K ? 32.0 : IS_Q5_0 ? 16.0 : 0.0;
    f16vec2 v;
    if ((plane & 1u) == 0u) {
        v = unpackFloat2x16((part & 0x000F000Fu) | (above & 0x00300030u) | 0x64006400u) - f16vec2(float16_t(1024.0 + zero));
    } else {
        v = fma(unpackFloat2x16((part & 0x00F000F0u) | (above & 0x03000300u) | 0x64006400u), f16vec2(0.0625hf),
                f16vec2(float16_t(-64.0 - zero)));
    }
    return packFloat2x16(v);
}
#endif

// Two weights of a plane, out of two neighbours' bits.
uint weights2(uint bits, uint plane) {
#if KIND == Q8_0
    f16vec2 v = unpackFloat2x16((bits >> (8u * plane)) & 0x00FF00FFu | 0x64006400u) - f16vec2(1152.0hf);
#else
    uint part = bits >> (8u * (plane >> 1));
    f16vec2 v;
    if ((plane & 1u) == 0u) {
        v = unpackFloat2x16(part & 0x000F000Fu | 0x64006400u) - f16vec2(KIND == Q4_0 ? 1032.0hf : 1024.0hf);
    } else {
        v = fma(unpackFloat2x16(part & 0x00F000F0u | 0x64006400u), f16vec2(0.0625hf), f16vec2(KIND == Q4_0 ? -72.0hf : -64.0hf));
    }
#endif
    return packFloat2x16(v);
}

#define EACH_B [[unroll]] for (uint p = 0u; p < B_LOADS; p++)
#define EACH_X [[unroll]] for (uint p = 0u; p < X_LOADS; p++) if (lane + p * WARP < ROWS * X_UNITS)
#define EACH_S [[unroll]] for (uint p = 0u; p < S_LOADS; p++) if (lane + p * WARP < COLUMNS)
#define EACH_TILE(u) [[unroll]] for (uint u = 0u; u < 2u; u++)

// Loads a lane's share of step number S as turn T; zeros past the end of K.
#define FETCH(T, S) { \
    uint number = S; \
    bool there = number < steps; \
    EACH_TILE(u) EACH_B { \
        b_next[((T) * 2u + u) * B_LOADS + p] = uvec4(0u); \
        if (there) b_next[((T) * 2u + u) * B_LOADS + p] = b_word4[b_from[p] + number * 4u + u * 2u]; \
        FETCH_ABOVE(T, u) \
    } \
    EACH_S { \
        s_next[(T) * S_LOADS + p] = SCALE_WORDS(0u); \
        if (there) SCALE_FETCH(s_next[(T) * S_LOADS + p]) \
    } \
    EACH_TILE(u) EACH_X { \
        x_next[((T) * 2u + u) * X_LOADS + p] = uvec4(0u); \
        if (there) x_next[((T) * 2u + u) * X_LOADS + p] = a_word4[x_from + p * x_jump + number * (STEP / 8u) + block_of(u, 0u) * 4u]; \
    } \
}
#if KIND == MIXED
#define FETCH_ABOVE(T, U) \
    h_next[((T) * 2u + U) * B_LOADS + p] = uvec2(0u); \
    if (there) { \
        LOAD_ABOVE(b_word, b_word2, b_from[p] - (lane & 1u), push.b_row, number * 4u + U * 2u + (lane & 1u), h_next[((T) * 2u + U) * B_LOADS + p]) \
    }
#else
#define FETCH_ABOVE(T, U)
#endif
#if KIND == MIXED
#define SCALE_FETCH(TO) { \
    if (IS_Q6_K) { \
        TO.x = scales_word[(s_from[p] + number / 2u) / 2u]; \
        TO.zw = b_word2[s_row[p] * 2u + push.b_row * 3u + number]; \
    } else if (IS_Q5_0) { \
        TO.xy = scales_word2[s_from[p] + number]; \
    } else { \
        TO = scales_word4[s_from[p] + (IS_Q5_K ? number / 2u : number)]; \
    } \
}
#elif KIND == Q8_0
#define SCALE_FETCH(TO) TO = scales_word[s_from[p] + number];
#elif KIND == Q4_0
#define SCALE_FETCH(TO) TO = scales_word2[s_from[p] + number];
#else
#define SCALE_FETCH(TO) TO = scales_word4[s_from[p] + number / 2u];
#endif

// Puts what was loaded of tile U to shared memory: bytes, rows and scales.
#if KIND == Q8_0
#define PUT_B(T, U) EACH_B places[b_put + p * (WARP / 2u) * B_ROW + (lane & 1u)] = b_next[((T) * 2u + U) * B_LOADS + p];
#define PREPARE(T)
#else
#define PUT_B(T, U) if ((lane & 1u) == U) EACH_B { \
    places[b_put + p * (WARP / 2u) * B_ROW] = b_next[(T) * 2u * B_LOADS + p]; \
    places[b_put + p * (WARP / 2u) * B_ROW + 1u] = b_next[((T) * 2u + 1u) * B_LOADS + p]; \
    PUT_TOPS(T) \
}
#if KIND == MIXED
#define PUT_TOPS(T) if (!IS_Q4_1) { \
    uvec2 one = h_next[(T) * 2u * B_LOADS + p], two = h_next[((T) * 2u + 1u) * B_LOADS + p]; \
    [[unroll]] for (uint w = 0u; w < 4u; w += 2u) { \
        tops[b_put + p * (WARP / 2u) * B_ROW + w / 2u] = uvec4(tops_of(one, two, w, 0u), tops_of(one, two, w, 1u), \
                                                               tops_of(one, two, w + 1u, 0u), tops_of(one, two, w + 1u, 1u)); \
    } \
}
#else
#define PUT_TOPS(T)
#endif
// Bytes of two blocks side by side: those of the first one in the low bytes of halves.
#define PREPARE(T) EACH_B { \
    uvec4 one = b_next[(T) * 2u * B_LOADS + p], two = b_next[((T) * 2u + 1u) * B_LOADS + p]; \
    uvec4 even = (one & 0x00FF00FFu) | ((two << 8) & 0xFF00FF00u), odd = ((one >> 8) & 0x00FF00FFu) | (two & 0xFF00FF00u); \
    b_next[(T) * 2u * B_LOADS + p] = uvec4(even.x, odd.x, even.y, odd.y); \
    b_next[((T) * 2u + 1u) * B_LOADS + p] = uvec4(even.z, odd.z, even.w, odd.w); \
}
#endif

#if KIND == MIXED
#define PUT_X(T, U) EACH_X { \
    uvec4 v = x_next[((T) * 2u + U) * X_LOADS + p]; \
    uvec2 even = (v.xz & 0xFFFFu) | (v.yw << 16), odd = (v.xz >> 16) | (v.yw & 0xFFFF0000u); \
    rows[x_put + p * (WARP / X_UNITS) * X_ROW] = uvec2(even.x, odd.x); \
    rows[x_put + p * (WARP / X_UNITS) * X_ROW + 1u] = uvec2(even.y, odd.y); \
}
#else
#define PUT_X(T, U) EACH_X { \
    uvec4 v = x_next[((T) * 2u + U) * X_LOADS + p]; \
    uvec2 one = KIND == Q8_0 ? v.xz : v.xy, two = KIND == Q8_0 ? v.yw : v.zw; \
    rows[x_put + p * (WARP / X_UNITS) * X_ROW] = (one & 0xFFFFu) | (two << 16); \
    rows[x_put + p * (WARP / X_UNITS) * X_ROW + 4u] = (one >> 16) | (two & 0xFFFF0000u); \
}
#endif

#if KIND == MIXED
#define PUT_S(T, U) EACH_S [[unroll]] for (uint b = 0u; b < 2u; b++) { \
    vec2 scale = mixed_scale(s_next[(T) * S_LOADS + p], block_of(U, b), step0 + (T) * GROUPS, s_from[p]); \
    multipliers[s_own + b * COLUMNS + lane + p * WARP] = scale.x; \
    if (SCALED > 1u) multipliers[s_own + (2u + b) * COLUMNS + lane + p * WARP] = scale.y; \
}

// Of chunk number `at` of a step, by what was loaded for the step.
vec2 mixed_scale(uvec4 found, uint at, uint number, uint from) {
    uvec4 bits = found;
    uint chunk = at;
    if (IS_Q5_K) {
        chunk += 4u * (number & 1u);
    } else if (HAS_PAIRS) {
        bits.x = found[at];
    } else if (IS_Q5_0) {
        bits.x = found[at >> 1];
    } else {
        bits.y = found[2u + (at >> 1)];
        chunk += ((from + number / 2u) & 1u) * CHUNKS;
    }
    return chunk_scale(bits, chunk);
}
#elif KIND == Q8_0
#define PUT_S(T, U) EACH_S multipliers[s_own + lane + p * WARP] = unpackHalf2x16(s_next[(T) * S_LOADS + p] >> (16u * U)).x;
#elif KIND == Q4_0
#define PUT_S(T, U) EACH_S [[unroll]] for (uint b = 0u; b < 2u; b++) { \
    uint at = block_of(U, b); \
    multipliers[s_own + b * COLUMNS + lane + p * WARP] = unpackHalf2x16(s_next[(T) * S_LOADS + p][at >> 1] >> (16u * (at & 1u))).x; \
}
#else
#define PUT_S(T, U) EACH_S [[unroll]] for (uint b = 0u; b < 2u; b++) { \
    vec2 scale = chunk_scale(s_next[(T) * S_LOADS + p], 4u * half_of(T) + block_of(U, b)); \
    multipliers[s_own + b * COLUMNS + lane + p * WARP] = scale.x; \
    multipliers[s_own + (2u + b) * COLUMNS + lane + p * WARP] = scale.y; \
}
#define half_of(T) ((step0 + (T) * GROUPS) & 1u)
#endif

void make(uint column0) {
    uint id = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, own = gl_SubgroupID * PLACE;
    uint row = id / QUADS, column = column0 + id % QUADS * 4u;  // of what this invocation stores
    if (row < ROWS) hold_residual(row, column);

    uint steps = push.k / STEP, b_put = own + lane / 2u * B_ROW, b_from[B_LOADS], s_from[S_LOADS];
#if KIND == MIXED
    uint s_row[S_LOADS];
#endif
    // Past the end of N: the last column again, which is not stored.
    EACH_B {
        uint line = min(column0 + lane / 2u + p * (WARP / 2u), push.n - 1u);
#if KIND == MIXED
        b_from[p] = push.b_first + line * row_units(push.b_row) + (lane & 1u);
#else
        b_from[p] = push.b_first + line * push.b_row + (lane & 1u);
#endif
    }
    [[unroll]] for (uint p = 0u; p < S_LOADS; p++) {
        uint line = min(column0 + lane + p * WARP, push.n - 1u);
#if KIND == MIXED
        s_row[p] = push.b_first + line * row_units(push.b_row);
        s_from[p] = CHUNKS > 1u ? push.scales_first + line * (push.k / 256u) : (push.scales_first + line * push.b_row) / 4u;
#elif KIND == Q8_0
        s_from[p] = (push.scales_first + line * (push.k / BLOCK)) / 2u;
#elif KIND == Q4_0
        s_from[p] = (push.scales_first + line * (push.k / BLOCK)) / 4u;
#else
        s_from[p] = push.scales_first + line * (push.k / 256u);
#endif
    }
    uint x_line = lane / X_UNITS, x_unit = lane % X_UNITS;
    uint x_jump = WARP / X_UNITS * (push.a_row / 8u), x_own = gl_SubgroupID * ROWS * X_ROW, s_own = gl_SubgroupID * S_PLACE;
    uint x_from = (push.a_first + x_line * push.a_row) / 8u + x_unit % 4u + block_of(0u, x_unit / 4u) * 4u;
#if KIND == MIXED
    uint x_put = x_own + x_line * X_ROW + x_unit * 2u;
#else
    uint x_put = x_own + x_line * X_ROW + x_unit / 4u * 8u + x_unit % 4u;
#endif

    SUMS sums[REPEATS];
    [[unroll]] for (uint q = 0u; q < REPEATS; q++) sums[q] = SUMS(0.0);
    uvec4 b_next[TURNS * 2u * B_LOADS], x_next[TURNS * 2u * X_LOADS];
    SCALE_WORDS s_next[TURNS * S_LOADS];
#if KIND == MIXED
    uvec2 h_next[TURNS * 2u * B_LOADS];
#endif
    uint step0 = gl_SubgroupID;
    [[unroll]] for (uint t = 0u; t < TURNS; t++) FETCH(t, step0 + t * GROUPS)
    [[dont_unroll]] for (; step0 < steps; step0 += GROUPS * TURNS) {
        [[unroll]] for (uint t = 0u; t < TURNS; t++) {
            PREPARE(t)
            EACH_TILE(tile) {
                PUT_B(t, tile)
                PUT_X(t, tile)
                PUT_S(t, tile)
                subgroupBarrier();
                if (tile == 1u) FETCH(t, step0 + (TURNS + t) * GROUPS)
                A_MATRIX x[PLANES];
                [[unroll]] for (uint j = 0u; j < PLANES; j++) {
                    coopMatLoad(x[j], rows, x_own + j * 4u, X_ROW, gl_CooperativeMatrixLayoutColumnMajor);
                }
#if KIND == Q4_K || KIND == MIXED
                SUMS x_sums[BLOCKS];
                [[unroll]] for (uint b = 0u; b < BLOCKS; b++) if (SUMS_CHUNKS) {
                    x_sums[b] = coopMatMulAdd(B_MATRIX(1.0hf), x[2u * b], SUMS(0.0));
                    x_sums[b] = coopMatMulAdd(B_MATRIX(1.0hf), x[2u * b + 1u], x_sums[b]);
                }
#endif
                [[unroll]] for (uint q = 0u; q < REPEATS; q++) {
                    B_MATRIX y[PLANES];
                    B_MATRIX raw;
                    coopMatLoad(raw, places, own + q * SIDE * B_ROW, B_ROW, gl_CooperativeMatrixLayoutRowMajor);
#if KIND == MIXED
                    B_MATRIX top = B_MATRIX(0.0hf);
                    if (!IS_Q4_1) coopMatLoad(top, tops, own + q * SIDE * B_ROW, B_ROW, gl_CooperativeMatrixLayoutRowMajor);
#endif
                    [[unroll]] for (uint i = 0u; i < raw.length(); i += 2u) {
                        uint bits = packFloat2x16(f16vec2(raw[i], raw[i + 1u]));
                        [[unroll]] for (uint j = 0u; j < PLANES; j++) {
#if KIND == MIXED
                            f16vec2 both = unpackFloat2x16(mixed2(bits, packFloat2x16(f16vec2(top[i], top[i + 1u])), j));
#else
                            f16vec2 both = unpackFloat2x16(weights2(bits, j));
#endif
                            y[j][i] = both.x;
                            y[j][i + 1u] = both.y;
                        }
                    }
                    [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
                        SUMS part = coopMatMulAdd(y[2u * b], x[2u * b], SUMS(0.0)), scale;
#if KIND == MIXED
                        if (IS_Q6_K) {  // each place has a scale of its own
                            coopMatLoad(scale, multipliers, s_own + b * COLUMNS + q * SIDE, 0u, gl_CooperativeMatrixLayoutColumnMajor);
                            sums[q] += scale * part;
                            part = coopMatMulAdd(y[2u * b + 1u], x[2u * b + 1u], SUMS(0.0));
                            coopMatLoad(scale, multipliers, s_own + (2u + b) * COLUMNS + q * SIDE, 0u, gl_CooperativeMatrixLayoutColumnMajor);
                            sums[q] += scale * part;
                            continue;
                        }
#endif
                        part = coopMatMulAdd(y[2u * b + 1u], x[2u * b + 1u], part);
                        coopMatLoad(scale, multipliers, s_own + b * COLUMNS + q * SIDE, 0u, gl_CooperativeMatrixLayoutColumnMajor);
                        sums[q] += scale * part;
#if KIND == Q4_K || KIND == MIXED
                        if (SUMS_CHUNKS) {
                            coopMatLoad(scale, multipliers, s_own + (2u + b) * COLUMNS + q * SIDE, 0u, gl_CooperativeMatrixLayoutColumnMajor);
                            sums[q] -= scale * x_sums[b];
                        }
#endif
                    }
                }
                subgroupBarrier();
            }
        }
    }

    [[unroll]] for (uint q = 0u; q < REPEATS; q++) {
        coopMatStore(sums[q], places, own + q * SIDE / 4u, QUADS, gl_CooperativeMatrixLayoutColumnMajor);
    }
    barrier();
    if (row < ROWS) {
        vec4 sum = uintBitsToFloat(places[id]);
        [[unroll]] for (uint g = 1u; g < GROUPS; g++) sum += uintBitsToFloat(places[g * PLACE + id]);
        store_row4(row, column, sum);
    }
}

void main() {
    if (group_number() * COLUMNS < push.n) make(group_number() * COLUMNS);
}

#endif
