"""How far right results may be from float64: worst-case bounds, derived, with no tolerance picked by hand.

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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vkpar.abi.formats import WIRES, Wire
from vkpar.errors import InvalidUsageError

F64 = NDArray[np.float64]

U: Final = 2.0**-23


def wire_of(name: str) -> Wire:
    """Return the properties of the wire ``name``.

    Args:
        name: such as ``"f16"``; see ``vkpar.testing.WIRES``.

    Raises:
        InvalidUsageError: not a wire whose error is known here.

    Examples:
        >>> import vkpar.testing
        >>> vkpar.testing.wire_of("f32").meaning
        'exact'
    """
    if name not in WIRES:
        raise InvalidUsageError(f"there is no wire {name!r}; there are {', '.join(WIRES)}")
    return WIRES[name]


def gamma(terms: int) -> float:
    """Return the relative error of a float32 sum of ``terms`` products.

    Args:
        terms: how many.

    Examples:
        >>> import vkpar.testing
        >>> 0 < vkpar.testing.gamma(1000) < 1e-3
        True
    """
    return terms * U / (1.0 - terms * U)


def additions(terms: int) -> int:
    """Return how many additions follow each other at most in a sum of so many terms along neighbouring axes.

    Passes make one term of 32 or more in up to 12 additions in sequence, of 64 or more in up to 24, and of several
    times 64 where they take more.

    Args:
        terms: how many.

    Examples:
        >>> import vkpar.testing
        >>> vkpar.testing.additions(64) < 64
        True
    """
    return 24 * max(math.ceil(math.log2(max(terms, 1)) / 6.0), 1)


def all_reduce_bound(contributions: Sequence[F64], wire: str, uncertain: float = 0.0) -> float:
    """Return the bound on an all_reduce's error in the Frobenius norm.

    Args:
        contributions: every rank's in float64, of one shape.
        wire: how they cross the links.
        uncertain: how far they may be from those that the ranks hold, norms summed over the ranks.

    Raises:
        InvalidUsageError: not a wire whose error is known here.

    Examples:
        >>> import vkpar.testing
        >>> parts = [np.ones(8), np.full(8, 2.0)]
        >>> bound = vkpar.testing.all_reduce_bound(parts, "f16")
        >>> arrays = [d.array(part.astype(np.float32)) for d, part in zip(devices, parts)]
        >>> with vkpar.Communicator(devices, wire="f16") as comm:
        ...     comm.all_reduce(arrays).wait()
        >>> bool(vkpar.testing.norm(arrays[0].numpy() - sum(parts)) <= bound)
        True
    """
    nranks = len(contributions)
    properties = wire_of(wire)
    if nranks < 2:
        return 0.0
    total = np.sum([np.abs(part) for part in contributions], axis=0)
    growth = ((1.0 + properties.relative) * (1.0 + U)) ** nranks
    largest = float(np.max(total, initial=0.0)) + uncertain
    floor = growth * math.expm1(nranks * math.log1p(properties.block)) * largest * math.sqrt(total.size)
    return (growth - 1.0) * (norm(total) + uncertain) + floor


def relative(error: F64 | float, expected: F64) -> float:
    """Return an error, elementwise or already its Frobenius norm, over the norm of what was expected.

    Args:
        error: an array, or a norm.
        expected: of any shape; the norm of it is taken.

    Examples:
        >>> import vkpar.testing
        >>> float(vkpar.testing.relative(np.array([0.5, 0.0]), np.array([3.0, 4.0])))
        0.1
    """
    size = error if isinstance(error, float) else norm(error)
    whole = norm(expected)
    return size / whole if whole else math.inf if size else 0.0


def norm(values: F64) -> float:
    """Return the Frobenius norm.

    Args:
        values: of any shape.

    Examples:
        >>> import vkpar.testing
        >>> float(vkpar.testing.norm(np.array([3.0, 4.0])))
        5.0
    """
    return float(np.linalg.norm(values))
