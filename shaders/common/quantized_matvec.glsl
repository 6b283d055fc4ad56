// Products of up to 8 rows of a by quantised weights (N, K).
//
// SPAN invocations stride over K together for COLUMNS columns, and TURNS chunks of each are in flight before any is used.
// What PASSES such steps need of the rows of a lies in shared memory, as floats, for all the group's columns: it has
// several times as many bytes as the chunks. It lies so that neighbours, which read chunks apart, do so from different
// banks.
//
// For one row the whole numbers of a chunk are multiplied first and the sum is scaled; for more, the weights are made.
// The caller defines KIND, MOST_ROWS, MOST_TURNS and SUBGROUPS (whether subgroups add up, in their order).
#ifndef VKPAR_QUANTIZED_MATVEC_GLSL
#define VKPAR_QUANTIZED_MATVEC_GLSL

#if SUBGROUPS
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

#define FORMS
#define EPILOGUE
#define HOLDS_RESIDUAL
#define SCALES
#define SCALES_BINDING 5
#include "matmul.glsl"
#include "quantized.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 7) const uint ROWS = 1;  // of a, 1 to MOST_ROWS
layout(constant_id = 8) const uint SPAN = 32;
layout(constant_id = 9) const uint COLUMNS = 4;  // 1 to 4
layout(constant_id = 10) const uint TURNS = 2;   // 1 to MOST_TURNS
layout(constant_id = 18) const uint PASSES = 1;

const uint MOST_COLUMNS = 4u;
const uint THREADS = 256u;
const uint WIDTH = THREADS / SPAN * COLUMNS;  // a multiple of 4
const uint AHEAD = SPAN * TURNS;              // chunks of a column that are loaded together
const uint QUADS = AHEAD * PASSES * FOURS;    // of a row of a that lie in shared memory: 256 or more
const uint MOST_HELD = 8u;                    // of all rows, over THREADS

shared vec4 held[ROWS * QUADS];  // and then the sums of all invocations
#if MOST_ROWS == 1 && KIND == Q4_K
shared float chunk_sums[AHEAD * PASSES];  // of a
#endif

#define EACH_ROW [[unroll]] for (uint r = 0u; r < MOST_ROWS; r++) if (r < ROWS)
#define EACH_COLUMN [[unroll]] for (uint c = 0u; c < MOST_COLUMNS; c++) if (c < COLUMNS)
#define EACH_TURN [[unroll]] for (uint j = 0u; j < MOST_TURNS; j++) if (j < TURNS)

// Of this invocation.
uint chunk_at[MOST_COLUMNS];  // its columns' first chunks
uvec4 packed[MOST_TURNS * MOST_COLUMNS];
SCALE_BITS scales[MOST_TURNS * MOST_COLUMNS];
float sums[MOST_ROWS * MOST_COLUMNS];

// Where four neighbours of a lie.
uint place(uint row, uint quad) {
    return row * QUADS + (quad ^ ((quad >> 3) & 7u));
}

// Loads chunks from number `first` of their rows on; nothing where there is none. Branches hold loads and nothing that
// waits for them.
void load(uint first) {
    EACH_TURN {
        uint chunk = first + j * SPAN + gl_LocalInvocationID.x % SPAN;
        EACH_COLUMN {
            packed[j * MOST_COLUMNS + c] = uvec4(0u);
            scales[j * MOST_COLUMNS + c] = SCALE_BITS(0u);
            if (chunk < push.b_row) {
                packed[j * MOST_COLUMNS + c] = b_word4[push.b_first + chunk_at[c] + chunk];
                scales[j * MOST_COLUMNS + c] = scale_bits(push.scales_first, chunk_at[c] + chunk);
            }
        }
    }
}

// Brings the elements of a that belong to chunks from `first` on to shared memory.
void hold(uint first) {
    uint id = gl_LocalInvocationID.x, k0 = first * CHUNK;
    uvec4 found[MOST_HELD];
    [[unroll]] for (uint t = 0u; t < MOST_HELD; t++) {
        if (t * THREADS < ROWS * QUADS) {
            uint i = t * THREADS + id, row = i / QUADS, k = k0 + i % QUADS * 4u;
            found[t] = a_packed4(push.a_first + row * push.a_row + k, row < ROWS && k < push.k ? 4u : 0u);
        }
    }
    barrier();
    [[unroll]] for (uint t = 0u; t < MOST_HELD; t++) {
        uint i = t * THREADS + id;
        if (t * THREADS < ROWS * QUADS && i < ROWS * QUADS) held[place(i / QUADS, i % QUADS)] = a_unpack4(found[t]);
    }
    barrier();
#if MOST_ROWS == 1 && KIND == Q4_K
    for (uint i = id; i < AHEAD * PASSES; i += THREADS) {
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint q = 0u; q < FOURS; q++) sum += held[place(0u, i * FOURS + q)];
        chunk_sums[i] = (sum.x + sum.y) + (sum.z + sum.w);
    }
    barrier();
#endif
}

// Adds the products of the chunks that were loaded from number `first` on, `at` chunks behind where what is held begins.
void multiply(uint first, uint at) {
    uint lane = gl_LocalInvocationID.x % SPAN;
    EACH_TURN {
        uint apart = j * SPAN + lane, quad0 = (at + apart) * FOURS;
        vec2 scale[MOST_COLUMNS];
        EACH_COLUMN {
            uint chunk = chunk_at[c] + first + apart;
            scale[c] = scale_of(scales[j * MOST_COLUMNS + c], push.scales_first, chunk);
        }
#if MOST_ROWS == 1
        float part[MOST_COLUMNS];
        EACH_COLUMN part[c] = 0.0;
        [[unroll]] for (uint q = 0u; q < FOURS; q++) {
            vec4 x = held[place(0u, quad0 + q)];
            EACH_COLUMN {
                vec4 y = whole_of(packed[j * MOST_COLUMNS + c], q);
                // Not dot(), whose result costs another addition.
                [[unroll]] for (uint e = 0u; e < 4u; e++) part[c] += x[e] * y[e];
            }
        }
        EACH_COLUMN {
            sums[c] += scale[c].x * part[c];
#if KIND == Q4_K
            sums[c] -= scale[c].y * chunk_sums[at + apart];
#endif
        }
#else
        [[unroll]] for (uint q = 0u; q < FOURS; q++) {
            vec4 y[MOST_COLUMNS];
            EACH_COLUMN y[c] = scaled(whole_of(packed[j * MOST_COLUMNS + c], q), scale[c]);
            EACH_ROW {
                vec4 x = held[place(r, quad0 + q)];
                EACH_COLUMN {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) sums[r * MOST_COLUMNS + c] += x[e] * y[c][e];
                }
            }
        }
#endif
    }
}

// The sums of this invocation's columns; of columns that there are not, zero.
vec4 sums_of(uint r) {
    vec4 sum = vec4(0.0);
    EACH_COLUMN sum[c] = sums[r * MOST_COLUMNS + c];
    return sum;
}

// Adds up over K; what an output is, stands in the first place of each row's and team's after that.
#if SUBGROUPS
const uint PLACES = THREADS / 4u;  // of a row: subgroups have four invocations or more

void add_up() {
    uint id = gl_LocalInvocationID.x, count = SPAN / gl_SubgroupSize;
    barrier();
    EACH_ROW {
        vec4 sum = subgroupAdd(sums_of(r));
        if (subgroupElect()) held[r * PLACES + id / gl_SubgroupSize] = sum;
    }
    barrier();
}

float summed(uint r, uint column) {
    uint count = SPAN / gl_SubgroupSize, first = r * PLACES + column / COLUMNS * count;
    float sum = held[first][column % COLUMNS];
    for (uint i = 1u; i < count; i++) sum += held[first + i][column % COLUMNS];
    return sum;
}
#else
void add_up() {
    uint id = gl_LocalInvocationID.x;
    barrier();
    EACH_ROW held[r * THREADS + id] = sums_of(r);
    for (uint count = SPAN; count > 1u; count = max(count / 8u, 1u)) {
        uint next = max(count / 8u, 1u);
        barrier();
        if (id % SPAN < next) {
            EACH_ROW {
                uint first = r * THREADS + id;
                vec4 sum = held[first];
                [[unroll]] for (uint i = 1u; i < 8u; i++) if (i * next < count) sum += held[first + i * next];
                held[first] = sum;
            }
        }
    }
    barrier();
}

float summed(uint r, uint column) {
    return held[r * THREADS + column / COLUMNS * SPAN][column % COLUMNS];
}
#endif

// Makes and stores the columns of this group.
void quantized_matvec() {
    uint column0 = group_number() * WIDTH;
    if (column0 >= push.n) {
        return;
    }
    uint id = gl_LocalInvocationID.x, row = id / (WIDTH / 4u), at = id % (WIDTH / 4u) * 4u;
    bool stores = row < ROWS;
    if (stores) hold_residual(row, column0 + at);
    // Past the end: the last column again, which is not stored.
    EACH_COLUMN chunk_at[c] = min(column0 + id / SPAN * COLUMNS + c, push.n - 1u) * push.b_row;
    [[unroll]] for (uint i = 0u; i < MOST_ROWS * MOST_COLUMNS; i++) sums[i] = 0.0;
    for (uint pass = 0u, first = 0u; first < push.b_row; pass = (pass + 1u) % PASSES, first += AHEAD) {
        load(first);
        if (pass == 0u) hold(first);
        multiply(first, pass * AHEAD);
    }
    add_up();
    if (stores) {
        store_row4(row, column0 + at, vec4(summed(row, at), summed(row, at + 1u), summed(row, at + 2u), summed(row, at + 3u)));
    }
}

#endif
