"""Arrays one after the other, and the parts of one."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Final

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array, check_same_device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.arrays.take import axis_number
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import check_arrays, check_out, check_overlap
from vkpar.ops.elementwise import cpu
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.expressions import FLOATS, INTEGERS
from vkpar.ops.elementwise.functions import multiply

_TWO: Final = 2
_TWICE: Final = {1: ("uint8", "uint16"), 2: ("uint16", "uint32")}  # whole numbers of so many bytes, and of twice that


def concatenate(arrays: Sequence[Array], axis: int = 0, *, out: Array | None = None) -> Array:
    """Return arrays one after the other along an axis, as ``np.concatenate`` does.

    Args:
        arrays: at least one, on one device, of shapes that differ along ``axis`` alone. Floats of several types become
            what ``np.result_type`` says.
        axis: negative ones count from the end.
        out: where the result goes, in other memory than the arrays'.

    Raises:
        InvalidUsageError: no arrays, closed ones, several devices; shapes that do not fit; a wrong ``out``.
        UnsupportedError: types that devices do not convert to one.

    Examples:
        >>> vkpar.concatenate([device.array([1, 2]), device.array([3])]).tolist()
        [1, 2, 3]
    """
    if not isinstance(arrays, Sequence) or not arrays:
        raise InvalidUsageError("concatenate takes a sequence of at least one vkpar.Array")
    if type(axis) is not int:
        axis = axis_number("concatenate", axis)
    done = repeat("concatenate", arrays, (out,), axis)
    if done is not None:
        return done[0]
    check_same_device(*arrays)
    check_arrays("concatenate", out, **{f"arrays[{number}]": array for number, array in enumerate(arrays)})
    first = arrays[0]
    if not -first.ndim <= axis < first.ndim:
        raise InvalidUsageError(f"concatenate: axis {axis} of arrays with {first.ndim} dimensions")
    axis %= first.ndim
    rest = first.shape[:axis], first.shape[axis + 1 :]
    for array in arrays:
        if array.ndim != first.ndim or (array.shape[:axis], array.shape[axis + 1 :]) != rest:
            raise InvalidUsageError(f"concatenate: {first.shape} and {array.shape} differ not along axis {axis} alone")
    shape = (*rest[0], sum(array.shape[axis] for array in arrays), *rest[1])
    dtype = dtypes.result_type(*(array.dtype for array in arrays))
    kinds = dict.fromkeys(array.dtype.name for array in arrays)
    if len(kinds) > 1 and set(INTEGERS) & kinds.keys() and kinds.keys() <= {*FLOATS, *INTEGERS}:
        raise UnsupportedError(f"concatenate: {' with '.join(kinds)} would be {dtype}: cast one first")
    if out is not None:
        check_out("concatenate", out, shape, dtype)
        check_overlap("concatenate", out, *arrays, in_place=False)
    made = first.device.empty(shape, dtype) if out is None else out
    call = Call("concatenate", key_of("concatenate", arrays, (out,), axis), arrays, (made,))
    result, at = call.results[0], 0
    for array in call.operands:
        part = result[(slice(None),) * axis + (slice(at, at + array.shape[axis]),)]
        if array.size:
            landing.move(call, _converted(call, array, dtype), call.view(result, part))
        at += array.shape[axis]
    call.keep()
    return made


def _converted(call: Call, array: Array, dtype: DType) -> Array:
    """Return an array of a call in another type."""
    if array.dtype == dtype:
        return array
    if not (array.dtype.name in FLOATS and dtype.name in FLOATS):
        call.forget()
        return cast(array, dtype)
    made = call.temporary(array.shape, dtype)
    call.convert(landing.packed(call, array), made)
    return made


def stack(arrays: Sequence[Array], axis: int = 0, *, out: Array | None = None) -> Array:
    """Return arrays of one shape along a new axis, as ``np.stack`` does.

    Args:
        arrays: at least one, on one device. Floats of several types become what ``np.result_type`` says.
        axis: where the result has the new axis; negative ones count from the end.
        out: where the result goes, in other memory than the arrays'.

    Raises:
        InvalidUsageError: no arrays, closed ones, several devices; several shapes; a wrong ``out``.
        UnsupportedError: types that devices do not convert to one.

    Examples:
        >>> vkpar.stack([device.array([1, 2]), device.array([3, 4])]).tolist()
        [[1, 2], [3, 4]]
    """
    if not isinstance(arrays, Sequence) or not arrays:
        raise InvalidUsageError("stack takes a sequence of at least one vkpar.Array")
    check_same_device(*arrays)
    shape, axis = arrays[0].shape, axis_number("stack", axis)
    for array in arrays:
        if array.shape != shape:
            raise InvalidUsageError(f"stack: arrays of one shape, not {shape} and {array.shape}")
    if not -len(shape) - 1 <= axis <= len(shape):
        raise InvalidUsageError(f"stack: axis {axis} of a result with {len(shape) + 1} dimensions")
    axis %= len(shape) + 1
    if axis == len(shape) and cpu.stacks_first(arrays[0].device, len(arrays) * arrays[0].size):
        return _beside(arrays, out)
    return concatenate([array[(slice(None),) * axis + (None,)] for array in arrays], axis, out=out)


def _beside(arrays: Sequence[Array], out: Array | None) -> Array:
    """Stack arrays along a new last axis: in turns, or along the first one and turned, in parts that a kernel sees."""
    shape, dtype = (*arrays[0].shape, len(arrays)), dtypes.result_type(*(array.dtype for array in arrays))
    if out is not None:
        check_out("stack", out, shape, dtype)
        check_overlap("stack", out, *arrays, in_place=False)
    device = arrays[0].device
    if math.prod(shape) * dtype.itemsize > device.limits.max_storage_buffer_range and shape[0] > 1:
        made = device.empty(shape, dtype) if out is None else out
        for rows in (slice(shape[0] // 2), slice(shape[0] // 2, None)):
            _beside([array[rows] for array in arrays], made[rows])
        return made
    found = in_turns(arrays)
    if found is None:
        found = concatenate([array[None] for array in arrays]).transpose((*range(1, len(shape)), 0))
    if out is None:
        return found.contiguous()
    out.copy_from(found)
    return out


def in_turns(arrays: Sequence[Array]) -> Array | None:
    """Return the elements of arrays of one shape in turns, along a new last axis; None where another way is best.

    Two elements of 8 or 16 bits are one of twice as many, of which CPU drivers write whole words.
    """
    a, b = arrays[0], arrays[-1]
    size = a.dtype.itemsize
    if len(arrays) != _TWO or size not in _TWICE or a.dtype != b.dtype or not cpu.stacks_first(a.device, 2 * a.size):
        return None
    narrow, wide = map(dtypes.resolve, _TWICE[size])
    sides = [array.contiguous() for array in ((a,) if b is a else (a, b))]
    first, *others = [cast(Array(side.storage, side.byte_offset, a.shape, narrow), wide) for side in sides]
    above = 1 << 8 * size
    if others:
        made = add(first, multiply(others[0], above, out=others[0]), out=first)
    else:
        made = multiply(first, above + 1, out=first)
    return Array(made.storage, made.byte_offset, (*a.shape, 2), a.dtype)


def split(a: Array, sections_or_indices: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Return views of parts of an array that lie one after the other along an axis, as ``np.split`` does.

    ``vkpar.parallel`` splits over devices; this copies nothing.

    Args:
        a: the array.
        sections_or_indices: into how many equal parts; or where parts end and the next ones begin, as ``[2, 5]`` gives
            ``a[:2]``, ``a[2:5]`` and ``a[5:]``.
        axis: which is cut; negative ones count from the end.

    Raises:
        InvalidUsageError: not an array; no such axis; a number of parts that does not divide it; no whole numbers.

    Examples:
        >>> [part.tolist() for part in vkpar.split(device.array([1, 2, 3, 4]), 2)]
        [[1, 2], [3, 4]]
    """
    if not isinstance(a, Array):
        raise InvalidUsageError(f"split takes a vkpar.Array, not {type(a).__name__}")
    axis = axis_number("split", axis)
    if not -a.ndim <= axis < a.ndim:
        raise InvalidUsageError(f"split: axis {axis} of an array with {a.ndim} dimensions")
    axis %= a.ndim
    length = a.shape[axis]
    ends = _ends(sections_or_indices, length)
    before = (slice(None),) * axis
    return [a[(*before, slice(start, end))] for start, end in zip((0, *ends), (*ends, length), strict=True)]


def _ends(sections_or_indices: int | Sequence[int], length: int) -> list[int]:
    """Return where all parts but the last one end."""
    try:
        if isinstance(sections_or_indices, Sequence | np.ndarray):
            return [operator.index(number) for number in sections_or_indices]
        sections = operator.index(sections_or_indices)
    except TypeError as error:
        raise InvalidUsageError(
            f"split takes a whole number of parts, or whole numbers where to cut, not {sections_or_indices!r}"
        ) from error
    if sections < 1 or length % sections:
        raise InvalidUsageError(f"split: {length} elements along the axis are not {sections} equal parts")
    return [length // sections * number for number in range(1, sections)]
