"""Reductions along axes: sum, mean, max, min, argmax, argmin."""

from __future__ import annotations

import builtins
import math
from typing import Final

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.arrays.layout import joined
from vkpar.arrays.operators import operations
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.arrays.making import arange, fill
from vkpar.ops.arrays.recipes import landed
from vkpar.ops.arrays.take import take
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of
from vkpar.ops.call.checks import (
    FLOATS,
    INTEGERS,
    NARROW,
    SHORT,
    advice,
    check_arrays,
    check_out,
    check_overlap,
    widened,
)
from vkpar.ops.call.dispatch import run_single
from vkpar.ops.call.windows import writable_in_place
from vkpar.ops.call.work import floor_power
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.cast import cast, convert_in
from vkpar.ops.elementwise.expressions import LONG
from vkpar.ops.elementwise.functions import divide, equal, logical_or, not_equal
from vkpar.ops.elementwise.shipped import check_long
from vkpar.ops.reduce import long, once, passes, units
from vkpar.ops.reduce.axes import Axis, axes_of, whole
from vkpar.ops.reduce.passes import Reduction
from vkpar.ops.reduce.units import Groups, groups_of

_ALL_FOUR: Final = 0x01010101  # truths in a word
_MANY: Final = 1 << 18  # elements, from which on places are looked for in parts of rows
_LEAST_PART: Final = 128  # elements, half of them where they have 64 bits
_MANY_ROWS: Final = 512  # that are not parted, up to the longest, in bytes
_LONGEST: Final = 1 << 16
_KINDS: Final = {
    "sum": Reduction("sum"),
    "mean": Reduction("sum", mean=True),
    "max": Reduction("extreme"),
    "min": Reduction("extreme", lowest=True),
    "argmax": Reduction("place"),
    "argmin": Reduction("place", lowest=True),
}


def sum(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return the sums of elements along axes, in the type of ``a``.

    Floats are added in float32 in an order that shape and device fix, and rounded once: the same bits each time. With
    n terms and D = 24 * ceil(log2(n) / 6) the error is at most D * 2^-23 * (sum of magnitudes), and the rounding to the
    result's type; axes that are no neighbours are added up one after the other, and so are their D. Integers wrap. The
    sum of no elements is 0.

    Args:
        a: floats or whole numbers, of any shape; of 64 bits where the device computes these.
        axis: an axis, several, or None for all.
        keepdims: reduced axes stay, with length 1.
        out: where the result goes, of its shape and type, sharing no memory with ``a``.

    Raises:
        InvalidUsageError: not an array, a closed one; no such axis, or one named twice; a wrong ``out``.
        UnsupportedError: a type that devices do not compute, such as float64.

    Examples:
        >>> vkpar.sum(device.array([[1.0, 2.0], [3.0, 4.0]]), axis=0).tolist()
        [4.0, 6.0]
    """
    return _reduced("sum", a, axis, keepdims, out)


def mean(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return the means of elements along axes, in the type of ``a``; float32 of integers.

    It is the sum in float32, divided by the number of terms and rounded once (integers are rounded to float32 first).
    The mean of no elements is NaN. Arguments and errors are those of :func:`sum`.

    Examples:
        >>> vkpar.mean(device.array([[1.0, 2.0], [3.0, 4.0]]), axis=1).tolist()
        [1.5, 3.5]
    """
    return _reduced("mean", a, axis, keepdims, out)


def max(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return the largest elements along axes, in the type of ``a``; NaN where one is NaN; +0 is above -0.

    Arguments and errors are those of :func:`sum`; no elements are an InvalidUsageError, too.

    Examples:
        >>> float(vkpar.max(device.array([3.0, 5.0])))
        5.0
    """
    return _reduced("max", a, axis, keepdims, out)


def min(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return the least elements along axes, as :func:`max` does.

    Examples:
        >>> float(vkpar.min(device.array([3.0, 5.0])))
        3.0
    """
    return _reduced("min", a, axis, keepdims, out)


def argmax(a: Array, axis: int | None = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return where the largest elements along an axis are, as uint32: the first of equals, or the first NaN.

    Args:
        a: as for :func:`sum`.
        axis: an axis; None for all elements in C order.
        keepdims: the reduced axis stays, with length 1.
        out: where the result goes, of its shape and uint32, sharing no memory with ``a``.

    Raises:
        InvalidUsageError: as :func:`sum` says; no elements; several axes.
        UnsupportedError: a type that devices do not compute; more than 2^32 elements along the axis.

    Examples:
        >>> int(vkpar.argmax(device.array([3.0, 5.0])))
        1
    """
    return _reduced("argmax", a, axis, keepdims, out)


def argmin(a: Array, axis: int | None = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return where the least elements along an axis are, as :func:`argmax` does.

    Examples:
        >>> int(vkpar.argmin(device.array([3.0, 5.0])))
        0
    """
    return _reduced("argmin", a, axis, keepdims, out)


def _reduced(name: str, a: Array, axis: Axis, keepdims: bool, out: Array | None) -> Array:
    axis = whole(name, axis)
    made = run_single(name, a, out, axis, bool(keepdims))
    if made is not None:
        return made
    check_arrays(name, out, a=a)
    kind = _KINDS[name]
    if a.dtype.name in NARROW:
        return _narrow(name, kind, a, axis, keepdims, out)
    if kind.mean and a.dtype.name in ("int64", "uint64"):
        return _reduced(name, cast(a, "float32"), axis, keepdims, out)
    result = _result_dtype(name, kind, a)
    axes = axes_of(name, a, axis, single=kind.family == "place")
    shape = _shape(a, axes, keepdims)
    count = 1
    for index in axes:
        count *= a.shape[index]
    if out is not None:
        check_out(name, out, shape, result)
        check_overlap(name, out, a, in_place=False)
    if kind.family == "place" and count >= 1 << 32:
        raise UnsupportedError(f"{name}: places are uint32, and there are {count} elements along the axis")
    key = key_of(name, (a,), (out,), axis, bool(keepdims))
    made = a.device.empty(shape, result) if out is None else out
    if not made.size:
        return made
    if not count:
        return _of_nothing(name, kind, made, a)
    if a.dtype.name in LONG and (kind.family == "place" or kind.mean):
        made.copy_from(_of_long(name, kind, a, axes, axis).reshape(shape))
        return made
    call = Call(name, key, (a,), (made,))
    direct = made.is_contiguous and writable_in_place(made)
    target = call.results[0] if direct else call.temporary(shape, result)
    if a.dtype.name in LONG:
        _fold_long(call, name, groups_of(a.shape, axes), target)
    else:
        _fold(call, kind, a, axes, target)
    landing.land(call, target, call.results[0])
    call.keep()
    return made


def _narrow(name: str, kind: Reduction, a: Array, axis: Axis, keepdims: bool, out: Array | None) -> Array:
    """Reduce elements of 8 or 16 bits: as they are stored, or as 32 bits."""
    found = None
    if kind.family == "place":
        axes = axes_of(name, a, axis, single=True)
        found = _by_parts(name, a, axes)
        if found is not None:
            found = found.reshape(_shape(a, axes, keepdims))
            return found if out is None else landed(name, found, out, a)
    elif a.size and (not kind.mean or a.dtype.itemsize == 1):
        axes = axes_of(name, a, axis)
        found = _by_units(name, a, axis, axes, keepdims, out)
        if found is not None:
            return found
        if a.dtype == "bool" and kind.family == "extreme":
            wide = _by_words(name, a, axes, keepdims)
            found = None if wide is None else cast(wide, a.dtype)
    if found is not None:
        return found if out is None else landed(name, found, out, a)
    wide = cast(a, widened(a))
    if kind.family != "extreme":
        return _reduced(name, wide, axis, keepdims, out)
    return cast(_reduced(name, wide, axis, keepdims, None), a.dtype, out=out)


def _of_long(name: str, kind: Reduction, a: Array, axes: frozenset[int], axis: Axis) -> Array:
    """Return means, or places, of elements of 64 bits, of which there are some."""
    every = tuple(sorted(axes))
    if kind.mean:
        return divide(_reduced("sum", a, every, False, None), float(math.prod(a.shape[n] for n in axes)))
    found = _by_parts(name, a, axes)
    if found is not None:
        return found
    there = equal(a, _reduced(name[3:], a, every, True, None))
    if a.dtype.is_float:
        there = logical_or(there, not_equal(a, a))  # the first NaN is the place of all
    return _reduced("argmax", there, axis, False, None)


def _fold_long(call: Call, name: str, groups: Groups, target: Array) -> None:
    """Add up elements of 64 bits, or take extremes: in units where kernels can, else by pairs of halves."""
    found, left = units.reduced(call, name, call.operands[0], groups, target)
    if found is not target:
        call.forget()
        target.copy_from(long.rest(name, found, left).reshape(target.shape))


def _by_parts(name: str, a: Array, axes: frozenset[int]) -> Array | None:
    """Return places in rows, or in parts of rows whose extremes are then compared; None where another way is faster.

    It reads all elements once, as they are stored.
    """
    groups = groups_of(a.shape, axes)
    if a.size < _MANY or len(groups) > 2 or not groups[-1][1] or not (units.w64(a.device) and a.is_contiguous):
        return None
    extent, size = groups[-1][0], a.dtype.itemsize
    rows = a.size // extent
    most = _LONGEST // size
    least = builtins.max(_LEAST_PART // (1 + (a.dtype.name in LONG)), floor_power(math.isqrt(extent)))
    lengths = range(builtins.min(least, most), builtins.min(32 * least, extent // 8, most) + 1, 32)
    part = next((n for n in lengths if extent % n == 0), 0)
    if rows >= _MANY_ROWS and extent <= most and extent * size % 32 == 0:
        part = extent
    if not part or a.byte_offset % 32 or a.size >> 32:
        return None
    inside, parts = units.places(name, a.reshape(rows, extent), part), extent // part
    if inside is None or parts == 1:
        return inside
    every = add(inside, arange(a.device, 0, a.size, extent, dtype="uint32")[:, None]) if rows > 1 else inside
    at = _reduced(name, take(a.reshape(-1), every), 1, False, None)
    at = add(at, arange(a.device, 0, rows * parts, parts, dtype="uint32")) if rows > 1 else at
    return take(inside.reshape(-1), at)


def _by_units(name: str, a: Array, axis: Axis, axes: frozenset[int], keepdims: bool, out: Array | None) -> Array | None:
    """Return a sum, in 32 bits, a mean, or extremes of bytes and halves, read as they are stored; None if not."""
    if not (units.reads_units(a.device) and a.is_contiguous):
        return None
    shape, wide, groups = _shape(a, axes, keepdims), dtypes.resolve(widened(a)), groups_of(a.shape, axes)
    dtype = {"sum": wide, "mean": dtypes.float32}.get(name, a.dtype)
    if out is not None:
        check_out(name, out, shape, dtype)
        check_overlap(name, out, a, in_place=False)
    made = a.device.empty(shape, dtype) if out is None else out
    call = Call(name, key_of(name, (a,), (out,), axis, bool(keepdims)), (a,), (made,))
    result = call.results[0]
    target = units.target_of(call, name, wide, groups)
    found, left = units.reduced(call, name, call.operands[0], groups, target)
    if found is call.operands[0]:
        return None
    if name == "mean":
        target = result if made.is_contiguous else call.temporary(shape, dtype)
    if found is not target:
        once.reduce(call, _KINDS[name], found, left, target)
    if target.dtype == dtype:
        landing.land(call, target, result)
    elif target.storage is not result.storage:
        convert_in(call, target, result)
    call.keep()
    return made


def _by_words(name: str, a: Array, axes: frozenset[int], keepdims: bool) -> Array | None:
    """Return whether any, or all, of truths in rows hold, four of them a word; None where rows are not whole words."""
    groups = groups_of(a.shape, axes)
    rows = groups[0][0] if len(groups) == 2 else 1
    fits = groups and groups[-1][1] and len(groups) < 3 and a.size % (4 * rows) == 0 and a.byte_offset % 4 == 0
    if not fits or not a.is_contiguous:
        return None
    words = Array(a.storage, a.byte_offset, (rows, a.size // (4 * rows)), dtypes.uint32)
    found = _reduced(name, words, 1, False, None).reshape(_shape(a, axes, keepdims))
    return equal(found, _ALL_FOUR) if name == "min" else found


def _shape(a: Array, axes: frozenset[int], keepdims: bool) -> tuple[int, ...]:
    return tuple(1 if index in axes else size for index, size in enumerate(a.shape) if keepdims or index not in axes)


def _result_dtype(name: str, kind: Reduction, a: Array) -> DType:
    dtype = a.dtype
    if dtype.name in LONG:
        check_long(name, a.device, dtype)
    elif dtype.name not in SHORT:
        raise UnsupportedError(f"{name} computes {', '.join((*FLOATS, *INTEGERS))}, not {dtype}{advice(dtype)}")
    if kind.family == "place":
        return dtypes.uint32
    return dtypes.float32 if kind.mean and not dtype.is_float else dtype


def _fold(call: Call, kind: Reduction, a: Array, axes: frozenset[int], target: Array) -> None:
    """Reduce an array with elements, one in other than C order without a copy where kernels can."""
    if a.is_contiguous:
        once.reduce(call, kind, call.operands[0], groups_of(a.shape, axes), target)
        return
    found = _strided(a, axes, ordered=kind.family == "place")
    flat = call.flat(call.operands[0])
    if found is None or not passes.fits(flat, *found[0]):
        once.reduce(call, kind, landing.packed(call, call.operands[0]), groups_of(a.shape, axes), target)
        return
    shape, steps = found
    once.fold(call, kind, flat, target, shape, divisor=float(shape[1]) if kind.mean else 0.0, steps=steps)


def _strided(a: Array, axes: frozenset[int], *, ordered: bool) -> tuple[tuple[int, int, int], tuple[int, int]] | None:
    """Return blocks, extent and columns that an array in other than C order consists of, and the steps between them.

    Returns:
        None where it is no such thing: elements do not lie side by side along any axis, or steps are not positive.
    """
    every = list(zip(a.shape, a.strides, strict=True))
    if any(stride <= 0 for size, stride in every if size > 1):
        return None
    reduced = [axis for index, axis in enumerate(every) if index in axes]
    if not ordered:
        reduced.sort(key=lambda axis: -axis[1])
    kept = _joined([axis for index, axis in enumerate(every) if index not in axes])
    reduced = _joined(reduced) or [(1, 1)]
    if len(reduced) > 1 or len(kept) > 2:
        return None
    extent, step = reduced[0]
    if len(kept) < 2 and step == 1:
        blocks, block = kept[0] if kept else (1, 1)
        return (blocks, extent, 1), (block, 1)
    if not kept or kept[-1][1] != 1:
        return None
    blocks, block = kept[0] if len(kept) > 1 else (1, 1)
    return (blocks, extent, kept[-1][0]), (block, step)


def _joined(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (size, stride) of axes without those of 1 element, neighbours that one can stand for as that one."""
    shape, (strides,) = joined([size for size, _ in axes], tuple(stride for _, stride in axes))
    return list(zip(shape, strides, strict=True))


def _of_nothing(name: str, kind: Reduction, out: Array, a: Array) -> Array:
    """Fill ``out`` with what no elements give."""
    if kind.family != "sum":
        raise InvalidUsageError(f"{name} of no elements: a has shape {a.shape}")
    if kind.mean:
        fill(out, math.nan)
    else:
        out.fill_zeros()
    return out


operations.update(sum=sum, mean=mean, max=max, min=min, argmax=argmax, argmin=argmin)
