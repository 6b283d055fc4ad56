"""Rows of a table by their numbers, and arrays one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array, check_same_device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops._each import binding
from vkpar.ops._launch import check_arrays, check_out, check_overlap, dispatch, fold_groups, words
from vkpar.ops.cast import cast
from vkpar.ops.expressions import INTEGERS

_GROUP: Final = 256  # words that a work-group makes


def take(table: Array, indices: Array, *, out: Array | None = None) -> Array:
    """Return rows of ``table``, along its first axis, by their numbers.

    Numbers below zero count from the end. A row that is not there is NaN, or zeros where the type has no NaN: the host
    does not see the numbers, so that nothing can be raised.

    Args:
        table: at least one dimension, any type.
        indices: int32 or uint32, any shape.
        out: where the result goes, of shape ``indices.shape + table.shape[1:]`` and ``table``'s type, in other memory.

    Raises:
        InvalidUsageError: not arrays, closed ones, several devices; a table without dimensions; a wrong ``out``.
        UnsupportedError: indices of another type, or a table that a kernel of the device cannot see whole.
    """
    check_arrays("take", out, table=table, indices=indices)
    if not table.ndim:
        raise InvalidUsageError("take: the table has no dimension that rows could be taken along")
    if indices.dtype.name not in INTEGERS:
        raise UnsupportedError(f"take: indices are {' or '.join(INTEGERS)}, not {indices.dtype}; cast them")
    shape = indices.shape + table.shape[1:]
    if out is None:
        out = table.device.empty(shape, table.dtype)
    else:
        check_out("take", out, shape, table.dtype)
        check_overlap("take", out, table, indices, in_place=False)
    if not out.size:
        return out
    if not table.size:
        out.copy_from(_nothing(table, out))
        return out
    table, indices = table.contiguous(), indices.contiguous()
    if binding(table) is None:
        raise UnsupportedError(f"take: a kernel of {table.device} cannot see a table of {table.nbytes} bytes at once")
    target = out if _is_direct(out) else out.device.empty(shape, table.dtype)
    _take(table, indices.reshape(-1), target.reshape(indices.size, -1))
    if target is not out:
        out.copy_from(target)
    return out


def _nothing(table: Array, out: Array) -> Array:
    """Return what a table without rows gives."""
    return out.device.array(np.broadcast_to(_missing(table), out.shape), out.dtype)


def _missing(table: Array) -> Any:
    """Return the element of a row that is not there, as NumPy holds it."""
    if table.dtype == dtypes.bfloat16:
        return np.uint16(0x7FC0)
    kind = table.dtype.numpy.kind
    return np.array({"f": math.nan, "c": complex(math.nan, math.nan)}.get(kind, 0)).astype(table.dtype.numpy)


def _is_direct(out: Array) -> bool:
    """Say whether the kernel can write ``out``: whole words that are all its own."""
    ends = out.nbytes % 4 == 0 or out.byte_offset + out.nbytes == out.storage.nbytes
    return out.is_contiguous and out.byte_offset % 4 == 0 and ends


def _take(table: Array, indices: Array, out: Array) -> None:
    """Take into a matrix that the kernel can write, in halves where it cannot see all of it."""
    places = [binding(array) for array in (table, indices, out)]
    if None in places or out.nbytes >= 1 << 32:
        half = indices.size // 2 // 4 * 4  # whole words
        if not half:  # few rows, which lie to either side of a border
            aside = out.device.empty(out.shape, out.dtype)
            if binding(aside) is None:
                raise UnsupportedError(
                    f"take: a kernel of {table.device} cannot see {out.nbytes} bytes of rows at once"
                )
            _take(table, indices.copy(), aside)
            out.copy_from(aside)
            return
        _take(table, indices[:half], out[:half])
        _take(table, indices[half:], out[half:])
        return
    (seen, first), (numbers, index_first), (rows, rows_first) = (place for place in places if place is not None)
    itemsize = table.dtype.itemsize
    row = out.shape[1] * itemsize
    unit = math.gcd(4, row, table.byte_offset)
    even, odd = _patterns(table, unit)
    push = words(
        out.nbytes // unit,
        row // unit,
        table.shape[0],
        first * itemsize // unit,
        index_first,
        rows_first * itemsize // 4,
        indices.dtype == dtypes.int32,
        even,
        odd,
    )
    grid = fold_groups(table.device, -(-out.nbytes // (4 * _GROUP)))
    dispatch("take", f"take_u{unit}", (table, indices, out), (seen, numbers, rows), push, grid)


def _patterns(table: Array, unit: int) -> tuple[int, int]:
    """Return the units of even and odd columns of a row that is not there."""
    element = np.array(_missing(table)).tobytes()
    repeated = element * max(2 * unit // len(element), 1)
    parts = [int.from_bytes(repeated[at : at + unit], "little") for at in range(0, len(repeated), unit)]
    return parts[0], parts[1]  # of complex numbers both parts are NaN


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
    """
    if not isinstance(arrays, Sequence) or not arrays:
        raise InvalidUsageError("concatenate takes a sequence of at least one vkpar.Array")
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
    if out is None:
        out = first.device.empty(shape, dtype)
    else:
        check_out("concatenate", out, shape, dtype)
        check_overlap("concatenate", out, *arrays, in_place=False)
    converted = [array if array.dtype == dtype else cast(array, dtype) for array in arrays]
    at = 0
    for array in converted:
        out[(slice(None),) * axis + (slice(at, at + array.shape[axis]),)].copy_from(array)
        at += array.shape[axis]
    return out
