"""NumPy's arrays that are made of others by views and copies: nothing here has a kernel of its own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.arrays.join import concatenate, in_turns
from vkpar.ops.arrays.making import arange, fill, full
from vkpar.ops.arrays.take import take
from vkpar.ops.call.checks import check_out, check_overlap
from vkpar.ops.elementwise.functions import less_equal, where

if TYPE_CHECKING:
    from vkpar.device import Device

_MODES: Final = ("constant", "edge", "reflect", "symmetric", "wrap")


def empty_like(a: Array, dtype: object = None) -> Array:
    """Return a new array of ``a``'s shape, device and type (or of ``dtype``), of undefined contents.

    Args:
        a: the array whose shape and device it has.
        value: of every element.
        dtype: of its elements; that of ``a`` by default.

    Raises:
        InvalidUsageError: not an array, a closed one, an unknown dtype, or a value that it does not hold.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> vkpar.empty_like(device.zeros((2, 3))).shape
        (2, 3)
    """
    _check("empty_like", a)
    return a.device.empty(a.shape, a.dtype if dtype is None else dtype)


def full_like(a: Array, value: float, dtype: object = None) -> Array:
    """Return a new array as :func:`empty_like` does, of which every element is ``value``.

    Examples:
        >>> vkpar.full_like(device.zeros(2), 7).tolist()
        [7.0, 7.0]
    """
    _check("full_like", a)
    return full(a.device, a.shape, value, a.dtype if dtype is None else dtype)


def zeros_like(a: Array, dtype: object = None) -> Array:
    """Return a new array as :func:`empty_like` does, of zeros.

    Examples:
        >>> vkpar.zeros_like(device.array([1, 2])).tolist()
        [0, 0]
    """
    _check("zeros_like", a)
    return a.device.zeros(a.shape, a.dtype if dtype is None else dtype)


def ones_like(a: Array, dtype: object = None) -> Array:
    """Return a new array as :func:`empty_like` does, of ones.

    Examples:
        >>> vkpar.ones_like(device.array([1.0, 2.0])).tolist()
        [1.0, 1.0]
    """
    return full_like(a, 1, dtype)


def eye(device: Device, n: int, m: int | None = None, k: int = 0, dtype: object = "float32") -> Array:
    """Return a new array of ``n`` rows and ``m`` columns (as many by default), ones on a diagonal and zeros elsewhere.

    Args:
        device: where it lives.
        n: how many rows.
        m: how many columns.
        k: which diagonal: 0 begins in the corner, 1 one column to the right, -1 one row down.
        dtype: of its elements.

    Raises:
        InvalidUsageError: a negative size, or an unknown dtype.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> vkpar.eye(device, 2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    m = n if m is None else m
    made = device.zeros((n, m), dtype)
    count = min(n - max(-k, 0), m - max(k, 0))
    if count > 0:
        fill(made.strided((count,), (m + 1,), max(k, 0) + max(-k, 0) * m), 1)
    return made


def tril(a: Array, k: int = 0, *, out: Array | None = None) -> Array:
    """Return ``a`` with zeros above a diagonal of its last two axes.

    Args:
        a: of two dimensions or more, of a type that operations compute.
        k: which diagonal, as :func:`eye` counts them.
        out: where the result goes; it may be ``a`` itself.

    Raises:
        InvalidUsageError: fewer dimensions; as :func:`where`.

    Examples:
        >>> vkpar.tril(device.array([[1, 2], [3, 4]])).tolist()
        [[1, 0], [3, 4]]
    """
    return where(_below("tril", a, k), a, 0, out=out)


def triu(a: Array, k: int = 0, *, out: Array | None = None) -> Array:
    """Return ``a`` with zeros below a diagonal of its last two axes, as :func:`tril` does.

    Examples:
        >>> vkpar.triu(device.array([[1, 2], [3, 4]])).tolist()
        [[1, 2], [0, 4]]
    """
    return where(_below("triu", a, k - 1), 0, a, out=out)


def _below(name: str, a: Array, k: int) -> Array:
    """Return a mask of the elements on a diagonal and below it."""
    _check(name, a)
    if a.ndim < 2:
        raise InvalidUsageError(f"{name} takes two dimensions or more, not {a.shape}")
    rows, columns = a.shape[-2:]
    k = max(-rows, min(k, columns))  # int32 holds what is beyond
    return less_equal(arange(a.device, columns), arange(a.device, k, rows + k)[:, None])


def flip(a: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Return a view of ``a`` with the elements along some axes, or all, in the opposite order.

    Args:
        a: the array.
        axis: an axis, several, or None for all.

    Raises:
        InvalidUsageError: not an array, or an axis that is not there, or twice.

    Examples:
        >>> vkpar.flip(device.array([1, 2, 3])).tolist()
        [3, 2, 1]
    """
    _check("flip", a)
    axes = axes_of("flip", range(a.ndim) if axis is None else axis, a.ndim)
    return a[tuple(slice(None, None, -1 if number in axes else 1) for number in range(a.ndim))]


def expand_dims(a: Array, axis: int | Sequence[int]) -> Array:
    """Return a view of ``a`` with new axes of length 1, at the places ``axis`` of the result.

    Args:
        a: the array.
        axis: a place, or several; negative ones count from the end.

    Raises:
        InvalidUsageError: not an array, or a place that is not there, or twice.

    Examples:
        >>> vkpar.expand_dims(device.zeros(3), 0).shape
        (1, 3)
    """
    _check("expand_dims", a)
    added = len(axis) if isinstance(axis, Sequence) else 1
    axes = axes_of("expand_dims", axis, a.ndim + added)
    return a[tuple(None if number in axes else slice(None) for number in range(a.ndim + added))]


def squeeze(a: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Return a view of ``a`` without axes of length 1; see :meth:`vkpar.Array.squeeze`.

    Args:
        a: the array.
        axis: an axis of length 1, several, or None for all of them.

    Raises:
        InvalidUsageError: not an array, or an axis that is not there, or not of length 1.

    Examples:
        >>> vkpar.squeeze(device.zeros((1, 3))).shape
        (3,)
    """
    _check("squeeze", a)
    return a.squeeze(axis)


def roll(
    a: Array, shift: int | Sequence[int], axis: int | Sequence[int] | None = None, *, out: Array | None = None
) -> Array:
    """Return ``a`` with its elements moved along axes, those that fall off the end at the beginning.

    Args:
        a: the array.
        shift: by how many places; of several axes a number for all, or one for each.
        axis: along which; None for all elements in C order.
        out: where the result goes, sharing no memory with ``a``.

    Raises:
        InvalidUsageError: not an array; an axis that is not there; numbers that do not go with the axes.

    Examples:
        >>> vkpar.roll(device.array([1, 2, 3]), 1).tolist()
        [3, 1, 2]
    """
    _check("roll", a)
    if axis is None:
        if isinstance(shift, Sequence):
            raise InvalidUsageError("roll: several shifts need an axis for each")
        flat = roll(a.reshape(-1), shift, 0).reshape(a.shape)
        return flat if out is None else landed("roll", flat, out, a)
    axes = list(axis) if isinstance(axis, Sequence) else [axis]
    shifts = list(shift) if isinstance(shift, Sequence) else [shift] * len(axes)
    if len(shifts) != len(axes) or not axes:
        raise InvalidUsageError(f"roll: {len(shifts)} shifts of {len(axes)} axes")
    made = a
    for number, (by, each) in enumerate(zip(shifts, axes, strict=True)):
        (at,) = axes_of("roll", each, a.ndim)
        cut = -by % max(a.shape[at], 1)
        before = (slice(None),) * at
        target = out if number == len(axes) - 1 else None
        made = concatenate([made[(*before, slice(cut, None))], made[(*before, slice(None, cut))]], at, out=target)
    return made


def repeat(a: Array, repeats: int | Sequence[int], axis: int | None = None, *, out: Array | None = None) -> Array:
    """Return ``a`` with each element along an axis several times, one after the other.

    Args:
        a: the array.
        repeats: how often; a number for all, or one for each place along the axis.
        axis: along which; None for all elements in C order, in one dimension.
        out: where the result goes, sharing no memory with ``a``.

    Raises:
        InvalidUsageError: not an array; no such axis; a negative number, or not one for each place.

    Examples:
        >>> vkpar.repeat(device.array([1, 2]), 2).tolist()
        [1, 1, 2, 2]
    """
    _check("repeat", a)
    source = a.reshape(-1) if axis is None else a
    (at,) = axes_of("repeat", 0 if axis is None else axis, source.ndim)
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise InvalidUsageError(f"repeat takes whole numbers that are not negative, not {repeats!r}")
    length = source.shape[at]
    if counts.ndim:
        if len(counts) != length:
            raise InvalidUsageError(f"repeat: {len(counts)} numbers for {length} places along the axis")
        return take(source, a.device.array(np.repeat(np.arange(length, dtype=np.uint32), counts)), at, out=out)
    times = int(counts)
    before, after = source.shape[:at], source.shape[at + 1 :]
    grown = in_turns([source, source]) if times == 2 and not after else None
    if grown is None:
        grown = source[(slice(None),) * (at + 1) + (None,)].broadcast_to((*before, length, times, *after))
    made = grown.reshape((*before, length * times, *after))
    made = made.copy() if made.storage is a.storage else made
    return made if out is None else landed("repeat", made, out, a)


def tile(a: Array, repeats: int | Sequence[int], *, out: Array | None = None) -> Array:
    """Return copies of ``a`` beside each other, ``repeats`` of them along each axis.

    Args:
        a: the array; it gets axes of length 1 in front where ``repeats`` has more numbers.
        repeats: a number for each axis, those of the first axes being 1 where there are fewer.
        out: where the result goes, sharing no memory with ``a``.

    Raises:
        InvalidUsageError: not an array, a closed one; negative ``repeats``; a wrong ``out``.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> vkpar.tile(device.array([1, 2]), 2).tolist()
        [1, 2, 1, 2]
    """
    _check("tile", a)
    times = [operator.index(n) for n in (repeats if isinstance(repeats, Sequence) else (repeats,))]
    if any(n < 0 for n in times):
        raise InvalidUsageError(f"tile takes numbers that are not negative, not {repeats!r}")
    ndim = max(a.ndim, len(times))
    times = [1] * (ndim - len(times)) + times
    shape = (1,) * (ndim - a.ndim) + a.shape
    source = a.reshape(tuple(part for n in shape for part in (1, n)))
    grown = source.broadcast_to(tuple(part for pair in zip(times, shape, strict=True) for part in pair))
    made = grown.reshape(tuple(n * times[axis] for axis, n in enumerate(shape)))
    made = made.copy() if made.storage is a.storage else made
    return made if out is None else landed("tile", made, out, a)


def pad(
    a: Array, pad_width: Any, mode: str = "constant", *, constant_values: float = 0, out: Array | None = None
) -> Array:
    """Return ``a`` with elements around it, as ``np.pad`` does.

    Args:
        a: the array.
        pad_width: how many before and after along each axis: a number for all, a pair for all, or a pair for each.
        mode: "constant"; "edge" repeats the outermost elements; "reflect" mirrors without these, "symmetric" with
            them; "wrap" goes on at the other end. Those three add no more elements than the axis has.
        constant_values: the number of "constant".
        out: where the result goes, sharing no memory with ``a``.

    Raises:
        InvalidUsageError: not an array; another mode; widths that do not fit the axes, or are too large.

    Examples:
        >>> vkpar.pad(device.array([1, 2]), 1).tolist()
        [0, 1, 2, 0]
    """
    _check("pad", a)
    if mode not in _MODES:
        raise InvalidUsageError(f"pad: mode is one of {', '.join(_MODES)}, not {mode!r}")
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (a.ndim, 2))
    except ValueError as error:
        raise InvalidUsageError(f"pad: {pad_width!r} has no pair for each of {a.ndim} axes") from error
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise InvalidUsageError(f"pad takes whole numbers that are not negative, not {pad_width!r}")
    if mode == "constant":
        return _surrounded(a, widths, constant_values, out)
    made = a
    for axis, (before, after) in enumerate(widths.tolist()):
        if before or after:
            made = concatenate(_padded(made, axis, before, after, mode), axis)
    if out is not None:
        return landed("pad", made, out, a)
    return made.copy() if made is a else made


def _surrounded(a: Array, widths: np.ndarray[Any, Any], value: float, out: Array | None) -> Array:
    shape = tuple(n + int(pair.sum()) for n, pair in zip(a.shape, widths, strict=True))
    if out is not None:
        check_out("pad", out, shape, a.dtype)
        check_overlap("pad", out, a, in_place=False)
    made = a.device.empty(shape, a.dtype) if out is None else out
    fill(made, value)
    if a.size:
        inner = tuple(slice(int(pair[0]), int(pair[0]) + n) for n, pair in zip(a.shape, widths, strict=True))
        made[inner].copy_from(a)
    return made


def _padded(a: Array, axis: int, before: int, after: int, mode: str) -> list[Array]:
    """Return the array between the views that go before it and after it along an axis."""
    length = a.shape[axis]
    most = {"edge": before + after if length else 0, "reflect": length - 1}.get(mode, length)
    if max(before, after) > max(most, 0):
        raise InvalidUsageError(f"pad: {mode!r} adds {max(most, 0)} elements at most to an axis of {length}")
    skipped = mode == "reflect"
    shape = list(a.shape)
    parts = []
    for count, first in ((before, True), (after, False)):
        shape[axis] = count
        if mode == "edge":
            at = slice(0, 1) if first else slice(length - 1, length)
        elif (mode == "wrap") == first:
            at = slice(length - count - skipped, length - skipped)
        else:
            at = slice(int(skipped), count + skipped)
        part = a[(slice(None),) * axis + (at,)]
        parts.append(part.broadcast_to(shape) if mode == "edge" else part if mode == "wrap" else flip(part, axis))
    return [parts[0], a, parts[1]]


def landed(name: str, made: Array, out: Array, *operands: Array) -> Array:
    """Copy a result to where it goes."""
    check_out(name, out, made.shape, made.dtype)
    check_overlap(name, out, *operands, in_place=False)
    out.copy_from(made)
    return out


def axes_of(name: str, axis: Any, ndim: int) -> list[int]:
    """Return axes from 0 up."""
    try:
        given = [operator.index(each) for each in (axis if isinstance(axis, Sequence) else (axis,))]
    except TypeError as error:
        raise InvalidUsageError(f"{name}: an axis is a whole number, not {axis!r}") from error
    found = [each % ndim for each in given if -ndim <= each < ndim]
    if len(set(found)) < len(given):
        raise InvalidUsageError(f"{name}: {axis} are not axes of {ndim} dimensions, each once")
    return found


def _check(name: str, a: object) -> None:
    if not isinstance(a, Array):
        raise InvalidUsageError(f"{name} takes a vkpar.Array, not {type(a).__name__}")
