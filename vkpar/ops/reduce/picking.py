"""Elements of an array by a mask, or by an array of places."""

from __future__ import annotations

from typing import Any

from vkpar.arrays.array import Array
from vkpar.arrays.operators import operations
from vkpar.errors import IndexingError, UnsupportedError
from vkpar.ops.arrays.take import take
from vkpar.ops.call.checks import NUMBERS
from vkpar.ops.elementwise.functions import where
from vkpar.ops.reduce.sorting import nonzero


def picked(a: Array, key: Array) -> Array:
    """Return ``a[key]``: the elements where a mask of bool holds, whose number the host reads; or rows by places.

    Raises:
        IndexingError: a mask of another shape than the first axes have, or an array of no axes.
        UnsupportedError: another type.
    """
    if not a.ndim:
        raise IndexingError("an array without axes has no elements to pick by another array")
    if key.dtype == "bool":
        _check(a, key)
        rows = a.reshape(key.size, *a.shape[key.ndim :])
        return take(rows, nonzero(key.reshape(-1))[0])
    return take(a, key)


def put(a: Array, key: Array, value: Any) -> None:
    """Set the elements of ``a`` where a mask of bool holds to a number, or to an array of one element.

    Raises:
        IndexingError: a mask of another shape than the first axes have.
        UnsupportedError: no mask of bool, or other values.
    """
    if key.dtype != "bool":
        raise UnsupportedError(f"assignment takes a mask of bool, not {key.dtype}: write mask.astype('bool')")
    _check(a, key)
    if not isinstance(value, NUMBERS) and not (isinstance(value, Array) and value.size == 1):
        raise UnsupportedError("assignment by a mask takes one number: write a[:] = vkpar.where(mask, values, a)")
    mask = key[(..., *[None] * (a.ndim - key.ndim))]
    single = value.reshape(()) if isinstance(value, Array) else value
    operations["assign"](a, where(mask, single, a))


def _check(a: Array, mask: Array) -> None:
    if not mask.ndim or mask.shape != a.shape[: mask.ndim]:
        raise IndexingError(f"a mask of {mask.shape} does not fit the first axes of {a.shape}")


operations.update(picked=picked, put=put)
