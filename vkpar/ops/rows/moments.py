"""Variances and deviations: of rows in one dispatch of the kernel of norms, else by sums and functions by element."""

from __future__ import annotations

import math
import operator
from typing import Final

from vkpar import dtypes
from vkpar.abi import rows as abi
from vkpar.arrays.array import Array
from vkpar.arrays.operators import operations
from vkpar.errors import InvalidUsageError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, INTEGERS, NARROW, SHORT
from vkpar.ops.elementwise.cast import cast_in
from vkpar.ops.elementwise.functions import divide, sqrt
from vkpar.ops.elementwise.run import launch
from vkpar.ops.elementwise.shipped import SHIPPED
from vkpar.ops.reduce import once
from vkpar.ops.reduce.axes import Axis, whole
from vkpar.ops.reduce.passes import Reduction
from vkpar.ops.reduce.reductions import sum as total
from vkpar.ops.reduce.statistics import checked, of_floats
from vkpar.ops.reduce.units import groups_of
from vkpar.ops.rows import rows
from vkpar.ops.rows.rows import Binding

_LONGEST: Final = 1 << 14  # elements of a row, of which a lane then adds up no more than the bound of errors allows
_MOMENTS: Final = {"var": 1, "std": 2}


def var(a: Array, axis: Axis = None, keepdims: bool = False, *, ddof: int = 0, out: Array | None = None) -> Array:
    """Return the variances of elements along axes: the means of squared distances from the mean.

    They are made in float32 whatever stores the elements, of distances from the mean, and rounded once. With n terms,
    D as :func:`sum` has it and m the largest magnitude, the error is at most (D + 5) * 2^-23 * variance +
    ((D + 3) * 2^-23 * m)^2.

    Args:
        a: float32, float16, bfloat16, int32 or uint32, of any shape.
        axis: an axis, several, or None for all.
        keepdims: reduced axes stay, with length 1.
        ddof: the divisor is the number of terms less this; where that is not above 0 the result is NaN or infinity.
        out: where the result goes, of its shape, of ``a``'s type (float32 of integers), sharing no memory with ``a``.

    Raises:
        InvalidUsageError: not an array, a closed one; no such axis, or one named twice; a ``ddof`` that is no whole
            number; a wrong ``out``.
        UnsupportedError: a type that devices do not compute, such as float64.

    Examples:
        >>> float(vkpar.var(device.array([1.0, 2.0, 3.0, 4.0])))
        1.25
    """
    found = _along("var", a, axis, keepdims, ddof, out)
    if found is not None:
        return found

    def made(floats: Array, axes: tuple[int, ...]) -> Array:
        count = math.prod(floats.shape[each] for each in axes)
        middle = divide(total(floats, axes, True), float(max(count, 1)))
        away = SHIPPED["squared_distance"](floats, middle)
        return divide(total(away, axes, keepdims), float(max(count - ddof, 0)))

    return of_floats("var", a, axis, keepdims, out, made, math.nan)


def std(a: Array, axis: Axis = None, keepdims: bool = False, *, ddof: int = 0, out: Array | None = None) -> Array:
    """Return the standard deviations of elements along axes: the roots of what :func:`var` gives.

    Arguments and errors are those of :func:`var`.

    Examples:
        >>> float(vkpar.std(device.array([1.0, 3.0])))
        1.0
    """
    found = _along("std", a, axis, keepdims, ddof, out)
    if found is not None:
        return found

    def made(floats: Array, axes: tuple[int, ...]) -> Array:
        return sqrt(var(floats, axes, keepdims, ddof=ddof))

    return of_floats("std", a, axis, keepdims, out, made, math.nan)


def _along(name: str, a: Array, axis: Axis, keepdims: bool, ddof: int, out: Array | None) -> Array | None:
    """Return the moments along an axis, or several that lie side by side; None, and nothing done, of anything else."""
    axis = whole(name, axis)
    try:
        ddof = operator.index(ddof)
    except TypeError as error:
        raise InvalidUsageError(f"{name}: ddof is a whole number, not {ddof!r}") from error
    done = repeat(name, (a,), (out,), axis, bool(keepdims), ddof)
    if done is not None:
        return done[0]
    if not isinstance(a, Array) or a.dtype.name not in (*FLOATS, *INTEGERS, *NARROW):
        return None
    dtype = a.dtype if a.dtype.name in FLOATS else dtypes.float32
    axes, shape = checked(name, a, axis, keepdims, out, dtype)
    groups = groups_of(a.shape, frozenset(axes))
    at = next((number for number, (_, gone) in enumerate(groups) if gone), len(groups))
    if not a.size or [gone for _, gone in groups].count(True) != 1 or groups[at][0] <= ddof:
        return None
    length = groups[at][0]
    made = a.device.empty(shape, dtype) if out is None else out
    call = Call(name, key_of(name, (a,), (out,), axis, bool(keepdims), ddof), (a,), (made,))
    source, result = landing.packed(call, call.operands[0]), call.results[0]
    if a.dtype.name not in FLOATS:
        floats = call.temporary(a.shape, dtypes.float32)
        cast_in(call, source, floats)
        source = floats
    direct = dtype == dtypes.float32 and result.is_contiguous
    target = result if direct else call.temporary(shape, dtypes.float32)
    if at == len(groups) - 1 and length <= _LONGEST:
        _at_once(call, name, source, target, length, float(length - ddof))
    else:
        blocks = math.prod(size for size, _ in groups[:at])
        _in_passes(call, name, source, target, (blocks, length, a.size // length // blocks), float(length - ddof))
    landing.land(call, target, result)
    call.keep()
    return made


def _at_once(call: Call, name: str, source: Array, target: Array, length: int, divisor: float) -> None:
    """Record the moments of rows, which a work-group reads once, or twice."""
    one = call.view(source, Array(source.storage, source.byte_offset, (1,), source.dtype))  # which nobody reads
    bindings = [Binding("x", source, length), Binding("w", one, 0), Binding("b", one, 0)]
    constants = (*abi.NormConstants(), *abi.MomentConstants(_MOMENTS[name]))
    kernel, count = f"norm_layer_{SHORT[source.dtype.name]}", source.size // length
    rows.launch(call, kernel, count, length, [*bindings, Binding("y", target, 1, True)], divisor, lambda _: constants)


def _in_passes(
    call: Call, name: str, source: Array, target: Array, shape: tuple[int, int, int], divisor: float
) -> None:
    """Record the moments along the middle axis of ``shape``: means, squared distances from these, and their sums."""
    blocks, length, columns = shape
    if source.dtype != dtypes.float32:
        floats = call.temporary(source.shape, dtypes.float32)
        call.convert(source, floats)
        source = floats
    middle, away = (call.temporary((blocks, n, columns), dtypes.float32) for n in (1, length))
    mean = Reduction("sum", mean=True)
    once.fold(call, mean, source, middle, shape, divisor=float(length))
    distance, root = SHIPPED["squared_distance"], SHIPPED["sqrt"]
    seen = call.view(source, source.reshape(shape))
    launch(distance, distance.meaning([seen, middle]), [seen, middle], [away], call=call)
    once.fold(call, mean, away, target, shape, divisor=divisor)
    if name == "std":
        launch(root, root.meaning([target]), [target], [target], call=call)


operations.update(var=var, std=std)
