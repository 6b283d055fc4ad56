// Rotary position embedding: what pairs of elements are turned by. The caller defines FREQUENCY_BINDING.
//
// A frequency is a 64-bit fraction of a turn for each position, so that the angle's own fraction of a turn is exact to
// 2^-32 in whole numbers, at any position. Sine and cosine of what is left, at most an eighth of a turn, are Taylor's
// polynomials: those of drivers are good to 2^-11 only.
#ifndef VKPAR_ROTARY_GLSL
#define VKPAR_ROTARY_GLSL

layout(set = 0, binding = FREQUENCY_BINDING, std430) readonly buffer Table { uvec2 frequency[]; };  // low and high word

// Cosine and sine of the angle of a pair at a place, which is a signed number or not.
vec2 turn(uint pair, uint place, bool is_signed) {
    bool back = is_signed && (place >> 31) != 0u;
    uint distance = back ? 0u - place : place;
    uvec2 f = frequency[pair];
    uint high, low;
    umulExtended(distance, f.x, high, low);
    uint angle = distance * f.y + high;  // in 2^-32 of a turn
    uint quarter = (angle + 0x20000000u) >> 30;
    float v = float(int(angle - (quarter << 30))) * 1.4629180792671596e-9;  // 2 pi / 2^32
    float w = v * v;
    float s = v + v * w * (-1.6666667e-1 + w * (8.3333333e-3 + w * (-1.9841270e-4 + w * 2.7557319e-6)));
    float c = 1.0 + w * (-0.5 + w * (4.1666667e-2 + w * (-1.3888889e-3 + w * (2.4801587e-5 - w * 2.7557319e-7))));
    vec2 made = (quarter & 1u) == 0u ? vec2(c, s) : vec2(-s, c);
    made = quarter >= 2u ? -made : made;
    return back ? vec2(made.x, -made.y) : made;
}

#endif
