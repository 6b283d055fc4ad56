#version 450
#extension GL_GOOGLE_include_directive : require
// A step of a reduction. Publishing is a reduction of the own elements alone.
// variants: gpu: LANES=32 GROUP=256 | cpu: LANES=1 GROUP=8 | texel: LANES=1 GROUP=8 TEXELS
// variants: f32_scaled_scaled: ELEM=ELEM_F32 IN_WIRE=WIRE_SCALED_F16 OUT_WIRE=WIRE_SCALED_F16 | f32_word_word: ELEM=ELEM_F32 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | f32_bhalf_bhalf: ELEM=ELEM_F32 IN_WIRE=WIRE_BF16 OUT_WIRE=WIRE_BF16 | f32_q8_q8: ELEM=ELEM_F32 IN_WIRE=WIRE_Q8 OUT_WIRE=WIRE_Q8 | f16_half_half: ELEM=ELEM_F16 IN_WIRE=WIRE_F16 OUT_WIRE=WIRE_F16 | f16_word_word: ELEM=ELEM_F16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | f16_word_half: ELEM=ELEM_F16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_F16 | bf16_bhalf_bhalf: ELEM=ELEM_BF16 IN_WIRE=WIRE_BF16 OUT_WIRE=WIRE_BF16 | bf16_word_word: ELEM=ELEM_BF16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | bf16_word_bhalf: ELEM=ELEM_BF16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_BF16 | int_word_word: ELEM=ELEM_INT IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | i8_word_word: ELEM=ELEM_I8 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | i16_word_word: ELEM=ELEM_I16 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | i64_word_word: ELEM=ELEM_I64 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD | f64_word_word: ELEM=ELEM_F64 IN_WIRE=WIRE_WORD OUT_WIRE=WIRE_WORD DOUBLES
// variants: whole: | tail: TAIL | whole_any: ANY | tail_any: TAIL ANY
// Those named any do every op and can measure; the others sum, and average floats. A constant chooses the op at no cost
// where drivers fold it. SwiftShader does not, and runs both sides of a branch, so that a sum would take half as long
// again.
#include "common/reduce.glsl"
