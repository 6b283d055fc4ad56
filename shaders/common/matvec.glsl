// The body of matrix products for few rows of a: the caller defines TRANSPOSED, and `matvec` makes this group's columns.
//
// Such a product is bound by reading b once: a work group makes 32 columns of (K, N), its 32 slices of 8 invocations
// striding over K, or 8 columns of a transposed b, 32 invocations striding over each. Loops have constant bounds and
// guards inside, so that the compiler here unrolls them: drivers keep arrays of sums in memory when they have to find out
// by themselves.
#ifndef VKPAR_MATVEC_GLSL
#define VKPAR_MATVEC_GLSL

#include "matmul.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 7) const uint ROWS = 4;  // of a, 1 to 4

#define EACH_ROW [[unroll]] for (uint r = 0u; r < 4u; r++) if (r < ROWS)

float a_of(uint row, uint k) {
    uint at = row * push.a_row + k;
    if (TRANSPOSE_A) {
        at = k * push.a_row + row;
    }
    return a_at(a_origin() + at);
}

vec4 a4_of(uint row, uint k, uint n) {
    vec4 x;
    if (TRANSPOSE_A) {
        x = vec4(0.0);
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            if (j < n) x[j] = a_of(row, k + j);
        }
    } else {
        x = a_at4(a_origin() + row * push.a_row + k, n);
    }
    return x;
}

#if TRANSPOSED
const uint WIDTH = 8u;

shared vec4 parts[256];  // one row of a in each component

vec4 products(uint k, uint n, uvec4 packed) {
    vec4 y = b_unpack4(packed);
    vec4 sums = vec4(0.0);
    EACH_ROW {
        sums[r] = dot(a4_of(r, k, n), y);
    }
    return sums;
}

void make(uint column0) {
    uint id = gl_LocalInvocationID.x;
    uint lane = id % 32u;
    uint column = column0 + id / 32u;
    vec4 sums = vec4(0.0);
    if (column < push.n) {
        uint b_at = b_origin() + column * push.b_row;
        uint k = k_begin() + lane * 4u;
        for (; k + 387u < k_end(); k += 512u) {
            uvec4 packed[4];
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                packed[j] = b_packed4(b_at + k + j * 128u, 4u);
            }
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                sums += products(k + j * 128u, 4u, packed[j]);
            }
        }
        for (; k < k_end(); k += 128u) {
            sums += products(k, k_end() - k, b_packed4(b_at + k, k_end() - k));
        }
    }
    parts[id] = sums;
    for (uint half_way = 16u; half_way >= 1u; half_way >>= 1) {
        barrier();
        if (lane < half_way) {
            parts[id] += parts[id + half_way];
        }
    }
    barrier();
    if (id < 2u * ROWS) {
        uint r = id / 2u;
        uint first = id % 2u * 4u * 32u;
        vec4 sum = vec4(parts[first][r], parts[first + 32u][r], parts[first + 64u][r], parts[first + 96u][r]);
        store_row4(r, column0 + first / 32u, sum);
    }
}
#else
const uint WIDTH = 32u;

shared vec4 parts[ROWS * 256u];

void make(uint column0) {
    uint id = gl_LocalInvocationID.x;
    uint column = column0 + id % 8u * 4u;
    // Past the end: the last columns again, or nothing. Either is not stored.
    uint b_at = b_origin() + (b_wide ? min(column, push.n - 4u) : column);
    uint n = b_wide ? 4u : push.n - min(column, push.n);
    vec4 sums[4] = vec4[](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
    uint k = k_begin() + id / 8u;
    for (; k + 96u < k_end(); k += 128u) {
        uvec4 packed[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            packed[j] = b_packed4(b_at + (k + j * 32u) * push.b_row, n);
        }
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            vec4 y = b_unpack4(packed[j]);
            EACH_ROW {
                sums[r] += a_of(r, k + j * 32u) * y;
            }
        }
    }
    for (; k < k_end(); k += 32u) {
        vec4 y = b_at4(b_at + k * push.b_row, n);
        EACH_ROW {
            sums[r] += a_of(r, k) * y;
        }
    }
    EACH_ROW {
        parts[r * 256u + id] = sums[r];
    }
    for (uint half_way = 128u; half_way >= 8u; half_way >>= 1) {
        barrier();
        if (id < half_way) {
            EACH_ROW {
                parts[r * 256u + id] += parts[r * 256u + id + half_way];
            }
        }
    }
    barrier();
    if (id < 8u * ROWS) {
        store_row4(id / 8u, column, parts[id / 8u * 256u + id % 8u]);
    }
}
#endif

// The first of the columns that this group makes.
uint matvec_first() {
    return group_number() * WIDTH;
}

// Makes and stores all that this group makes; groups that fold_groups adds past the end make nothing.
void matvec() {
    uint column0 = matvec_first();
    if (column0 < push.n) {
        make(column0);
    }
}

#endif
