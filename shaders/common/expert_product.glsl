// Products of rows, each by the matrix of its expert: pairs of a token and an expert that it takes. Matrices (N, K) lie one
// after the other. A work-group makes 128 columns for pairs that share an expert: those of a tile of expert_groups.comp, or
// a single one. Where GATED, the first half of a matrix' rows are gates of the second half.
//
// The caller defines QUANTIZED and KIND for matrices in blocks.
#ifndef VKPAR_EXPERT_PRODUCT_GLSL
#define VKPAR_EXPERT_PRODUCT_GLSL

#include "elements.glsl"
#include "gate.glsl"
#include "grid.glsl"
#ifdef QUANTIZED
#include "kinds.glsl"
#if KIND == MIXED
#define B_TYPE KIND_CODE
#endif
#endif

layout(constant_id = 0) const uint A_TYPE = 0;
layout(constant_id = 1) const uint B_TYPE = 0;
layout(constant_id = 2) const uint O_TYPE = 0;
layout(constant_id = 3) const bool A_WIDE = false;
layout(constant_id = 4) const bool B_WIDE = false;
layout(constant_id = 5) const bool O_WIDE = false;
layout(constant_id = 6) const bool GATED = false;
layout(constant_id = 7) const bool GROUPED = false;  // by tiles

layout(local_size_x = 64) in;
ELEMENTS_IN(a, 0, A_TYPE, A_WIDE)
ELEMENTS_IN(b, 1, B_TYPE, B_WIDE)
ELEMENTS_OUT(o, 2, O_TYPE, O_WIDE)
layout(set = 0, binding = 3, std430) readonly buffer Chosen { uint chosen[]; };  // the experts of pairs, or tiles and pairs

layout(push_constant) uniform Push {
    uint pairs;
    uint n;         // columns of the result
    uint k;
    uint share;     // pairs that take the same row of a
    uint first;     // expert whose matrix comes first
    uint experts;   // matrices
    uint tiles;     // that there are, or pairs
    uint a_first;
    uint b_first;   // of quantised matrices: 16 bytes
    uint o_first;
    uint chosen_first;
    uint scales_first;
} push;

#ifdef QUANTIZED
#define SCALES_BINDING 4
#include "quantized.glsl"
#else
const uint FOURS = 1u;
const uint CHUNK = 4u;
#endif

const uint TILE = 4u;
const uint COLUMNS = 2u;  // of an invocation
const uint MADE = GATED ? 2u * COLUMNS : COLUMNS;
const uint NONE = 0xFFFFFFFFu;

#define EACH_ROW [[unroll]] for (uint r = 0u; r < TILE; r++) if (GROUPED || r == 0u)
#define EACH_COLUMN [[unroll]] for (uint c = 0u; c < 2u * COLUMNS; c++) if (c < MADE)

void expert_product() {
    uint across = (push.n + 127u) / 128u, group = group_number(), tile = group / across;
    uint column = group % across * 128u + gl_LocalInvocationID.x * COLUMNS;
    if (tile >= push.tiles || column >= push.n) return;
    uint expert = chosen[push.chosen_first + tile] - (GROUPED ? 0u : push.first);
    if (expert >= push.experts) return;
    uint pair[TILE], from[TILE];
    EACH_ROW {
        pair[r] = GROUPED ? chosen[push.chosen_first + push.tiles + tile * TILE + r] : tile;
        from[r] = push.a_first + (pair[r] == NONE ? 0u : pair[r] / push.share * push.k);
    }
    uint matrix = expert * (GATED ? 2u * push.n : push.n), line[2u * COLUMNS];
    EACH_COLUMN line[c] = matrix + min(column + c % COLUMNS, push.n - 1u) + (c < COLUMNS ? 0u : push.n);
    float sums[TILE * 2u * COLUMNS];
    [[unroll]] for (uint i = 0u; i < TILE * 2u * COLUMNS; i++) sums[i] = 0.0;
    uint chunks = (push.k + CHUNK - 1u) / CHUNK;
    for (uint chunk = 0u; chunk < chunks; chunk++) {
#ifdef QUANTIZED
        uvec4 packed[2u * COLUMNS];
        vec2 scale[2u * COLUMNS];
#if KIND == MIXED
        uvec2 above[2u * COLUMNS];
#endif
        EACH_COLUMN {
            uint number = push.scales_first * CHUNKS + line[c] * chunks + chunk;
#if KIND == MIXED
            uint row = push.b_first + line[c] * row_units(chunks);
            packed[c] = b_word4[row + chunk];
            SCALE_BITS bits = scale_bits(number);
            above[c] = uvec2(0u);
            LOAD_ABOVE(b_word, b_word2, row, chunks, chunk, above[c])
            LOAD_INNER(b_word, row, chunks, chunk, bits.y)
            scale[c] = chunk_scale(bits, number);
#else
            packed[c] = b_word4[push.b_first + line[c] * chunks + chunk];
            scale[c] = chunk_scale(scale_bits(number), number);
#endif
        }
#endif
        [[dont_unroll]] for (uint q = 0u; q < FOURS; q++) {
            uint k = chunk * CHUNK + 4u * q, n = min(push.k - k, 4u);
            vec4 y[2u * COLUMNS];
#ifndef QUANTIZED
            EACH_COLUMN y[c] = b_at4(push.b_first + line[c] * push.k + k, n);
#elif KIND == MIXED
            EACH_COLUMN y[c] = scaled(whole4(packed[c][q & 3u], above[c], q), scale[c], q);
#else
            EACH_COLUMN y[c] = scaled(whole_of(packed[c], q), scale[c]);
#endif
            EACH_ROW {
                vec4 x = a_at4(from[r] + k, n);
                EACH_COLUMN {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) sums[r * 2u * COLUMNS + c] += x[e] * y[c][e];
                }
            }
        }
    }
    EACH_ROW {
        if (pair[r] != NONE) {
            vec4 made = vec4(sums[r * 2u * COLUMNS], sums[r * 2u * COLUMNS + 1u], 0.0, 0.0);
            vec4 more = vec4(sums[r * 2u * COLUMNS + 2u], sums[r * 2u * COLUMNS + 3u], 0.0, 0.0);
            if (GATED) made = gated(made, more);
            o_store4(push.o_first + pair[r] * push.n + column, min(push.n - column, COLUMNS), o_pack4(floatBitsToUint(made)));
        }
    }
}

#endif
