"""Reductions of elements of 64 bits: in units where kernels read these, and what is left in pairs of halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vkpar.arrays.array import Array
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.functions import maximum, minimum
from vkpar.ops.reduce.units import Groups

Both = Callable[..., Array]
_BOTH: Final[dict[str, Both]] = {"sum": add, "max": maximum, "min": minimum}


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


def rest(name: str, a: Array, groups: Groups) -> Array:
    """Return a sum, or extremes, along the axes of ``groups`` that are reduced, in the order of those that are kept."""
    gone = frozenset(n for n, (_, gone) in enumerate(groups) if gone)
    return halved(a.reshape([size for size, _ in groups]), gone, _BOTH[name])
