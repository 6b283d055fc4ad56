// Attention of many queries that share a head of keys and values, over all keys or one part of them, without matrix cores.
//
// A tile of 64 queries by 64 keys at a time: an invocation makes ROWS x 4 of its scores, STEP elements of the rows at a
// time through shared memory; then the weights of four queries and ROWS keys, in place, by an online softmax; then it
// adds values to ROWS queries' sums, of which it has four columns of each 64.
// variants: f32: K_TYPE=F32 | f16: K_TYPE=F16 | bf16: K_TYPE=BF16 | rows4_f32: K_TYPE=F32 ROWS=4 | rows4_f16: K_TYPE=F16 ROWS=4 | rows4_bf16: K_TYPE=BF16 ROWS=4
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/attention.glsl"

#ifndef ROWS
#define ROWS 8
#endif
#define THREADS (64 * 64 / (ROWS * 4))
layout(local_size_x = THREADS) in;

#define TILE 64u
#define STEP 16u        // elements of rows, and values, that lie in shared memory at once
#define PITCH 17u       // fours of a column of 64, and one, which spreads them over the banks
#define GROUPS 2u       // columns of 64 of a row, at most
#define V_PITCH 33u
#define FOURS (uint(ROWS) / 4u)         // of the queries of an invocation
#define SHARES (uint(THREADS) / 16u)    // of the keys, when they are weighed

shared vec4 slices[2u * STEP * PITCH > STEP * V_PITCH ? 2u * STEP * PITCH : STEP * V_PITCH];
shared vec4 score[TILE * PITCH];  // of a key, by fours of queries; then weights
shared vec4 exchange[SHARES * 16u];
shared vec4 factors[16];
shared uint lost[TILE];

// Of this group.
uint batch, kv, row0, keys;

// Four elements of four rows, turned, into a slice: of queries, or of keys.
void load_rows(uint tile, uint end, uint depth) {
    uint id = gl_LocalInvocationID.x, part = id % 64u, first = part / 4u * 4u, d = depth + part % 4u * 4u;
    uint n = WIDTH - min(d, WIDTH);
#if ROWS < 8
    if (id >= 128u) {
        return;
    }
#endif
    vec4 v[4];
    if (id < 64u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint row = row0 + first + i;
            bool there = row < push.tokens * push.grouped && n > 0u;
            v[i] = q_at4(there ? query_at(batch, kv, row) + d : push.q_first, there ? n : 0u) * push.scale;
        }
    } else {
        uint base = push.k_first + batch * push.k_batch + kv * push.k_head + d;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint key = tile + first + i;
            v[i] = k_at4(base + key * push.k_row, key < end ? n : 0u);
        }
    }
    uint at = id / 64u * STEP * PITCH + part % 4u * 4u * PITCH + part / 4u;
    [[unroll]] for (uint e = 0u; e < 4u; e++) slices[at + e * PITCH] = vec4(v[0][e], v[1][e], v[2][e], v[3][e]);
}

void load_values(uint tile, uint end) {
    uint id = gl_LocalInvocationID.x, key = tile + id / SHARES;
    uint base = push.v_first + batch * push.v_batch + kv * push.v_head + key * push.v_row;
    [[unroll]] for (uint i = 0u; i < 32u / SHARES; i++) {
        uint four = id % SHARES + i * SHARES, d = four * 4u;
        slices[id / SHARES * V_PITCH + four] = v_at4(base + d, key < end ? WIDTH - min(d, WIDTH) : 0u);
    }
}

vec4 weigh(vec4 s, vec4 top) {
    return mix(vec4(0.0), exp(s - top), greaterThanEqual(s, vec4(LOWEST)));
}

// Stores what an invocation has of a row.
void store(uint own, uint split, vec4 sums[GROUPS]) {
    uint row = row0 + own, wide = gl_LocalInvocationID.x % 16u;
    float all = 0.0;
    for (uint i = 0u; i < SHARES; i++) all += exchange[i * 16u + own / 4u][own % 4u];
    all = lost[own] != 0u ? NOT : all;
    if (row < push.tokens * push.grouped) {
        uint place = row_number(batch, kv, row) * push.splits + split;
        [[unroll]] for (uint g = 0u; g < GROUPS; g++) {
            uint d = (g * 16u + wide) * 4u;
            if (SPLIT) {
                if (d < CHUNKS * 8u) o_store4(place * CHUNKS * 8u + d, 4u, floatBitsToUint(sums[g]));
            } else if (d < WIDTH) {
                uvec4 packed = o_pack4(floatBitsToUint(quotient(sums[g], all)));
                o_store4(result_at(batch, kv, row) + d, WIDTH - d, packed);
            }
        }
        if (SPLIT && wide == 0u) {
            uint rows = push.batches * push.kv_heads * push.grouped * push.tokens;
            uint at = rows * push.splits * CHUNKS * 8u + place * 2u;
            o_store4(at, 2u, floatBitsToUint(vec4(factors[own / 4u][own % 4u], all, 0.0, 0.0)));
        }
    }
}

// No loop over rows: it would stay one, and an array with an index that is not constant lies in memory.
#define STORE(R) store(high * 4u + R, split, vec4[](sums[R * GROUPS], sums[R * GROUPS + 1]));

void main() {
    uint group = group_number();
    uint split = group % push.splits;
    group /= push.splits;
    uint block = group % push.blocks;
    group /= push.blocks;
    kv = group % push.kv_heads;
    batch = group / push.kv_heads;
    if (batch >= push.batches) {
        return;
    }
    row0 = (CAUSAL ? push.blocks - 1u - block : block) * TILE;  // those that see the most begin first
    keys = keys_of(batch);
    uint rows = push.tokens * push.grouped;
    uint most = seen_by(min(row0 + TILE, rows) - 1u, keys);
    uint first = first_seen(row0, keys);
    uint share = (most - first + push.splits * TILE - 1u) / (push.splits * TILE) * TILE;
    uint begin = min(first + split * share, most), end = min(begin + share, most);

    uint id = gl_LocalInvocationID.x;
    uint high = id / 16u * FOURS, wide = id % 16u;  // fours of queries and of keys or columns
    uint four = id % 16u, own = id / 16u;           // of queries, and the share of the keys, that it weighs
    uint seen[ROWS];
    vec4 sums[ROWS * GROUPS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        seen[r] = min(end, seen_by(row0 + high * 4u + r, keys));
        [[unroll]] for (uint g = 0u; g < GROUPS; g++) sums[r * GROUPS + g] = vec4(0.0);
    }
    vec4 top = vec4(LOWEST), total = vec4(0.0);
    if (id < TILE) {
        lost[id] = 0u;
    }
    [[dont_unroll]] for (uint tile = begin; tile < end; tile += TILE) {
        vec4 s[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) s[r] = vec4(0.0);
        [[dont_unroll]] for (uint depth = 0u; depth < WIDTH; depth += STEP) {
            barrier();
            load_rows(tile, end, depth);
            barrier();
            [[dont_unroll]] for (uint d = 0u; d < STEP; d++) {
                vec4 k = slices[(STEP + d) * PITCH + wide];
                [[unroll]] for (uint f = 0u; f < FOURS; f++) {
                    vec4 a = slices[d * PITCH + high + f];
                    [[unroll]] for (uint r = 0u; r < 4u; r++) s[f * 4u + r] += a[r] * k;
                }
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint row = row0 + high * 4u + r;
            bool spoilt = false;
            [[unroll]] for (uint e = 0u; e < 4u; e++) {
                uint key = tile + wide * 4u + e;
                bool there = sees(row, keys, key, seen[r]);
                if (MASKED && there) {
                    s[r][e] += m_at(mask_at(batch, kv, row, key));
                }
                s[r][e] = there ? s[r][e] : UNSEEN;
                spoilt = spoilt || spoils(s[r][e]);
            }
            if (spoilt) {
                lost[high * 4u + r] = 1u;  // whoever does writes the same
            }
        }
        [[unroll]] for (uint e = 0u; e < 4u; e++) {
            uint at = (wide * 4u + e) * PITCH + high;
            score[at] = vec4(s[0][e], s[1][e], s[2][e], s[3][e]);
#if ROWS > 4
            score[at + 1u] = vec4(s[4][e], s[5][e], s[6][e], s[7][e]);
#endif
        }
        barrier();
        vec4 mine[ROWS], higher = top;
        [[unroll]] for (uint j = 0u; j < ROWS; j++) {
            mine[j] = score[(own * ROWS + j) * PITCH + four];
            higher = max(higher, mine[j]);
        }
        exchange[id] = higher;
        barrier();
        [[unroll]] for (uint i = 0u; i < SHARES; i++) higher = max(higher, exchange[i * 16u + four]);
        vec4 factor = exp(top - higher);
        top = higher;
        total *= factor;
        [[unroll]] for (uint j = 0u; j < ROWS; j++) {
            vec4 weights = weigh(mine[j], top);
            total += weights;
            score[(own * ROWS + j) * PITCH + four] = weights;
        }
        if (own == 0u) {
            factors[four] = factor;
        }
        barrier();
        [[unroll]] for (uint f = 0u; f < FOURS; f++) {
            vec4 a = factors[high + f];
            [[unroll]] for (uint r = 0u; r < 4u; r++) {
                [[unroll]] for (uint g = 0u; g < GROUPS; g++) sums[(f * 4u + r) * GROUPS + g] *= a[r];
            }
        }
        [[dont_unroll]] for (uint at = 0u; at < min(TILE, end - tile); at += STEP) {
            barrier();
            load_values(tile + at, end);
            barrier();
            [[dont_unroll]] for (uint j = 0u; j < STEP; j++) {
                vec4 a[FOURS];
                [[unroll]] for (uint f = 0u; f < FOURS; f++) a[f] = score[(at + j) * PITCH + high + f];
                [[unroll]] for (uint g = 0u; g < GROUPS; g++) {
                    vec4 v = slices[j * V_PITCH + g * 16u + wide];
                    [[unroll]] for (uint r = 0u; r < ROWS; r++) sums[r * GROUPS + g] += a[r / 4u][r % 4u] * v;
                }
            }
        }
    }

    exchange[id] = total;
    if (own == 0u) {
        factors[four] = top;
    }
    barrier();
    STORE(0) STORE(1) STORE(2) STORE(3)
#if ROWS > 4
    STORE(4) STORE(5) STORE(6) STORE(7)
#endif
}
