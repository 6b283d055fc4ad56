"""How far a split feed-forward block may be from float64, by the bounds of :mod:`vkpar.testing`.

With h = x W1 + b1, g = gelu(h), y = g W2 + b2, elementwise and K1 = hidden:

    dh <= gamma(K1 + 1) (|x| |W1| + |b1|)
    dg <= |gelu'(h)| dh + 0.4 dh^2 + 2^-20 (|h| + dh)

by Taylor, 0.4 being half of the largest |gelu''|, and 2^-20 |x| the GLSL kernel's own error. Rank r has g_r, the rows
W2_r and K2 of them, and b_r = b2 on rank 0 and 0 elsewhere. Its partial sum y_r errs, in the Frobenius norm, by

    dy_r <= |dg_r|_F |W2_r|_2 + gamma(K2 + 1) | (|g_r| + dg_r) |W2_r| + |b_r| |_F

with |W|_2 the spectral norm, and the block by sum dy_r and the wire's share of | sum |y_r| |_F + sum dy_r. The bound on
the relative error is that over the norm of the float64 result. It is a worst case, every rounding error aligned with
every other: with f16 on the wire a rig usually stays 5 to 20 times below it, without a wire far more.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from vkpar.demo.reference import F64, gelu, gelu_slope
from vkpar.demo.weights import F32
from vkpar.testing import all_reduce_bound, gamma, norm

GELU_ERROR: Final = 2.0**-20
GELU_BEND: Final = 0.4


def feed_forward_bound(x: F64, layer: dict[str, F32], nranks: int, wire: str) -> float:
    """Return the bound on a split feed-forward block's error in the Frobenius norm.

    Args:
        x: the block's input, (tokens, hidden), exact in float32.
        layer: the layer's tensors.
        nranks: ranks that share the block.
        wire: how its sum crosses the links.

    Raises:
        InvalidUsageError: not a wire whose error is known here.
    """
    first, first_bias, second, second_bias = (
        layer[name].astype(np.float64).T
        for name in (
            "intermediate.dense.weight",
            "intermediate.dense.bias",
            "output.dense.weight",
            "output.dense.bias",
        )
    )
    h = x @ first + first_bias
    dh = gamma(first.shape[0] + 1) * (np.abs(x) @ np.abs(first) + np.abs(first_bias))
    g = gelu(h)
    dg = np.abs(gelu_slope(h)) * dh + GELU_BEND * dh * dh + GELU_ERROR * (np.abs(h) + dh)
    arithmetic, partials = 0.0, []
    for rank, part in enumerate(np.array_split(np.arange(second.shape[0]), nranks)):
        rows, bias = second[part], second_bias * (rank == 0)
        summed = (np.abs(g[:, part]) + dg[:, part]) @ np.abs(rows) + np.abs(bias)
        arithmetic += norm(dg[:, part]) * _spectral(rows) + gamma(len(part) + 1) * norm(summed)
        partials.append(g[:, part] @ rows + bias)
    return arithmetic + all_reduce_bound(partials, wire, arithmetic)


def _spectral(matrix: F64) -> float:
    # From the Gram matrix of the narrow side: ten times quicker than an SVD, and exact enough for the largest value.
    return math.sqrt(float(np.linalg.eigvalsh(matrix.T @ matrix)[-1]))
