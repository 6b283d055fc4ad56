// Attention of up to ROWS queries that share a head of keys and values, over all its keys or over one part of them.
//
// A tile of keys at a time: LANES invocations multiply a key with the queries; each score is finished by one invocation;
// then each slice of the group, CHUNKS invocations of which each has eight elements of the values' rows, adds every
// SLICES-th value by an online softmax of its own. The slices' sums come together at the end. Each element of k and v is
// read once for all the queries.
// variants: rows1: ROWS=1 EACH=4 | rows4: ROWS=4 EACH=4 | rows8: ROWS=8 EACH=2 | rows4_slim: ROWS=4 EACH=2 IN_FLIGHT=2
// variants: f32: K_TYPE=F32 | f16: K_TYPE=F16 | bf16: K_TYPE=BF16
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/attention.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;

const uint LANES = 4u;                        // invocations that a key has
const uint ABREAST = THREADS / LANES;         // keys that are multiplied at once
const uint TILE = ABREAST * uint(EACH);
const uint SLICES = THREADS / CHUNKS;
#ifndef IN_FLIGHT
#define IN_FLIGHT 4
#endif
const uint TURNS = uint(IN_FLIGHT);           // values in flight

shared vec4 query[ROWS * CHUNKS * 2u];
shared float parts[ROWS * EACH > 8 ? ROWS * EACH * THREADS : 8u * THREADS];
shared float score[ROWS * TILE];
shared float tops[THREADS], sums[THREADS];
shared uint lost[ROWS];

// The eight elements of a chunk, of which packed holds them as they are stored.
#define CHUNK_OF(NAME, PACKED) \
    void NAME##_chunk(uint i, uint n, out uvec4 low, out uvec4 high) { \
        low = uvec4(0u); \
        high = uvec4(0u); \
        if (NAME##_half) { \
            if (WIDE && n > 7u) { \
                low = NAME##_word4[i >> 3]; \
            } else { \
                low.xy = NAME##_packed4(i, n).xy; \
                low.zw = NAME##_packed4(i + 4u, n - min(n, 4u)).xy; \
            } \
        } else { \
            low = NAME##_packed4(i, n); \
            high = NAME##_packed4(i + 4u, n - min(n, 4u)); \
        } \
    } \
    vec4 NAME##_low(uvec4 low) { \
        return NAME##_unpack4(low); \
    } \
    vec4 NAME##_high(uvec4 low, uvec4 high) { \
        return NAME##_unpack4(NAME##_half ? uvec4(low.zw, 0u, 0u) : high); \
    }

CHUNK_OF(k, k)
CHUNK_OF(v, v)

// Of this group.
uint batch, kv, row0, keys, parts_in_use;

#include "common/attention_parts.glsl"

void load_queries() {
    for (uint i = gl_LocalInvocationID.x; i < uint(ROWS) * CHUNKS * 2u; i += THREADS) {
        uint r = i / (CHUNKS * 2u), d = i % (CHUNKS * 2u) * 4u;
        bool there = row0 + r < push.tokens * push.grouped && d < WIDTH;
        uint at = there ? query_at(batch, kv, row0 + r) + d : push.q_first;
        query[i] = q_at4(at, there ? WIDTH - d : 0u) * push.scale;
    }
    if (gl_LocalInvocationID.x < uint(ROWS)) {
        lost[gl_LocalInvocationID.x] = 0u;
    }
}

// Leaves LANES sums for each key and query in `parts`.
void multiply(uint tile, uint end) {
    uint lane = gl_LocalInvocationID.x % LANES, slot = gl_LocalInvocationID.x / LANES;
    float products[ROWS * EACH];
    [[unroll]] for (uint i = 0u; i < ROWS * EACH; i++) products[i] = 0.0;
    uint base = push.k_first + batch * push.k_batch + kv * push.k_head + (tile + slot) * push.k_row;
    for (uint c = lane; c < CHUNKS; c += LANES) {
        uvec4 low[EACH], high[EACH];
        [[unroll]] for (uint e = 0u; e < EACH; e++) {
            uint n = tile + slot + e * ABREAST < end ? WIDTH - c * 8u : 0u;
            k_chunk(base + e * ABREAST * push.k_row + c * 8u, n, low[e], high[e]);
        }
        [[unroll]] for (uint e = 0u; e < EACH; e++) {
            vec4 one = k_low(low[e]), two = k_high(low[e], high[e]);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                vec4 a = query[(r * CHUNKS + c) * 2u], b = query[(r * CHUNKS + c) * 2u + 1u];
                // Not dot(), whose result costs another addition.
                [[unroll]] for (uint i = 0u; i < 4u; i++) products[e * ROWS + r] += a[i] * one[i];
                [[unroll]] for (uint i = 0u; i < 4u; i++) products[e * ROWS + r] += b[i] * two[i];
            }
        }
    }
    [[unroll]] for (uint e = 0u; e < EACH; e++) {
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            parts[((slot + e * ABREAST) * ROWS + r) * LANES + lane] = products[e * ROWS + r];
        }
    }
}

// Finishes the scores of a tile; -inf for keys that a query does not see.
void finish(uint tile, uint end) {
    for (uint i = gl_LocalInvocationID.x; i < uint(ROWS) * TILE; i += THREADS) {
        uint r = i % uint(ROWS), key = tile + i / uint(ROWS), row = row0 + r;
        float s = (parts[i * LANES] + parts[i * LANES + 1u]) + (parts[i * LANES + 2u] + parts[i * LANES + 3u]);
        bool seen = sees(row, keys, key, min(end, seen_by(row, keys)));
        if (MASKED && seen) {
            s += m_at(mask_at(batch, kv, row, key));
        }
        s = seen ? s : UNSEEN;
        if (spoils(s)) {
            lost[r] = 1u;  // whoever does writes the same
        }
        score[i] = s;
    }
}

float top[ROWS], total[ROWS];
vec4 low_sum[ROWS], high_sum[ROWS];

void add_values(uint tile, uint end) {
    uint c = gl_LocalInvocationID.x % CHUNKS, slice = gl_LocalInvocationID.x / CHUNKS;
    uint count = slice < SLICES ? min(TILE, end - tile) : 0u;
    float higher[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) higher[r] = top[r];
    for (uint j = slice; j < count; j += SLICES) {
        [[unroll]] for (uint r = 0u; r < ROWS; r++) higher[r] = max(higher[r], score[j * ROWS + r]);
    }
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        float factor = higher[r] != top[r] ? exp(top[r] - higher[r]) : 1.0;
        top[r] = higher[r];
        total[r] *= factor;
        low_sum[r] *= factor;
        high_sum[r] *= factor;
    }
    uint base = push.v_first + batch * push.v_batch + kv * push.v_head + tile * push.v_row + c * 8u;
    for (uint j = slice; j < count; j += TURNS * SLICES) {
        uvec4 low[TURNS], high[TURNS];
        [[unroll]] for (uint i = 0u; i < TURNS; i++) {
            uint key = j + i * SLICES;
            v_chunk(base + key * push.v_row, key < count ? WIDTH - c * 8u : 0u, low[i], high[i]);
        }
        [[unroll]] for (uint i = 0u; i < TURNS; i++) {
            uint key = j + i * SLICES;
            vec4 one = v_low(low[i]), two = v_high(low[i], high[i]);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float s = key < count ? score[key * ROWS + r] : UNSEEN;
                float weight = s >= LOWEST ? exp(s - top[r]) : 0.0;
                total[r] += weight;
                low_sum[r] += weight * one;
                high_sum[r] += weight * two;
            }
        }
    }
}

// Brings the slices' sums of a row together, and stores them.
void store_row(uint r, uint split, float top, float total, vec4 low_sum, vec4 high_sum) {
    uint id = gl_LocalInvocationID.x, c = id % CHUNKS, slice = id / CHUNKS;
    barrier();
    if (c == 0u && slice < SLICES) {
        tops[slice] = top;
        sums[slice] = total;
    }
    barrier();
    float highest = tops[0];
    for (uint i = 1u; i < SLICES; i++) highest = max(highest, tops[i]);
    if (slice < SLICES) {
        float factor = total > 0.0 ? exp(top - highest) : 0.0;
        [[unroll]] for (uint e = 0u; e < 4u; e++) {
            parts[id * 8u + e] = low_sum[e] * factor;
            parts[id * 8u + 4u + e] = high_sum[e] * factor;
        }
    }
    barrier();
    uint row = row0 + r, d = id * 4u;
    if (row < push.tokens * push.grouped && d < CHUNKS * 8u) {
        float all = 0.0;
        vec4 made = vec4(0.0);
        for (uint i = 0u; i < SLICES; i++) {
            uint at = i * CHUNKS * 8u + d;
            all += sums[i] > 0.0 ? sums[i] * exp(tops[i] - highest) : 0.0;
            made += vec4(parts[at], parts[at + 1u], parts[at + 2u], parts[at + 3u]);
        }
        all = lost[r] != 0u ? NOT : all;
        if (parts_in_use > 1u) {
            store_part(row, split, d, made, highest, all);
        } else if (d < WIDTH) {
            o_store4(result_at(batch, kv, row) + d, WIDTH - d, o_pack4(floatBitsToUint(quotient(made, all))));
        }
    }
}

// No loop over rows: it would stay one, and an array with an index that is not constant lies in memory.
#define STORE(R) store_row(R, split, top[R], total[R], low_sum[R], high_sum[R]);

void main() {
    uint group = group_number();
    uint split = group % push.splits;
    group /= push.splits;
    uint block = group;
    row0 = group % push.blocks * uint(ROWS);
    group /= push.blocks;
    kv = group % push.kv_heads;
    batch = group / push.kv_heads;
    if (batch >= push.batches) {
        return;
    }
    keys = keys_of(batch);
    uint most = seen_by(min(row0 + uint(ROWS), push.tokens * push.grouped) - 1u, keys);
    uint first = first_seen(row0, keys);
    uint share = (most - first + push.splits * TILE - 1u) / (push.splits * TILE) * TILE;
    uint begin = min(first + split * share, most), end = min(begin + share, most);
    parts_in_use = parts_of(most - first, share);
    if (split >= parts_in_use) {
        return;
    }
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        top[r] = LOWEST;
        total[r] = 0.0;
        low_sum[r] = high_sum[r] = vec4(0.0);
    }
    load_queries();
    for (uint tile = begin; tile < end; tile += TILE) {
        barrier();
        multiply(tile, end);
        barrier();
        finish(tile, end);
        barrier();
        add_values(tile, end);
    }
    STORE(0)
#if ROWS > 1
    STORE(1) STORE(2) STORE(3)
#endif
#if ROWS > 4
    STORE(4) STORE(5) STORE(6) STORE(7)
#endif
    if (parts_in_use > 1u) {
        bring_together(block, parts_in_use);
    }
}
