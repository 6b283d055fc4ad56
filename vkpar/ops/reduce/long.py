"""Reductions of elements of 64 bits: in units where kernels read these, and what is left in pairs of halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from vkpar.arrays.array import Array
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.functions import divide, equal, logical_or, maximum, minimum, not_equal
from vkpar.ops.reduce import units

Both = Callable[..., Array]
_BOTH: Final[dict[str, Both]] = {
    "sum": add, "mean": add, "max": maximum, "min": minimum, "argmax": maximum, "argmin": minimum,
}  # fmt: skip
_EXTREMES: Final = {"mean": "sum", "argmax": "max", "argmin": "min"}  # what others begin with


def halved(a: Array, axes: frozenset[int], both: Both) -> Array:
    """Return what elements along axes come to, of which there are some, by pairs of halves; the axes are gone."""
    kept = [n for n in range(a.ndim) if n not in axes]
    parts = a.transpose((*sorted(axes), *kept)).reshape(-1, *(a.shape[n] for n in kept))
    while len(parts) > 1:
        half = len(parts) // 2
        made = parts.device.empty((len(parts) - half, *parts.shape[1:]), parts.dtype)
        both(parts[:half], parts[len(parts) - half :], out=made[:half])
        if len(parts) % 2:
            made[half:].copy_from(parts[half : half + 1])
        parts = made
    return parts[0]


def reduced(name: str, a: Array, axes: frozenset[int]) -> Array:
    """Return a reduction of an array with elements along axes, which are gone; places are those of a bool array."""
    found, left = units.reduced(_EXTREMES.get(name, name), a, units.groups_of(a.shape, axes))
    rest = frozenset(n for n, (_, gone) in enumerate(left) if gone)
    made = halved(found.reshape([size for size, _ in left]), rest, _BOTH[name])
    made = made.reshape([size for n, size in enumerate(a.shape) if n not in axes])
    if name == "mean":
        count = math.prod(a.shape[n] for n in axes)
        return divide(made, float(count))
    if name.startswith("arg"):
        shape = tuple(1 if n in axes else size for n, size in enumerate(a.shape))
        found = equal(a, made.reshape(shape))
        return logical_or(found, not_equal(a, a)) if a.dtype.is_float else found  # the first NaN is the place of all
    return made
