// Attention of up to ROWS queries that share a head of keys and values, over all its keys or one part of them, where
// subgroups are known to be WARP neighbours: each takes keys of its own, and they meet at the end alone.
//
// LANES invocations have eight elements each of a key, a value and all the queries; a subgroup takes KEYS keys at a time, all
// of whose loads are in flight together. A key and a query make one of PASSES * ROWS products of each invocation: these are
// added up over the lanes while they are dealt out, so that each lane ends with one score and makes one weight.
// variants: rows1: LOG_ROWS=0 LOG_PASSES=3 | rows4: LOG_ROWS=2 LOG_PASSES=2 | rows8: LOG_ROWS=3 LOG_PASSES=1
// variants: f32: K_TYPE=F32 | f16: K_TYPE=F16 | bf16: K_TYPE=BF16
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "common/attention.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 13) const uint LANES = 16;  // that have a row, 2^LOG_DEALT or more
layout(constant_id = 14) const uint WARP = 32;

#define ROWS (1 << LOG_ROWS)
#define PASSES (1 << LOG_PASSES)
#define LOG_DEALT (LOG_ROWS + LOG_PASSES)
#define DEALT (1 << LOG_DEALT)

const uint WARPS = THREADS / WARP;
const uint ABREAST = WARP / LANES;    // keys that are loaded side by side
const uint KEYS = ABREAST * PASSES;   // of a turn
#define WHOLE (WIDE && WIDTH % 8u == 0u)

shared vec4 parts[WARPS * ROWS * CHUNKS * 2u];
shared float tops[WARPS * ROWS], sums[WARPS * ROWS];
shared uint lost[ROWS];

// Eight elements of a row, from the i-th of the binding on, as they are stored.
#define CHUNK_OF(NAME) \
    void NAME##_chunk(uint i, uint n, out uvec4 low, out uvec4 high) { \
        high = uvec4(0u); \
        if (WHOLE) { \
            low = NAME##_word4[NAME##_half ? i >> 3 : i >> 2]; \
            if (!NAME##_half) high = NAME##_word4[(i >> 2) + 1u]; \
        } else if (NAME##_half) { \
            low.xy = NAME##_packed4(i, n).xy; \
            low.zw = NAME##_packed4(i + 4u, n - min(n, 4u)).xy; \
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

CHUNK_OF(k)
CHUNK_OF(v)

// Of this group, and of this invocation.
uint batch, kv, row0, keys, parts_in_use;
vec4 q_first_half[ROWS], q_second_half[ROWS];
vec4 low_sum[ROWS], high_sum[ROWS];
float products[DEALT];

#include "common/attention_parts.glsl"

// The lane, among those of a row, that has what became of product n.
uint dealt_to(uint n) {
    uint lane = 0u;
    [[unroll]] for (uint s = 0u; s < LOG_DEALT; s++) lane |= ((n >> (uint(LOG_DEALT) - 1u - s)) & 1u) << s;
    return lane;
}

// Adds products up over the lanes of a row; each lane ends with the sum whose number is dealt to it, in products[0].
void deal() {
    uint lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint s = 0u; s < LOG_DEALT; s++) {
        uint count = uint(DEALT) >> (s + 1u);
        bool upper = ((lane >> s) & 1u) != 0u;
        [[unroll]] for (uint i = 0u; i < DEALT / 2; i++) {
            if (i < count) {
                float given = upper ? products[i] : products[i + count];
                float kept = upper ? products[i + count] : products[i];
                products[i] = kept + subgroupShuffleXor(given, 1u << s);
            }
        }
    }
    [[unroll]] for (uint s = LOG_DEALT; s < 5u; s++) {
        if ((1u << s) < LANES) products[0] += subgroupShuffleXor(products[0], 1u << s);
    }
}

// Whether lanes that differ in a bit have scores of one query: those of its other keys, or copies.
bool is_across(uint s) {
    return (s < LOG_PASSES || s >= LOG_DEALT) && (1u << s) < WARP;
}

// Whether they are not copies.
bool is_apart(uint s) {
    return s < LOG_PASSES || ((1u << s) >= LANES && (1u << s) < WARP);
}

void store(uint split) {
    for (uint i = gl_LocalInvocationID.x; i < ROWS * CHUNKS * 2u; i += THREADS) {
        uint r = i / (CHUNKS * 2u), d = i % (CHUNKS * 2u) * 4u, row = row0 + r;
        float highest = tops[r];
        for (uint w = 1u; w < WARPS; w++) highest = max(highest, tops[w * ROWS + r]);
        float all = 0.0;
        vec4 made = vec4(0.0);
        for (uint w = 0u; w < WARPS; w++) {
            float total = sums[w * ROWS + r], factor = total > 0.0 ? exp(tops[w * ROWS + r] - highest) : 0.0;
            all += total * factor;
            made += factor > 0.0 ? parts[w * ROWS * CHUNKS * 2u + i] * factor : vec4(0.0);
        }
        all = lost[r] != 0u ? NOT : all;
        if (row < push.tokens * push.grouped) {
            if (parts_in_use > 1u) {
                store_part(row, split, d, made, highest, all);
            } else if (d < WIDTH) {
                uvec4 packed = o_pack4(floatBitsToUint(quotient(made, all)));
                o_store4(result_at(batch, kv, row) + d, WIDTH - d, packed);
            }
        }
    }
}

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
    uint rows = push.tokens * push.grouped;
    uint most = seen_by(min(row0 + uint(ROWS), rows) - 1u, keys), turn = WARPS * KEYS;
    uint least = first_seen(row0, keys);
    uint share = (most - least + push.splits * turn - 1u) / (push.splits * turn) * turn;
    uint begin = min(least + split * share, most), end = min(begin + share, most);
    parts_in_use = parts_of(most - least, share);
    if (split >= parts_in_use) {
        return;
    }

    uint lane = gl_SubgroupInvocationID, warp = gl_SubgroupID, c = lane % LANES, abreast = lane / LANES;
    bool has = c < CHUNKS;
    uint d = has ? c * 8u : 0u, n = WIDTH - d;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        bool there = has && row0 + r < rows;
        uint at = query_at(batch, kv, min(row0 + r, rows - 1u)) + d;
        q_first_half[r] = q_at4(at, there ? n : 0u) * push.scale;
        q_second_half[r] = q_at4(at + 4u, there ? n - min(n, 4u) : 0u) * push.scale;
        low_sum[r] = high_sum[r] = vec4(0.0);
    }
    if (gl_LocalInvocationID.x < ROWS) {
        lost[gl_LocalInvocationID.x] = 0u;
    }
    barrier();

    // The score that this lane makes of a turn's.
    uint mine = 0u;
    [[unroll]] for (uint i = 0u; i < DEALT; i++) mine = dealt_to(i) == lane % uint(DEALT) ? i : mine;
    uint my_row = row0 + mine % uint(ROWS), my_key = mine / uint(ROWS) * ABREAST + abreast;
    uint seen = min(end, seen_by(my_row, keys));
    float top = LOWEST, total = 0.0;
    bool spoilt = false;

    uint k_base = push.k_first + batch * push.k_batch + kv * push.k_head + d;
    uint v_base = push.v_first + batch * push.v_batch + kv * push.v_head + d;
    for (uint at = begin + warp * KEYS; at < end; at += turn) {
        uvec4 k_low_[PASSES], k_high_[PASSES], v_low_[PASSES], v_high_[PASSES];
        [[unroll]] for (uint p = 0u; p < PASSES; p++) {  // past the end: the last key again, which nobody sees
            uint key = min(at + p * ABREAST + abreast, end - 1u);
            k_chunk(k_base + key * push.k_row, n, k_low_[p], k_high_[p]);
        }
        [[unroll]] for (uint p = 0u; p < PASSES; p++) {
            uint key = min(at + p * ABREAST + abreast, end - 1u);
            v_chunk(v_base + key * push.v_row, n, v_low_[p], v_high_[p]);
        }
        [[unroll]] for (uint p = 0u; p < PASSES; p++) {
            vec4 one = k_low(k_low_[p]), two = k_high(k_low_[p], k_high_[p]);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float sum = 0.0;
                [[unroll]] for (uint e = 0u; e < 4u; e++) sum += q_first_half[r][e] * one[e];
                [[unroll]] for (uint e = 0u; e < 4u; e++) sum += q_second_half[r][e] * two[e];
                products[p * ROWS + r] = sum;
            }
        }
        deal();
        float s = products[0];
        uint key = at + my_key;
        bool there = sees(my_row, keys, key, seen);
        if (MASKED && there) {
            s += m_at(mask_at(batch, kv, my_row, key));
        }
        s = there ? s : UNSEEN;
        spoilt = spoilt || spoils(s);
        if (subgroupAny(s > top)) {
            float higher = max(s, top);
            [[unroll]] for (uint b = 0u; b < 5u; b++) {
                if (is_across(b)) higher = max(higher, subgroupShuffleXor(higher, 1u << b));
            }
            float factor = exp(top - higher);
            top = higher;
            total *= factor;
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float f = subgroupShuffle(factor, dealt_to(r));
                low_sum[r] *= f;
                high_sum[r] *= f;
            }
        }
        float weight = s >= LOWEST ? exp(s - top) : 0.0;
        total += weight;
        uint first = lane - c;
        [[unroll]] for (uint p = 0u; p < PASSES; p++) {
            vec4 one = v_low(v_low_[p]), two = v_high(v_low_[p], v_high_[p]);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float w = subgroupShuffle(weight, first + dealt_to(p * ROWS + r));
                low_sum[r] += w * one;
                high_sum[r] += w * two;
            }
        }
    }

    [[unroll]] for (uint b = 0u; b < 5u; b++) {
        if (is_apart(b)) total += subgroupShuffleXor(total, 1u << b);
        if ((1u << b) >= LANES && (1u << b) < WARP) {
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                low_sum[r] += subgroupShuffleXor(low_sum[r], 1u << b);
                high_sum[r] += subgroupShuffleXor(high_sum[r], 1u << b);
            }
        }
    }
    if (spoilt) {
        lost[mine % uint(ROWS)] = 1u;  // whoever does writes the same
    }
    tops[warp * ROWS + mine % uint(ROWS)] = top;
    sums[warp * ROWS + mine % uint(ROWS)] = total;
    if (lane < CHUNKS) {
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            parts[((warp * ROWS + r) * CHUNKS + c) * 2u] = low_sum[r];
            parts[((warp * ROWS + r) * CHUNKS + c) * 2u + 1u] = high_sum[r];
        }
    }
    barrier();
    store(split);
    if (parts_in_use > 1u) {
        bring_together(block, parts_in_use);
    }
}
