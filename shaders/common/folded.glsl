// What kernels for few rows of a do besides the product: the norm of these rows before it, the gate of a feed-forward
// block after it. y = W (x g) / rms(x): the squares of a row are added up beside its products, and the sums divided.
//
// The caller defines NORM_BINDING, and COLUMNS that a team of invocations makes: of a gate, the first half of them are
// gates and the others what these let through, which lie push.n columns later in b. It provides `summed`: the sum that
// belongs to the local column `column` of row r, counted over all teams of the group.
#ifndef VKPAR_FOLDED_GLSL
#define VKPAR_FOLDED_GLSL

#include "gate.glsl"

layout(constant_id = 19) const bool NORMED = false;
layout(constant_id = 20) const uint NORM_TYPE = 0;
layout(constant_id = 21) const bool NORM_WIDE = false;
layout(constant_id = 22) const bool GATED = false;

ELEMENTS_IN(norm, NORM_BINDING, NORM_TYPE, NORM_WIDE)

const uint TEAM = GATED ? COLUMNS / 2u : COLUMNS;  // outputs that a team makes

float summed(uint r, uint column);

// The column of b that is the c-th of a team whose first output is `output`; past the end the last one again.
uint column_of(uint first, uint c) {
    uint column = min(first + c % TEAM, push.n - 1u);
    return c < TEAM ? column : push.n + column;
}

// Four outputs of row r of this group from its at-th on, where the squares of the row add up to `squares`.
vec4 folded(uint r, uint at, float squares) {
    float factor = NORMED ? 1.0 / sqrt(squares / float(push.k) + push.norm_eps) : 1.0;
    vec4 made, more = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint column = (at + i) / TEAM * COLUMNS + (at + i) % TEAM;
        made[i] = summed(r, column) * factor;
        if (GATED) more[i] = summed(r, column + TEAM) * factor;
    }
    return GATED ? gated(made, more) : made;
}

#endif
