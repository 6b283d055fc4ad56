// Attention of many queries that share a head of keys and values, over all keys or one part of them, by matrix cores.
//
// A subgroup takes 16 or 32 queries, whose elements it holds, and the sums of their weighted values; tiles of keys and values go
// through shared memory for all subgroups, one tile while the next is filled and the one after that is loaded. Scores go
// there, too, because matrices do not say which element lies where: an invocation makes the weights of some of a query's
// scores by an online softmax. Sums are multiplied only where a largest score has grown.
// variants: t128: THREADS=128 | t256: THREADS=256
// variants: f16: BFLOAT=0 K_TYPE=F16 | bf16: BFLOAT=1 K_TYPE=BF16
// needs: cooperative_matrix | bf16: bfloat16
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#if BFLOAT
#extension GL_EXT_bfloat16 : require
#endif
#include "common/fragments.glsl"
#include "common/attention.glsl"

layout(local_size_x = THREADS) in;
layout(constant_id = 12) const uint KEYS = 32;    // of a tile
layout(constant_id = 13) const uint WARP = 32;    // invocations of a subgroup
layout(constant_id = 14) const uint BUFFERS = 2;  // 2: one tile is filled while the other is read
layout(constant_id = 15) const uint BLOCKS = 1;   // of 16 queries, of a subgroup

const uint OWN = 16u * BLOCKS;           // queries of a subgroup
const uint ROWS = THREADS / WARP * OWN;
const uint DEPTH = (WIDTH + 15u) / 16u;  // matrices along a row
const uint UNITS = 2u * DEPTH;           // of 16 bytes, of a row
const uint TURNS = (KEYS * UNITS + THREADS - 1u) / THREADS;
const uint SHARERS = WARP / OWN;         // invocations that a query has
const uint MINE = KEYS / SHARERS;        // keys of a tile that one of them weighs

// Where what begins in shared memory, and how far apart its rows are: a unit more, which spreads them over the banks.
const uint PITCH = UNITS + 1u;
const uint S_PITCH = KEYS / 4u + 1u;
const uint P_PITCH = KEYS / 8u + 1u;
const uint F_PITCH = 5u;
const uint OUT_PITCH = 17u;
const uint F_AT = 0u;                        // factors of the sums, all 16 of a row alike; at last, the totals
const uint K_AT = ROWS * F_PITCH;            // tiles of keys
const uint V_AT = KEYS * PITCH;              // of values, from where their keys begin
const uint BUFFER = 2u * KEYS * PITCH;
const uint S_AT = K_AT + BUFFERS * BUFFER;   // scores
const uint P_AT = S_AT + ROWS * S_PITCH;     // weights
const uint END = P_AT + ROWS * P_PITCH;
const uint OUT_AT = K_AT;                    // at last, 64 columns of the sums
const uint STAGED = K_AT + ROWS * (PITCH > OUT_PITCH ? PITCH : OUT_PITCH);
#ifndef Q_AT
#define Q_AT K_AT                            // at first, queries on their way to the subgroups
#endif

shared uvec4 tiles[END > STAGED ? END : STAGED];
shared uint lost[ROWS];

// Of this group.
uint batch, kv, row0, keys;

#define EACH_UNIT [[unroll]] for (uint p = 0u; p < TURNS; p++) \
    if (KEYS * UNITS % THREADS == 0u || id + p * THREADS < KEYS * UNITS)

#define EIGHT_OF(NAME, ALIGNED) \
    uvec4 NAME##_eight(uint i, uint n) { \
        uvec4 packed = uvec4(0u); \
        if (ALIGNED && n > 7u) { \
            packed = NAME##_word4[i >> 3]; \
        } else { \
            packed.xy = NAME##_packed4(i, n).xy; \
            packed.zw = NAME##_packed4(i + 4u, n - min(n, 4u)).xy; \
        } \
        return packed; \
    }

EIGHT_OF(q, false)
EIGHT_OF(k, WIDE)
EIGHT_OF(v, WIDE)

uint unit_at(uint part) {
    return part / UNITS * PITCH + part % UNITS;
}

// Elements of a unit that lie in a row, where there is the row.
uint left(uint part, bool there) {
    uint d = part % UNITS * 8u;
    return there ? WIDTH - min(d, WIDTH) : 0u;
}

uvec4 fetch_k(uint part, uint tile, uint end) {
    uint key = tile + part / UNITS;
    uint base = push.k_first + batch * push.k_batch + kv * push.k_head;
    return k_eight(base + key * push.k_row + part % UNITS * 8u, left(part, key < end));
}

uvec4 fetch_v(uint part, uint tile, uint end) {
    uint key = tile + part / UNITS;
    uint base = push.v_first + batch * push.v_batch + kv * push.v_head;
    return v_eight(base + key * push.v_row + part % UNITS * 8u, left(part, key < end));
}

void load_queries() {
    uint id = gl_LocalInvocationID.x;
    for (uint i = id; i < ROWS * UNITS; i += THREADS) {
        uint row = row0 + i / UNITS;
        bool there = row < push.tokens * push.grouped;
        uint at = there ? query_at(batch, kv, row) + i % UNITS * 8u : push.q_first;
        tiles[Q_AT + unit_at(i)] = q_eight(at, left(i, there));
    }
    for (uint i = id; i < ROWS; i += THREADS) lost[i] = 0u;
}

uint half_pair(vec2 v) {
#if BFLOAT
    return f32_pair_to_bf16_word(v);
#else
    return packHalf2x16(v);  // of numbers from 0 to 1
#endif
}

// Of this invocation's query.
float top, total;

// Makes weights of the scores of a tile, all of which are seen where `inside`, and says whether the sums so far are to be
// multiplied by a factor, which it leaves then.
bool weigh(uint own, uint sharer, uint tile, uint end, bool inside) {
    uint row = row0 + own, at = S_AT + own * S_PITCH + sharer * (MINE / 4u), first = tile + sharer * MINE;
    uint seen = min(end, seen_by(row, keys));
    if (MASKED) {
        [[dont_unroll]] for (uint i = 0u; i < MINE; i++) {
            float more = first + i < seen ? m_at(mask_at(batch, kv, row, first + i)) : 0.0;
            float s = uintBitsToFloat(tiles[at + i / 4u][i % 4u]) * push.scale + more;
            tiles[at + i / 4u][i % 4u] = floatBitsToUint(s);
        }
    }
    vec4 s[MINE / 4u];
    float higher = top, probe = 0.0;
    [[unroll]] for (uint i = 0u; i < MINE / 4u; i++) {
        s[i] = uintBitsToFloat(tiles[at + i]) * (MASKED ? 1.0 : push.scale);
    }
    if (!inside) {
        [[unroll]] for (uint i = 0u; i < MINE / 4u; i++) {
            uint key = first + i * 4u;
            s[i] = mix(vec4(UNSEEN), s[i], lessThan(uvec4(key, key + 1u, key + 2u, key + 3u), uvec4(seen)));
        }
    }
    [[unroll]] for (uint i = 0u; i < MINE / 4u; i++) {
        higher = max(higher, max(max(s[i].x, s[i].y), max(s[i].z, s[i].w)));
        probe += (s[i].x + s[i].y) + (s[i].z + s[i].w);
    }
    if ((floatBitsToUint(probe) & 0x7F800000u) == 0x7F800000u) {  // where it is finite, all terms are
        bool spoilt = false;
        [[unroll]] for (uint i = 0u; i < MINE / 4u; i++) {
            spoilt = spoilt || spoils(s[i].x) || spoils(s[i].y) || spoils(s[i].z) || spoils(s[i].w);
        }
        if (spoilt) {
            lost[own] = 1u;  // whoever does writes the same
        }
    }
    [[unroll]] for (uint b = 1u; b < SHARERS; b *= 2u) higher = max(higher, NEIGHBOUR(higher, b));
    bool grows = ANY(higher > top);
    if (grows) {
        float factor = exp(top - higher);
        top = higher;
        total *= factor;
        [[unroll]] for (uint i = 0u; i < 4u / SHARERS; i++) {
            tiles[F_AT + own * F_PITCH + sharer * (4u / SHARERS) + i] = uvec4(floatBitsToUint(factor));
        }
    }
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < MINE / 8u; i++) {
        vec4 one = exp(s[2u * i] - top), two = exp(s[2u * i + 1u] - top);
        if (!inside || MASKED) {
            one = mix(vec4(0.0), one, greaterThanEqual(s[2u * i], vec4(LOWEST)));
            two = mix(vec4(0.0), two, greaterThanEqual(s[2u * i + 1u], vec4(LOWEST)));
        }
        sum += one + two;
        tiles[P_AT + own * P_PITCH + sharer * (MINE / 8u) + i] =
            uvec4(half_pair(one.xy), half_pair(one.zw), half_pair(two.xy), half_pair(two.zw));
    }
    total += (sum.x + sum.y) + (sum.z + sum.w);
    return grows;
}

// Stores up to 64 columns of a subgroup's rows, from the d-th on, whose sums lie in shared memory.
void store_columns(uint first, uint split, uint d) {
    [[dont_unroll]] for (uint i = LANE; i < OWN * 16u; i += WARP) {
        uint own = first + i / 16u, row = row0 + own, at = d + i % 16u * 4u;
        vec4 sum = uintBitsToFloat(tiles[OUT_AT + own * OUT_PITCH + i % 16u]);
        float all = uintBitsToFloat(tiles[F_AT + own * F_PITCH + F_PITCH - 1u].x);
        if (row < push.tokens * push.grouped) {
            if (SPLIT) {
                uint place = row_number(batch, kv, row) * push.splits + split;
                if (at < CHUNKS * 8u) o_store4(place * CHUNKS * 8u + at, 4u, floatBitsToUint(sum));
            } else if (at < WIDTH) {
                uvec4 packed = o_pack4(floatBitsToUint(quotient(sum, all)));
                o_store4(result_at(batch, kv, row) + at, WIDTH - at, packed);
            }
        }
    }
}

// No loop: drivers do not unroll one around another that stays, and an array of matrices with an index that is not
// constant lies in memory.
#define STORE_COLUMNS(D) \
    if (D < DEPTH) { \
        [[unroll]] for (uint b = 0u; b < BLOCKS; b++) { \
            [[unroll]] for (uint i = 0u; i < 4u; i++) { \
                if (D + i < DEPTH) { \
                    STORE(sums[b * DEPTH + D + i], OUT_AT + (first + b * 16u) * OUT_PITCH + i * 4u, OUT_PITCH); \
                } \
            } \
        } \
        MEET; \
        store_columns(first, split, D * 16u); \
        MEET; \
    }

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
    row0 = (CAUSAL ? push.blocks - 1u - block : block) * ROWS;  // those that see the most begin first
    keys = keys_of(batch);
    uint most = seen_by(min(row0 + ROWS, push.tokens * push.grouped) - 1u, keys);
    uint share = (most + push.splits * KEYS - 1u) / (push.splits * KEYS) * KEYS;
    uint begin = min(split * share, most), end = min(begin + share, most);
    uint id = gl_LocalInvocationID.x, first = SUBGROUP * OWN, own = first + LANE / SHARERS, sharer = LANE % SHARERS;

    uvec4 k_next[TURNS], v_next[TURNS];
    load_queries();
    barrier();
    LEFT query[BLOCKS * DEPTH];
    SUMS sums[BLOCKS * DEPTH];
    [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
        [[unroll]] for (uint d = 0u; d < DEPTH; d++) {
            LOAD(query[b * DEPTH + d], Q_AT + (first + b * 16u) * PITCH + d * 2u, PITCH);
            sums[b * DEPTH + d] = NOTHING;
        }
    }
    top = LOWEST;
    total = 0.0;
    barrier();
    EACH_UNIT k_next[p] = fetch_k(id + p * THREADS, begin, end);
    EACH_UNIT v_next[p] = fetch_v(id + p * THREADS, begin, end);
    if (BUFFERS > 1u) {
        EACH_UNIT tiles[K_AT + unit_at(id + p * THREADS)] = k_next[p];
        EACH_UNIT tiles[K_AT + V_AT + unit_at(id + p * THREADS)] = v_next[p];
        EACH_UNIT k_next[p] = fetch_k(id + p * THREADS, begin + KEYS, end);
        EACH_UNIT v_next[p] = fetch_v(id + p * THREADS, begin + KEYS, end);
    }
    uint least = min(end, seen_by(row0, keys)), now = K_AT;
    [[dont_unroll]] for (uint tile = begin; tile < end; tile += KEYS) {
        barrier();
        uint other = BUFFERS > 1u ? 2u * K_AT + BUFFER - now : K_AT;
        if (BUFFERS == 1u) {
            EACH_UNIT tiles[K_AT + unit_at(id + p * THREADS)] = k_next[p];
            EACH_UNIT tiles[K_AT + V_AT + unit_at(id + p * THREADS)] = v_next[p];
            barrier();
        } else {
            EACH_UNIT tiles[other + unit_at(id + p * THREADS)] = k_next[p];
            EACH_UNIT tiles[other + V_AT + unit_at(id + p * THREADS)] = v_next[p];
        }
        if (tile + BUFFERS * KEYS < end) {
            EACH_UNIT k_next[p] = fetch_k(id + p * THREADS, tile + BUFFERS * KEYS, end);
            EACH_UNIT v_next[p] = fetch_v(id + p * THREADS, tile + BUFFERS * KEYS, end);
        }
        [[unroll]] for (uint n = 0u; n < KEYS / 16u; n++) {
            SUMS scores[BLOCKS];
            [[unroll]] for (uint b = 0u; b < BLOCKS; b++) scores[b] = NOTHING;
            [[unroll]] for (uint d = 0u; d < DEPTH; d++) {
                RIGHT key;
                LOAD_TURNED(key, now + n * 16u * PITCH + d * 2u, PITCH);
                [[unroll]] for (uint b = 0u; b < BLOCKS; b++) ADD_PRODUCT(scores[b], query[b * DEPTH + d], key);
            }
            [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
                STORE(scores[b], S_AT + (first + b * 16u) * S_PITCH + n * 4u, S_PITCH);
            }
        }
        MEET;
        bool grows = weigh(own, sharer, tile, end, tile + KEYS <= least);
        MEET;
        if (grows) {
            [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
                SUMS factors;
                LOAD(factors, F_AT + (first + b * 16u) * F_PITCH, F_PITCH);
                [[unroll]] for (uint d = 0u; d < DEPTH; d++) SCALE(sums[b * DEPTH + d], factors);
            }
        }
        [[unroll]] for (uint n = 0u; n < KEYS / 16u; n++) {
            LEFT weights[BLOCKS];
            [[unroll]] for (uint b = 0u; b < BLOCKS; b++) {
                LOAD(weights[b], P_AT + (first + b * 16u) * P_PITCH + n * 2u, P_PITCH);
            }
            [[unroll]] for (uint d = 0u; d < DEPTH; d++) {
                RIGHT value;
                LOAD(value, now + V_AT + n * 16u * PITCH + d * 2u, PITCH);
                [[unroll]] for (uint b = 0u; b < BLOCKS; b++) ADD_PRODUCT(sums[b * DEPTH + d], weights[b], value);
            }
        }
        now = other;
    }

    // The sharers' totals: they are relative to the same score.
    barrier();
    tiles[F_AT + own * F_PITCH + sharer] = uvec4(floatBitsToUint(total));
    MEET;
    float all = 0.0;
    [[unroll]] for (uint i = 0u; i < SHARERS; i++) all += uintBitsToFloat(tiles[F_AT + own * F_PITCH + i].x);
    all = lost[own] != 0u ? NOT : all;
    if (sharer == 0u) {
        tiles[F_AT + own * F_PITCH + F_PITCH - 1u] = uvec4(floatBitsToUint(all));
    }
    if (SPLIT && sharer == 0u && row0 + own < push.tokens * push.grouped) {
        uint place = row_number(batch, kv, row0 + own) * push.splits + split;
        uint rows = push.batches * push.kv_heads * push.grouped * push.tokens;
        o_store4(rows * push.splits * CHUNKS * 8u + place * 2u, 2u, floatBitsToUint(vec4(top, all, 0.0, 0.0)));
    }
    MEET;
    STORE_COLUMNS(0u) STORE_COLUMNS(4u) STORE_COLUMNS(8u) STORE_COLUMNS(12u)
}
