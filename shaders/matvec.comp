// Matrix product for up to 4 rows of a, which is bound by reading b once: a work group makes 32 columns of (K, N), its
// 32 slices of 8 invocations striding over K, or 8 columns of a transposed b, 32 invocations striding over each.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common/matmul.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 7) const uint ROWS = 4;  // of a, 1 to 4

shared vec4 parts[TRANSPOSE_B ? 256u : 256u * ROWS];

void columns_of_rows(uint column0) {
    uint id = gl_LocalInvocationID.x;
    uint column = column0 + id % 8u * 4u;
    uint n = column < push.n ? push.n - column : 0u;
    vec4 sums[4];
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        sums[r] = vec4(0.0);
    }
    uint k = id / 8u;
    for (; k + 96u < push.k; k += 128u) {
        vec4 y[4];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            y[j] = b_at4(push.b_first + (k + j * 32u) * push.b_row + column, n);
        }
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                sums[r] += a_at(push.a_first + r * push.a_row + k + j * 32u) * y[j];
            }
        }
    }
    for (; k < push.k; k += 32u) {
        vec4 y = b_at4(push.b_first + k * push.b_row + column, n);
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            sums[r] += a_at(push.a_first + r * push.a_row + k) * y;
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        parts[r * 256u + id] = sums[r];
    }
    for (uint half_way = 128u; half_way >= 8u; half_way >>= 1) {
        barrier();
        if (id < half_way) {
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                parts[r * 256u + id] += parts[r * 256u + id + half_way];
            }
        }
    }
    if (id < 8u) {
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            store_row4(r, column, parts[r * 256u + id]);
        }
    }
}

void columns_transposed(uint column0) {
    uint id = gl_LocalInvocationID.x;
    uint lane = id % 32u;
    uint column = column0 + id / 32u;
    vec4 sums = vec4(0.0);  // one row of a in each component
    if (column < push.n) {
        for (uint k = lane * 4u; k < push.k; k += 128u) {
            uint n = push.k - k;
            vec4 y = b_at4(push.b_first + column * push.b_row + k, n);
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                uint at = push.a_first + r * push.a_row + k;
                vec4 product = a_at4(at, n) * y;
                sums[r] += (product.x + product.y) + (product.z + product.w);
            }
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
        uint first = id % 2u * 4u;
        vec4 sum;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            sum[j] = parts[(first + j) * 32u][r];
        }
        store_row4(r, column0 + first, sum);
    }
}

void main() {
    uint group = group_number();
    uint width = TRANSPOSE_B ? 8u : 32u;
    if (group >= (push.n + width - 1u) / width) {
        return;
    }
    if (TRANSPOSE_B) {
        columns_transposed(group * width);
    } else {
        columns_of_rows(group * width);
    }
}
