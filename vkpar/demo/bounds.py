"""How far a correct rig may be from float64: worst-case bounds, derived, with no tolerance picked by hand.

Arithmetic. One float32 operation has a relative error of at most ``U`` = 2^-23: Vulkan asks for one of the two
neighbours, not for the nearest one, which would be 2^-24. A dot product of K terms, summed in any order, with fused
multiply-adds or without, then errs by at most gamma(K) * sum |a_k b_k| with gamma(K) = K U / (1 - K U).

Wire. A number that crosses a link is rounded: relative error 2^-11 (f16), 2^-8 (bf16), 0 (f32). f16 has a power-of-two
scale for each block, which puts the block's largest magnitude at 2^14 or more; what falls below f16's normal range of
2^-14 then errs by half its spacing, 2^-25, which is 2^-39 of that magnitude. q8 sends x as the whole number nearest to
126 x / m, m being the largest magnitude of 32 elements, rounded up by less than 2^-12 of itself: half a step is
m / 252. Its multiplier is rounded down by less than 2^-18.9 and its scale by a few U, which adds less than 2^-18 |x|.

No algorithm encodes a contribution more often than the ring does with n ranks: n - 1 hops to its owner and once more
for the sum. With S = sum over the ranks of |contribution| the all_reduce errs by at most growth - 1 times S, growth
being ((1 + wire)(1 + U))^n; shares of a block's largest magnitude add growth ((1 + block)^n - 1) times the largest S of
the block. One rank has no wire.

Block. With h = x W1 + b1, g = gelu(h), y = g W2 + b2, elementwise and K1 = hidden:

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vkpar.demo.reference import F64, gelu, gelu_slope
from vkpar.demo.weights import F32
from vkpar.errors import InvalidUsageError

U: Final = 2.0**-23
GELU_ERROR: Final = 2.0**-20
GELU_BEND: Final = 0.4


@dataclass(frozen=True)
class Wire:
    """What a wire does to a number: ``relative`` error, ``block`` error relative to the block's largest magnitude.

    Integers up to ``exact`` cross it unchanged; 0 says that none but zero does for sure.
    """

    relative: float
    block: float
    exact: int


WIRES: Final = {
    "f16": Wire(2.0**-11, 2.0**-39, 2**11),
    "bf16": Wire(2.0**-8, 0.0, 2**8),
    "f32": Wire(0.0, 0.0, 2**24),
    "q8": Wire(2.0**-18, (1.0 + 2.0**-11) / 252.0, 0),
}


def wire_of(name: str) -> Wire:
    """Return the properties of the wire ``name``.

    Raises:
        InvalidUsageError: not a wire whose error is known here.
    """
    if name not in WIRES:
        raise InvalidUsageError(f"the demo runs with the wires {', '.join(WIRES)}, not {name!r}")
    return WIRES[name]


def gamma(terms: int) -> float:
    """Return the relative error of a float32 sum of ``terms`` products."""
    return terms * U / (1.0 - terms * U)


def all_reduce_bound(contributions: Sequence[F64], wire: str, uncertain: float = 0.0) -> float:
    """Return the bound on an all_reduce's error in the Frobenius norm.

    Args:
        contributions: every rank's in float64, of one shape.
        wire: how they cross the links.
        uncertain: how far they may be from those that the ranks hold, norms summed over the ranks.

    Raises:
        InvalidUsageError: not a wire whose error is known here.
    """
    nranks = len(contributions)
    properties = wire_of(wire)
    if nranks < 2:
        return 0.0
    total = np.sum([np.abs(part) for part in contributions], axis=0)
    growth = ((1.0 + properties.relative) * (1.0 + U)) ** nranks
    largest = float(np.max(total, initial=0.0)) + uncertain
    floor = growth * math.expm1(nranks * math.log1p(properties.block)) * largest * math.sqrt(total.size)
    return (growth - 1.0) * (_norm(total) + uncertain) + floor


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
        arithmetic += _norm(dg[:, part]) * _spectral(rows) + gamma(len(part) + 1) * _norm(summed)
        partials.append(g[:, part] @ rows + bias)
    return arithmetic + all_reduce_bound(partials, wire, arithmetic)


def relative(error: F64 | float, expected: F64) -> float:
    """Return an error, elementwise or already its Frobenius norm, over the norm of what was expected."""
    size = error if isinstance(error, float) else _norm(error)
    whole = _norm(expected)
    return size / whole if whole else math.inf if size else 0.0


def _spectral(matrix: F64) -> float:
    # From the Gram matrix of the narrow side: ten times quicker than an SVD, and exact enough for the largest value.
    return math.sqrt(float(np.linalg.eigvalsh(matrix.T @ matrix)[-1]))


def _norm(values: F64) -> float:
    return float(np.linalg.norm(values))
