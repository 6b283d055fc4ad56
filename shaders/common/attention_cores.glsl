// Attention of many queries that share a head of keys and values, over all keys or one part of them, by matrix cores.
//
// A subgroup takes FM queries, whose elements it holds, and the sums of their weighted values; tiles of keys and values go
// through shared memory for all subgroups, one tile while the next is filled and the one after that is loaded. Where there
// are few registers (AHEAD is 0), queries lie in shared memory, nothing is loaded before it is needed, and PARTS subgroups
// share queries: each has all the scores, and the sums of some of the values' columns.
//
// Scores stay in registers. Matrices do not say which element lies where, but elements of one number lie at one place in
// all matrices of a kind: what belongs to a query (the score that its weights are relative to, the last key that it sees)
// is a matrix whose rows are of one number. Weights are relative to a score near the largest one: as long as none is
// above it by more than SLACK, invocations need nothing of each other.
#ifndef VKPAR_ATTENTION_CORES_GLSL
#define VKPAR_ATTENTION_CORES_GLSL

#include "attention.glsl"

layout(local_size_x = THREADS) in;
layout(constant_id = 13) const uint KEYS = 32;  // of a tile
layout(constant_id = 14) const uint WARP = 32;  // invocations of a subgroup
layout(constant_id = 15) const uint FM = 16;    // rows of matrices: 16 or 8
layout(constant_id = 16) const uint AHEAD = 1;  // 1: queries lie in registers, and what is loaded before it is needed
layout(constant_id = 17) const uint PARTS = 1;

#include "fragments.glsl"

const bool HELD = AHEAD > 0u;
const uint SLOTS = THREADS / WARP * FM;  // rows of all subgroups' matrices
const uint ROWS = SLOTS / PARTS;
const uint DEPTH = (WIDTH + 15u) / 16u;  // matrices along a row
const uint BROAD = (DEPTH + PARTS - 1u) / PARTS;  // of these, whose sums a subgroup has
const uint ALONG = KEYS / 16u;           // matrices along a tile's keys
const uint UNITS = 2u * DEPTH;           // of 16 bytes, of a row
const uint TURNS = (KEYS * UNITS + THREADS - 1u) / THREADS;
const uint Q_TURNS = (2u * FM - 1u + WARP) / WARP;
const uint SHARERS = WARP / FM;         // invocations that a row of a matrix has
const uint SHARE = 4u / SHARERS;         // units of such a row of floats that one of them has

// Where what begins in shared memory, and how far apart its rows are: a unit more spreads them over the banks.
const uint PITCH = UNITS + 1u;
const uint S_PITCH = 4u;         // of a subgroup's matrix of floats
const uint P_PITCH = 3u;         // of halves
const uint OUT_PITCH = 9u;
const uint V_AT = KEYS * PITCH;  // values, from where their keys begin
const uint BUFFER = 2u * V_AT;
const uint S_AT = HELD ? 2u * BUFFER : BUFFER;  // a matrix of each subgroup
const uint Q_AT = S_AT + SLOTS * S_PITCH;        // queries that are not in registers
const uint END = HELD ? Q_AT : Q_AT + ROWS * PITCH;
const uint STAGED = SLOTS * OUT_PITCH;  // at last, 32 columns of the sums

shared uvec4 tiles[END > STAGED ? END : STAGED];
shared float tops[SLOTS], totals[SLOTS];

const float LOG2E = 1.44269504088896341, LN2 = 0.69314718055994531;
const float SLACK = 4.0;  // weights are up to 16

// Of this group.
uint batch, kv, row0, keys;

#define EACH_UNIT [[unroll]] for (uint p = 0u; p < TURNS; p++) \
    if (KEYS * UNITS % THREADS == 0u || id + p * THREADS < KEYS * UNITS)
#define EACH_Q [[unroll]] for (uint t = 0u, i = LANE; t < Q_TURNS; t++, i += WARP)
#define EACH(MATRIX) [[unroll]] for (int e = 0; e < MATRIX.length(); e++)

#define EIGHT_OF(NAME, ALIGNED) \
    uvec4 NAME##_eight(uint i, uint n) { \
        uvec4 packed = uvec4(0u); \
        if (ALIGNED && WIDTH % 8u == 0u) { \
            if (n > 7u) packed = NAME##_word4[i >> 3]; \
        } else if (ALIGNED && n > 7u) { \
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

// A unit of a query, turned around where the scale is negative: then the largest products are the largest scores.
uvec4 fetch_q(uint row, uint unit) {
    bool there = row < push.tokens * push.grouped;
    uint at = there ? query_at(batch, kv, row) + unit * 8u : push.q_first;
    return q_eight(at, left(unit, there)) ^ (push.scale < 0.0 ? 0x80008000u : 0u);
}

uint half_pair(vec2 v) {
#if BFLOAT
    return f32_pair_to_bf16_word(v);
#else
    return packHalf2x16(v);
#endif
}

// Of a subgroup: where its matrix begins in shared memory, which row of matrices this invocation has and which units of it.
uint own_at, own_row, own_unit;

// Makes all of a row of the subgroup's matrix one number.
void fill_row(float value) {
    [[unroll]] for (uint i = 0u; i < SHARE; i++) {
        tiles[own_at + own_row * S_PITCH + own_unit + i] = uvec4(floatBitsToUint(value));
    }
}

// Of a row of the subgroup's matrix of scores what is in there after the mask, in powers of two; `key` is the first one.
void mask_row(uint row, uint key, uint end, float by) {
    uint seen = min(end, seen_by(row, keys)), at = own_at + own_row * S_PITCH + own_unit;
    key += own_unit * 4u;
    [[dont_unroll]] for (uint i = 0u; i < SHARE * 4u; i++) {
        float s = UNSEEN;
        if (sees(row, keys, key + i, seen)) {
            float product = uintBitsToFloat(tiles[at + i / 4u][i % 4u]) * by;
            float more = m_at(mask_at(batch, kv, row, key + i));
            s = fma(more, LOG2E, product);
            if (s < LOWEST && more >= LOWEST && product >= LOWEST) s = LOWEST;  // only an infinity hides a key
        }
        tiles[at + i / 4u][i % 4u] = floatBitsToUint(s);
    }
}

// Makes a row of the subgroup's matrix a number of keys, less the number of the column.
void limit_row(int more) {
    more -= int(own_unit * 4u);
    [[unroll]] for (uint i = 0u; i < SHARE; i++) {
        vec4 limits = vec4(more - int(i * 4u)) - vec4(0.0, 1.0, 2.0, 3.0);
        tiles[own_at + own_row * S_PITCH + own_unit + i] = floatBitsToUint(limits);
    }
}

// Raises the score that a query's weights are relative to, where the row of the subgroup's matrix has a larger one, and
// returns what its sums are to be multiplied by.
float raise(uint own, float by) {
    float high = LOWEST;
    [[unroll]] for (uint i = 0u; i < SHARE; i++) {
        vec4 s = uintBitsToFloat(tiles[own_at + own_row * S_PITCH + own_unit + i]);
        high = max(high, max(max(s.x, s.y), max(s.z, s.w)) * by);
    }
    [[unroll]] for (uint b = 1u; b < SHARERS; b *= 2u) high = max(high, NEIGHBOUR(high, b));
    float before = tops[own], now = max(before, high);
    MEET;
    if (own_unit == 0u) tops[own] = now;
    MEET;
    return exp2(before - now);
}

float sum_row() {
    float all = 0.0;
    [[unroll]] for (uint i = 0u; i < SHARE; i++) {
        vec4 four = uintBitsToFloat(tiles[own_at + own_row * S_PITCH + own_unit + i]);
        all += (four.x + four.y) + (four.z + four.w);
    }
    [[unroll]] for (uint b = 1u; b < SHARERS; b *= 2u) all += NEIGHBOUR(all, b);
    return all;
}

#ifndef CONVERTS
// Makes the subgroup's matrix of floats one of halves.
void halve() {
    uvec4 packed[(SHARE + 1u) / 2u];
    [[unroll]] for (uint i = 0u; i < SHARE; i += 2u) {
        uint at = own_at + own_row * S_PITCH + own_unit + i;
        uint next = SHARE > 1u ? at + 1u : at | 1u;  // who has a pair's second unit alone has none, and stores nothing
        vec4 one = uintBitsToFloat(tiles[at]), two = uintBitsToFloat(tiles[next]);
        packed[i / 2u] = uvec4(half_pair(one.xy), half_pair(one.zw), half_pair(two.xy), half_pair(two.zw));
    }
    MEET;
    [[unroll]] for (uint i = 0u; i < SHARE; i += 2u) {
        if (own_unit % 2u == 0u) tiles[own_at + own_row * P_PITCH + (own_unit + i) / 2u] = packed[i / 2u];
    }
    MEET;
}
#endif

// Stores up to 32 columns of a subgroup's rows, from the d-th up to the `beyond`-th, whose sums lie in shared memory.
void store_columns(uint first, uint row0, uint split, uint d, uint beyond) {
    [[dont_unroll]] for (uint i = LANE; i < FM * 8u; i += WARP) {
        uint own = first + i / 8u, row = row0 + i / 8u, at = d + i % 8u * 4u;
        if (PARTS > 1u) {
            if (at >= beyond) continue;
        }
        vec4 sum = uintBitsToFloat(tiles[own * OUT_PITCH + i % 8u]);
        if (row < push.tokens * push.grouped) {
            if (SPLIT) {
                uint place = row_number(batch, kv, row) * push.splits + split;
                if (at < CHUNKS * 8u) o_store4(place * CHUNKS * 8u + at, 4u, floatBitsToUint(sum));
            } else if (at < WIDTH) {
                uvec4 packed = o_pack4(floatBitsToUint(quotient(sum, totals[own])));
                o_store4(result_at(batch, kv, row) + at, WIDTH - at, packed);
            }
        }
    }
}

// No loop: drivers do not unroll one around another that stays, and an array of matrices with an index that is not
// constant lies in memory.
#define STORE_COLUMNS(D) \
    if (D < BROAD) { \
        [[unroll]] for (uint i = 0u; i < 2u; i++) { \
            if (D + i < BROAD) STORE(sums[D + i], first * OUT_PITCH + i * 4u, OUT_PITCH); \
        } \
        MEET; \
        store_columns(first, own_row0, split, (column0 + D) * 16u, (column0 + BROAD) * 16u); \
        MEET; \
    }

void main() {
    uint group = group_number();
    uint split = group % push.splits;
    group /= push.splits;
    kv = group % push.kv_heads;
    group /= push.kv_heads;
    batch = group % push.batches;
    uint block = group / push.batches;
    if (block >= push.blocks) {
        return;
    }
    row0 = (CAUSAL ? push.blocks - 1u - block : block) * ROWS;  // those that see the most begin first
    keys = keys_of(batch);
    uint last = push.tokens * push.grouped - 1u;
    uint most_seen = seen_by(min(row0 + ROWS - 1u, last), keys);
    uint least = first_seen(row0, keys);
    uint share = (most_seen - least + push.splits * KEYS - 1u) / (push.splits * KEYS) * KEYS;
    uint begin = min(least + split * share, most_seen), end = min(begin + share, most_seen);
    uint id = gl_LocalInvocationID.x, first = SUBGROUP * FM;
    uint part = SUBGROUP % PARTS, column0 = part * BROAD;  // a matrix
    uint own_row0 = row0 + SUBGROUP / PARTS * FM, q_at = Q_AT + SUBGROUP / PARTS * FM * PITCH;
    own_at = S_AT + SUBGROUP * FM * S_PITCH;
    own_row = LANE / SHARERS;
    own_unit = LANE % SHARERS * SHARE;
    uint own = first + own_row, row = own_row0 + own_row;
    uint all_see = min(end, seen_by(own_row0, keys));  // these keys are seen by all queries of the subgroup
    uint all_from = first_seen(own_row0 + FM - 1u, keys);  // and so are those from here on
    float by = clamp(abs(push.scale) * LOG2E, 1.1754944e-38, -LOWEST);
    float rest = MASKED ? 1.0 : by;  // what scores are multiplied by after the mask

    uvec4 k_next[TURNS], v_next[TURNS], q_next[DEPTH * Q_TURNS];
    if (HELD) {
        EACH_UNIT k_next[p] = fetch_k(id + p * THREADS, begin, end);
        EACH_UNIT v_next[p] = fetch_v(id + p * THREADS, begin, end);
        [[unroll]] for (uint d = 0u; d < DEPTH; d++) {
            EACH_Q q_next[d * Q_TURNS + t] = fetch_q(own_row0 + i / 2u, d * 2u + i % 2u);
        }
    }
    LEFT query[HELD ? DEPTH : 1u];
    SUMS sums[BROAD], top = SUMS(LOWEST), total = NOTHING;
    [[unroll]] for (uint d = 0u; d < DEPTH; d++) {
        if (HELD) {
            EACH_Q if (i < 2u * FM) tiles[own_at + i / 2u * P_PITCH + i % 2u] = q_next[d * Q_TURNS + t];
            MEET;
            LOAD(query[d], own_at, P_PITCH);
            MEET;
        } else if (part == 0u) {
            EACH_Q if (i < 2u * FM) tiles[q_at + i / 2u * PITCH + d * 2u + i % 2u] = fetch_q(own_row0 + i / 2u, d * 2u + i % 2u);
        }
        if (d < BROAD) sums[d] = NOTHING;
    }
    if (own_unit == 0u) tops[own] = LOWEST;
    MEET;
    if (HELD) {
        EACH_UNIT tiles[unit_at(id + p * THREADS)] = k_next[p];
        EACH_UNIT tiles[V_AT + unit_at(id + p * THREADS)] = v_next[p];
        EACH_UNIT k_next[p] = fetch_k(id + p * THREADS, begin + KEYS, end);
        EACH_UNIT v_next[p] = fetch_v(id + p * THREADS, begin + KEYS, end);
    }
    uint now = 0u;
    [[dont_unroll]] for (uint tile = begin; tile < end; tile += KEYS) {
        barrier();
        uint other = HELD ? BUFFER - now : 0u;
        if (HELD) {
            EACH_UNIT tiles[other + unit_at(id + p * THREADS)] = k_next[p];
            EACH_UNIT tiles[other + V_AT + unit_at(id + p * THREADS)] = v_next[p];
            EACH_UNIT k_next[p] = fetch_k(id + p * THREADS, tile + 2u * KEYS, end);
            EACH_UNIT v_next[p] = fetch_v(id + p * THREADS, tile + 2u * KEYS, end);
        } else {
            EACH_UNIT tiles[unit_at(id + p * THREADS)] = fetch_k(id + p * THREADS, tile, end);
            EACH_UNIT tiles[V_AT + unit_at(id + p * THREADS)] = fetch_v(id + p * THREADS, tile, end);
            barrier();
        }

        SUMS scores[ALONG];
        [[unroll]] for (uint n = 0u; n < ALONG; n++) scores[n] = NOTHING;
        [[unroll]] for (uint d = 0u; d < DEPTH; d++) {
            if (!HELD) LOAD(query[0], q_at + d * 2u, PITCH);
            [[unroll]] for (uint n = 0u; n < ALONG; n++) {
                RIGHT key;
                LOAD_TURNED(key, now + n * 16u * PITCH + d * 2u, PITCH);
                ADD_PRODUCT(scores[n], query[HELD ? d : 0u], key);
            }
        }
        if (MASKED) {
            [[unroll]] for (uint n = 0u; n < ALONG; n++) {
                STORE(scores[n], own_at, S_PITCH);
                MEET;
                mask_row(row, tile + n * 16u, end, by);
                MEET;
                LOAD(scores[n], own_at, S_PITCH);
                MEET;
            }
        } else if (tile + KEYS > all_see) {
            SUMS limits;
            limit_row(int(min(end, seen_by(row, keys)) - all_see));
            MEET;
            LOAD(limits, own_at, S_PITCH);
            MEET;
            [[unroll]] for (uint n = 0u; n < ALONG; n++) {
                float key = float(int(tile + n * 16u - all_see));
                EACH(limits) {
                    float s = scores[n][e];
                    scores[n][e] = key < limits[e] ? s : UNSEEN;
                }
            }
        }
        if (WINDOWED && !MASKED && tile < all_from) {
            SUMS limits;
            limit_row(int(first_seen(row, keys)) - int(all_from));
            MEET;
            LOAD(limits, own_at, S_PITCH);
            MEET;
            [[unroll]] for (uint n = 0u; n < ALONG; n++) {
                float key = float(int(tile + n * 16u) - int(all_from));
                EACH(limits) {
                    float s = scores[n][e];
                    scores[n][e] = key < limits[e] ? UNSEEN : s;
                }
            }
        }
        SUMS most = scores[0];
        [[unroll]] for (uint n = 1u; n < ALONG; n++) {
            EACH(most) most[e] = max(most[e], scores[n][e]);
        }
        float above = LOWEST;
        EACH(most) above = max(above, fma(most[e], rest, -top[e]));
        if (ANY(above > SLACK)) {
            SUMS factors;
            STORE(most, own_at, S_PITCH);
            MEET;
            fill_row(raise(own, rest));
            MEET;
            LOAD(factors, own_at, S_PITCH);
            MEET;
            fill_row(tops[own]);
            MEET;
            LOAD(top, own_at, S_PITCH);
            MEET;
            SCALE(total, factors);
            [[unroll]] for (uint d = 0u; d < BROAD; d++) SCALE(sums[d], factors);
        }
        LEFT weights[ALONG];
        [[unroll]] for (uint n = 0u; n < ALONG; n++) {
            EACH(most) {
                float weight = exp2(fma(scores[n][e], rest, -top[e]));
                total[e] += weight;
#if BFLOAT && defined CONVERTS
                weight = uintBitsToFloat(floatBitsToUint(weight) + 0x8000u & 0xffff0000u);  // to the nearest; NaN is in the total
#endif
                scores[n][e] = weight;
            }
#ifdef CONVERTS
            weights[n] = LEFT(scores[n]);
#else
            STORE(scores[n], own_at, S_PITCH);
            MEET;
            halve();
            LOAD(weights[n], own_at, P_PITCH);
            MEET;
#endif
        }
        [[unroll]] for (uint n = 0u; n < ALONG; n++) {
            [[unroll]] for (uint d = 0u; d < BROAD; d++) {
                RIGHT value;
                LOAD(value, now + V_AT + n * 16u * PITCH + (column0 + d) * 2u, PITCH);
                ADD_PRODUCT(sums[d], weights[n], value);
            }
        }
        now = other;
    }

    barrier();
    STORE(total, own_at, S_PITCH);
    MEET;
    float all = sum_row();
    if (own_unit == 0u) totals[own] = all;
    if (SPLIT && own_unit == 0u && part == 0u && row <= last) {
        uint place = row_number(batch, kv, row) * push.splits + split;
        uint rows = push.batches * push.kv_heads * push.grouped * push.tokens;
        vec4 about = vec4(tops[own] * LN2, all, 0.0, 0.0);
        o_store4(rows * push.splits * CHUNKS * 8u + place * 2u, 2u, floatBitsToUint(about));
    }
    barrier();
    STORE_COLUMNS(0u) STORE_COLUMNS(2u) STORE_COLUMNS(4u) STORE_COLUMNS(6u)
    STORE_COLUMNS(8u) STORE_COLUMNS(10u) STORE_COLUMNS(12u) STORE_COLUMNS(14u)
}

#endif
