"""Reductions that are made of sums, extremes and functions by element: no kernel is theirs alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.arrays.operators import operations
from vkpar.arrays.region import WORD
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.arrays.making import full
from vkpar.ops.call.call import key_of
from vkpar.ops.call.checks import FLOATS, NARROW, SHORT, advice, check_arrays, check_out, check_overlap, widened
from vkpar.ops.call.dispatch import run_single
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.expressions import LONG
from vkpar.ops.elementwise.functions import abs as absolute
from vkpar.ops.elementwise.functions import equal, exp, isfinite, log, multiply, not_equal, pow, sqrt, subtract, where
from vkpar.ops.elementwise.mathematics import bitwise_and
from vkpar.ops.elementwise.shipped import check_long
from vkpar.ops.reduce import counting, units
from vkpar.ops.reduce.axes import Axis, axes_of, whole
from vkpar.ops.reduce.long import halved
from vkpar.ops.reduce.reductions import max as greatest
from vkpar.ops.reduce.reductions import min as least
from vkpar.ops.reduce.reductions import sum as total

_BOOL = dtypes.resolve("bool")
_EXTREMES = {"max": greatest, "min": least}


def norm(
    a: Array, ord: float | None = None, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None
) -> Array:
    """Return the norms of vectors along axes, of all elements by default: ``sum(abs(a) ** ord) ** (1 / ord)``.

    Args:
        a: float32, float16, bfloat16, int32 or uint32, of any shape.
        ord: 2 by default, 1, another number above 0, 0 (how many are not zero), infinity or -infinity (the largest and
            the least magnitude). Norms of matrices are not among them, but for Frobenius', the default.
        axis: an axis, several, or None for all.
        keepdims: reduced axes stay, with length 1.
        out: where the result goes, of its shape, of ``a``'s type (float32 of integers), sharing no memory with ``a``.

    Raises:
        InvalidUsageError: another ``ord``; as :func:`var`, and an extreme of no elements.
        UnsupportedError: as :func:`var`.

    Examples:
        >>> float(vkpar.norm(device.array([3.0, 4.0])))
        5.0
    """
    power = 2.0 if ord is None else ord
    if not isinstance(power, int | float) or not (power >= 0 or power == -math.inf):
        raise InvalidUsageError(f"norm: ord is a number from 0 up, infinity or -infinity, not {ord!r}")

    def made(floats: Array, axes: tuple[int, ...]) -> Array:
        if power == 2:
            return sqrt(total(multiply(floats, floats), axes, keepdims))
        if power == 0:
            return cast(total(not_equal(floats, 0.0), axes, keepdims), "float32")
        sizes = absolute(floats)
        if math.isinf(power):
            return (greatest if power > 0 else least)(sizes, axes, keepdims)
        if power == 1:
            return total(sizes, axes, keepdims)
        return pow(total(pow(sizes, float(power)), axes, keepdims), 1.0 / power)

    return of_floats("norm", a, axis, keepdims, out, made, None if math.isinf(power) else 0.0)


def logsumexp(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return ``log(sum(exp(a)))`` along axes, which does not overflow on the way; -infinity of no elements.

    Arguments and errors are those of :func:`var`.

    Examples:
        >>> round(float(vkpar.logsumexp(device.array([1000.0, 1000.0]))), 3)
        1000.693
    """

    def made(floats: Array, axes: tuple[int, ...]) -> Array:
        top = greatest(floats, axes, True)
        top = where(isfinite(top), top, 0.0)
        sums = total(exp(subtract(floats, top)), axes, keepdims)
        return add(log(sums), top.reshape(sums.shape))

    return of_floats("logsumexp", a, axis, keepdims, out, made, -math.inf)


def prod(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return the products of elements along axes, in the type of ``a``; 1 of no elements.

    Floats are multiplied in float32, in an order that shapes fix, and rounded once: with n terms the error is at
    most n * 2^-24 of the result. What lies between may overflow where NumPy's order does not. Integers wrap.

    Arguments and errors are those of :func:`var`; ``out`` is of ``a``'s type.

    Examples:
        >>> float(vkpar.prod(device.array([2.0, 3.0, 4.0])))
        24.0
    """
    a = cast(a, widened(a)) if isinstance(a, Array) and a.dtype.name in NARROW else a
    axes, shape = checked("prod", a, axis, keepdims, out, getattr(a, "dtype", dtypes.float32))
    if not math.prod(a.shape[axis] for axis in axes) or not a.size:
        return _landed(full(a.device, shape, 1, a.dtype), out, a.dtype)
    left, gone = cast(a, "float32") if a.dtype.name in FLOATS else a, frozenset(axes)
    while left.dtype == "float32" or left.dtype.name in LONG:
        parts = units.of_parts("prod", left, gone)
        if parts is None:
            break
        left, gone = parts
    return _landed(halved(left, gone, multiply).reshape(shape), out, a.dtype)


def any(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return whether an element along axes is not 0, as bool (False of no elements); NaN is not 0.

    Arguments and errors are those of :func:`var`; ``out`` is of bool.

    Examples:
        >>> bool(vkpar.any(device.array([0, 2])))
        True
    """
    return _of_truth("any", a, axis, keepdims, out, "max", False)


def all(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return whether no element along axes is 0, as bool (True of no elements); NaN is not 0.

    Arguments and errors are those of :func:`var`; ``out`` is of bool.

    Examples:
        >>> bool(vkpar.all(device.array([0, 2])))
        False
    """
    return _of_truth("all", a, axis, keepdims, out, "min", True)


def count_nonzero(a: Array, axis: Axis = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
    """Return how many elements along axes are not 0, as uint32; NaN is not 0.

    Subnormal floats are none on CPU drivers that compare them as 0, such as SwiftShader's; on GPUs the bits count.

    Arguments and errors are those of :func:`var`; ``out`` is of uint32.

    Examples:
        >>> int(vkpar.count_nonzero(device.array([0, 2, 3])))
        2
    """
    axis = whole("count_nonzero", axis)
    done = run_single("count_nonzero", a, out, axis, bool(keepdims))
    if done is not None:
        return done
    axes, shape = checked("count_nonzero", a, axis, keepdims, out, dtypes.uint32)
    if not a.size:
        return _landed(full(a.device, shape, 0, "uint32"), out, dtypes.uint32)
    by_bits = counting.takes(a)
    if by_bits:
        made = a.device.empty(shape, "uint32") if out is None else out
        key = key_of("count_nonzero", (a,), (out,), axis, bool(keepdims))
        if counting.count(key, a, frozenset(axes), made):
            return made
    if a.dtype != _BOOL and not a.dtype.is_float:
        parts = units.of_parts("count_nonzero", a, frozenset(axes))
        if parts is not None:
            return _landed(total(parts[0], tuple(parts[1])).reshape(shape), out, dtypes.uint32)
    if by_bits and a.dtype.is_float:  # as the kernel does
        bits = 8 * a.dtype.itemsize
        truths = not_equal(bitwise_and(a.view(f"uint{bits}"), (1 << (bits - 1)) - 1), 0)
    else:
        truths = a if a.dtype == _BOOL else not_equal(a, 0)
    found = total(truths, axis, keepdims, out=None if out is None else out.view("int32"))  # bits of uint32 as well
    return found.view("uint32") if out is None else out


def _of_truth(name: str, a: Array, axis: Axis, keepdims: bool, out: Array | None, extreme: str, nothing: bool) -> Array:
    """Say what the extremes of truths do; ``nothing`` is what no elements come to."""
    axis = whole(name, axis)
    is_bool = isinstance(a, Array) and a.dtype == _BOOL
    done = run_single(extreme if is_bool else name, a, out, axis, bool(keepdims))
    if done is not None:
        return done
    reduce = _EXTREMES[extreme]
    axes, shape = checked(name, a, axis, keepdims, out, _BOOL)
    if not a.size:
        return _landed(full(a.device, shape, nothing, _BOOL), out, _BOOL)
    if not is_bool and counting.takes(a):
        if name == "all":
            return equal(count_nonzero(a, axis, keepdims), math.prod(a.shape[n] for n in axes), out=out)
        made = a.device.empty(shape, _BOOL) if out is None else out
        if counting.count(key_of(name, (a,), (out,), axis, bool(keepdims)), a, frozenset(axes), made):
            return made
    tells = a.dtype.itemsize >= WORD and (name == "any" or a.dtype.is_float)
    parts = units.of_parts(name, a, frozenset(axes)) if tells else None
    if parts is not None:
        found = _of_truth(name, parts[0], tuple(parts[1]), False, None, extreme, nothing).reshape(shape)
        return found if out is None else _landed(found, out, _BOOL)
    if not a.dtype.is_float and a.dtype != _BOOL:  # the extremes of unsigned numbers tell
        found = reduce(a.view(f"uint{8 * a.dtype.itemsize}"), axes, keepdims)
        return not_equal(found, 0, out=out)
    return reduce(a if a.dtype == _BOOL else not_equal(a, 0), axis, keepdims, out=out)


def of_floats(
    name: str,
    a: Array,
    axis: Axis,
    keepdims: bool,
    out: Array | None,
    made: Callable[[Array, tuple[int, ...]], Array],
    nothing: float | None,
) -> Array:
    """Return what ``made`` makes of float32 elements and axes, in the right type."""
    dtype = a.dtype if isinstance(a, Array) and a.dtype.name in FLOATS else dtypes.float32
    axes, shape = checked(name, a, axis, keepdims, out, dtype)
    count = math.prod(a.shape[each] for each in axes)
    if not count and nothing is None:
        raise InvalidUsageError(f"{name} of no elements: a has shape {a.shape}")
    if not count or not math.prod(shape):
        return _landed(full(a.device, shape, 0.0 if nothing is None else nothing, dtype), out, dtype)
    return _landed(made(a if a.dtype == "float32" else cast(a, "float32"), axes), out, dtype)


def checked(
    name: str, a: Array, axis: Axis, keepdims: bool, out: Array | None, dtype: DType
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes, counted from 0, and the shape of the result."""
    check_arrays(name, out, a=a)
    if a.dtype.name in LONG and (dtype in (_BOOL, a.dtype, "uint32") or not a.dtype.is_float):
        check_long(name, a.device, a.dtype)
    elif a.dtype.name not in SHORT and a.dtype.name not in NARROW:
        raise UnsupportedError(f"{name} computes {', '.join(SHORT)}, not {a.dtype}{advice(a.dtype)}")
    axes = tuple(sorted(axes_of(name, a, axis)))
    shape = tuple(1 if n in axes else size for n, size in enumerate(a.shape) if keepdims or n not in axes)
    if out is not None:
        check_out(name, out, shape, dtype)
        check_overlap(name, out, a, in_place=False)
    return axes, shape


def _landed(made: Array, out: Array | None, dtype: Any) -> Array:
    if made.dtype != dtype:
        return cast(made, dtype, out=out)
    if out is None:
        return made
    out.copy_from(made)
    return out


operations.update(prod=prod, any=any, all=all)
