// The body of norms: the caller defines what norm.comp's variants do, and includes elements.glsl, grid.glsl and rows.glsl.
// Where GATHERS is defined (RMS, RESIDUAL and KEPT, too, all in float32), x is a sum over devices: see gather.glsl, which
// the caller includes as well.
#ifndef VKPAR_NORM_GLSL
#define VKPAR_NORM_GLSL

layout(constant_id = 6) const bool WEIGHTED = false;
layout(constant_id = 7) const uint W_TYPE = 0;
layout(constant_id = 8) const bool W_WIDE = false;
layout(constant_id = 9) const bool BIASED = false;  // of LAYER; below it is what RESIDUAL has
layout(constant_id = 10) const uint B_TYPE = 0;
layout(constant_id = 11) const bool B_WIDE = false;
layout(constant_id = 12) const uint H_TYPE = 0;
layout(constant_id = 13) const bool H_FULL = false;  // h is stored as float32, after it was rounded to its type
layout(constant_id = 14) const bool H_WIDE = false;
#ifdef LAYER
layout(constant_id = 15) const uint MOMENT = 0u;  // 1: rows' variances are written alone, 2: their roots; value divides
#endif

const uint H_STORED = H_FULL ? F32 : H_TYPE;

#ifndef GATHERS
ELEMENTS_IN(x, 0, X_TYPE, X_WIDE)
#endif
ELEMENTS_IN(w, 1, W_TYPE, W_WIDE)
#ifdef RMS
#ifdef RESIDUAL
ELEMENTS_IN(b, 2, B_TYPE, B_WIDE)
ELEMENTS_OUT(y, 3, Y_TYPE, Y_WIDE)
ELEMENTS_OUT(h, 4, H_STORED, H_WIDE)
#else
ELEMENTS_OUT(y, 2, Y_TYPE, Y_WIDE)
#endif
#else
ELEMENTS_IN(b, 2, B_TYPE, B_WIDE)
ELEMENTS_OUT(y, 3, Y_TYPE, Y_WIDE)
#endif

#ifdef RESIDUAL
uint rounded(uint bits) {
    if (H_TYPE == F16) {
        bits = f16_bits_to_f32_bits(f32_bits_to_f16_bits(bits));
    } else if (H_TYPE == BF16) {
        bits = bf16_bits_to_f32_bits(f32_bits_to_bf16_bits(bits));
    }
    return bits;
}
#endif

#ifdef GATHERS
// Keeps the fours of this row: sums that are gathered, plus the residual.
void keep_gathered() {
    uint row_at = row() * push.extent;
    [[unroll]] for (uint i = 0u; i < KEEP; i += TOGETHER) {
        uint first = (i * push.lanes + lane()) * 4u;
        vec4 values[TOGETHER];
        EACH_TOGETHER {
            uint k = first + u * push.lanes * 4u;
            values[u] = b_at4(push.b_first + row_at + k, left(k));
        }
        gather(row_at, first);
        EACH_TOGETHER {
            if (i + u < KEEP) kept[i + u] = gathered[u] + values[u];
        }
    }
}
#else
// Four elements of x that are normalized, and of the residual, both packed; zero from the n-th on.
struct Loaded {
    uvec4 x;
    uvec4 b;
};

Loaded load(uint k, uint n) {
    uint at = row() * push.extent + k;
    Loaded loaded = Loaded(x_packed4(push.x_first + at, n), uvec4(0u));
#ifdef RESIDUAL
    loaded.b = b_packed4(push.b_first + at, n);
#endif
    return loaded;
}

vec4 value_of(Loaded loaded) {
    vec4 v = x_unpack4(loaded.x);
#ifdef RESIDUAL
    uvec4 bits = floatBitsToUint(v + b_unpack4(loaded.b));
    v = uintBitsToFloat(uvec4(rounded(bits.x), rounded(bits.y), rounded(bits.z), rounded(bits.w)));
#endif
    return v;
}
#endif

// What is taken off each element, and what the rest is multiplied by.
vec2 statistics() {
    float mean = 0.0;
    vec4 sum = vec4(0.0);
#ifdef GATHERS
    keep_gathered();
#define VALUES kept[j]
#elif defined(KEPT)
    Loaded loaded[KEEP];
    EACH_FOUR {
        loaded[j] = load(k, n);
    }
    EACH_FOUR {
        kept[j] = value_of(loaded[j]);
        sum += kept[j];
    }
#define VALUES kept[j]
#else
#define VALUES value_of(load(k, n))
#ifdef LAYER
    EACH_FOUR {
        sum += VALUES;
    }
#endif
#endif
#ifdef LAYER
    mean = sum_of_row(across(sum)) / float(push.extent);
#endif
    sum = vec4(0.0);
    EACH_FOUR {
        vec4 off = mix(vec4(0.0), VALUES - mean, first_of(n));
        sum += off * off;
    }
    float squares = sum_of_row(across(sum));
#ifdef LAYER
    if (MOMENT != 0u) {
        float variance = squares / push.value;
        return vec2(mean, MOMENT == 2u ? sqrt(variance) : variance);
    }
#endif
    return vec2(mean, 1.0 / sqrt(squares / float(push.extent) + push.value));
}

#ifdef KEPT
uvec4 scales[KEEP];
uvec4 offsets[KEEP];
#define SCALE w_unpack4(scales[j])
#define OFFSET b_unpack4(offsets[j])

// Reads the weights of all fours before the first result is stored, which may not be known to lie elsewhere.
void load_weights() {
    EACH_FOUR {
        if (WEIGHTED) scales[j] = w_packed4(push.w_first + k, n);
#ifdef LAYER
        if (BIASED) offsets[j] = b_packed4(push.b_first + k, n);
#endif
    }
}
#else
#define SCALE w_at4(push.w_first + k, n)
#define OFFSET b_at4(push.b_first + k, n)
void load_weights() {}
#endif

void main() {
#ifdef GATHERS
    if (push.awaits != 0u) wait_in_group(push.awaits);
#endif
    vec2 found = statistics();
#ifdef LAYER
    if (MOMENT != 0u) {
        if (lane() == 0u && row() < push.rows) y_word[push.y_first + row()] = floatBitsToUint(found.y);
        return;
    }
#endif
    load_weights();
    EACH_FOUR {
        uint at = row() * push.extent + k;
        vec4 v = VALUES;
#ifdef RESIDUAL
        h_store4(push.h_first + at, n, h_pack4(floatBitsToUint(v)));
#endif
        v = (v - found.x) * found.y;
        if (WEIGHTED) {
            v *= SCALE;
        }
#ifdef LAYER
        if (BIASED) {
            v += OFFSET;
        }
#endif
        y_store4(push.y_first + at, n, y_pack4(floatBitsToUint(v)));
    }
}

#endif
