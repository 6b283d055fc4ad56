"""Axes of reductions, as their callers name them."""

from __future__ import annotations

import operator

from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError

Axis = int | tuple[int, ...] | None


def whole_one(name: str, axis: object) -> int:
    """Return an axis as a whole number.

    Raises:
        InvalidUsageError: it is none.
    """
    try:
        return operator.index(axis)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidUsageError(f"{name}: an axis is a whole number, not {axis!r}") from error


def whole(name: str, axis: Axis) -> Axis:
    """Return an axis, or several, as whole numbers, by which recipes are found: 1.0 would be found as 1.

    Raises:
        InvalidUsageError: it is none.
    """
    if axis is None or type(axis) is int:
        return axis
    return tuple(whole_one(name, each) for each in axis) if isinstance(axis, tuple) else whole_one(name, axis)


def axes_of(name: str, a: Array, axis: Axis, *, single: bool = False) -> frozenset[int]:
    """Return the axes to reduce, counted from 0.

    Raises:
        InvalidUsageError: no such axis, one named twice, or several where only a ``single`` one may be named.
    """
    if axis is None:
        return frozenset(range(a.ndim))
    if isinstance(axis, tuple) and single:
        raise InvalidUsageError(f"{name} takes one axis, or None for all elements, not {axis}")
    found: list[int] = []
    given = whole(name, axis)
    assert given is not None, "it was asked before"
    for each in given if isinstance(given, tuple) else (given,):
        if not -a.ndim <= each < a.ndim:
            raise InvalidUsageError(f"{name}: there is no axis {each} in an array of shape {a.shape}")
        found.append(each % a.ndim)
    if len(set(found)) < len(found):
        raise InvalidUsageError(f"{name}: {axis} names an axis twice")
    return frozenset(found)
