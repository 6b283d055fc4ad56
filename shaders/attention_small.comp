// Attention of one query over its keys, or over one part of them, for CPU drivers: little code, few registers.
//
// A tile of keys at a time: an invocation a key for the scores, then one for four elements of the values' rows.
// variants: f32: K_TYPE=F32 | f16: K_TYPE=F16 | bf16: K_TYPE=BF16
#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/attention.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;  // one for each four elements of a row at least

shared vec4 query[THREADS];
shared float score[THREADS];
shared uint lost;

void main() {
    uint id = gl_LocalInvocationID.x, group = group_number();
    uint split = group % push.splits;
    group /= push.splits;
    uint row = group % push.blocks;
    group /= push.blocks;
    uint kv = group % push.kv_heads, batch = group / push.kv_heads;
    if (batch >= push.batches) {
        return;
    }
    uint keys = keys_of(batch), seen = seen_by(row, keys), first = first_seen(row, keys);
    uint share = (seen - first + push.splits - 1u) / push.splits;
    uint begin = min(first + split * share, seen), end = min(begin + share, seen);
    uint d = id * 4u, n = WIDTH - min(d, WIDTH);
    query[id] = q_at4(query_at(batch, kv, row) + min(d, WIDTH - 1u), n) * push.scale;
    if (id == 0u) {
        lost = 0u;
    }
    uint k_base = push.k_first + batch * push.k_batch + kv * push.k_head;
    uint v_base = push.v_first + batch * push.v_batch + kv * push.v_head + d;
    float top = LOWEST, total = 0.0;
    vec4 sum = vec4(0.0);
    for (uint tile = begin; tile < end; tile += THREADS) {
        barrier();
        uint key = tile + id;
        float s = UNSEEN;
        if (key < end) {
            vec4 products = vec4(0.0);
            uint at = k_base + key * push.k_row;
            for (uint i = 0u; i < WIDTH; i += 4u) {
                products += query[i / 4u] * k_at4(at + i, WIDTH - i);
            }
            s = (products.x + products.y) + (products.z + products.w);
            if (MASKED) {
                s += m_at(mask_at(batch, kv, row, key));
            }
            if (spoils(s)) {
                lost = 1u;  // whoever does writes the same
            }
        }
        score[id] = s;
        barrier();
        uint count = min(THREADS, end - tile);
        float higher = top;
        for (uint j = 0u; j < count; j++) {
            higher = max(higher, score[j]);
        }
        float factor = higher != top ? exp(top - higher) : 1.0;
        top = higher;
        total *= factor;
        sum *= factor;
        for (uint j = 0u; j < count; j++) {
            float weight = score[j] >= LOWEST ? exp(score[j] - top) : 0.0;
            total += weight;
            if (n > 0u) {
                sum += weight * v_at4(v_base + (tile + j) * push.v_row, n);
            }
        }
    }
    barrier();
    float all = lost != 0u ? NOT : total;
    if (SPLIT) {
        uint rows = push.batches * push.kv_heads * push.grouped * push.tokens;
        uint place = row_number(batch, kv, row) * push.splits + split;
        if (d < CHUNKS * 8u) {
            o_store4(place * CHUNKS * 8u + d, 4u, floatBitsToUint(sum));
        }
        if (id == 0u) {
            o_store4(rows * push.splits * CHUNKS * 8u + place * 2u, 2u, floatBitsToUint(vec4(top, all, 0.0, 0.0)));
        }
    } else if (n > 0u) {
        o_store4(result_at(batch, kv, row) + d, n, o_pack4(floatBitsToUint(quotient(sum, all))));
    }
}
