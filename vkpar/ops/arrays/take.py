"""Rows of a table by their numbers, arrays one after the other, and the parts of one."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.layout import WIDE
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call.dispatch import (
    check_arrays,
    check_out,
    check_overlap,
    dispatch,
    fold_groups,
    key_of,
    run_pair,
    words,
)
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.expressions import FLOATS, INTEGERS
from vkpar.ops.elementwise.ways import binding
from vkpar.ops.quantized.weights import Quantized, take_rows
from vkpar.vulkan.memory.pool import round_up
from vkpar.vulkan.memory.subbuffers import cut

_GROUP: Final = 256  # words that a work-group makes


def take(table: Array | Quantized, indices: Array, axis: int = 0, *, out: Array | None = None) -> Array:
    """Return rows of ``table``, or what lies along another axis, by their numbers.

    Numbers below zero count from the end. A row that is not there is NaN, or zeros where the type has no NaN: the host
    does not see the numbers, so that nothing can be raised.

    Args:
        table: at least one dimension, any type; or quantised weights, whose rows are float32, or of ``out``'s type.
        indices: int32 or uint32, any shape.
        axis: which they count along; negative ones count from the end. Along others than the
            first, the table is copied with that axis first, and the result once more.
        out: where the result goes: of ``table``'s type and shape, with that of ``indices`` in the axis's place, in
            other memory.

    Raises:
        InvalidUsageError: not arrays, closed ones, several devices; a table without that axis; a wrong ``out``.
        UnsupportedError: indices of another type, or a table that a kernel of the device cannot see whole.
    """
    if type(axis) is not int:
        axis = _number("take", axis)
    if isinstance(table, Quantized):
        return _take_quantized(table, indices, axis, out)
    if axis:
        return _take_along(table, indices, axis, out)
    done = run_pair("take", table, indices, out, in_place=False)
    return _take_rows(table, indices, out) if done is None else done


def _number(operation: str, axis: Any) -> int:
    """Return the number of an axis, as NumPy's numbers are, too."""
    try:
        return operator.index(axis)
    except TypeError as error:
        raise InvalidUsageError(f"{operation}: an axis is a whole number, not {axis!r}") from error


def _take_quantized(table: Quantized, indices: Array, axis: int, out: Array | None) -> Array:
    if axis:
        raise UnsupportedError(f"take: quantised weights give rows, not what lies along axis {axis}; dequantize them")
    return take_rows(table, indices, out)


def _take_rows(table: Array, indices: Array, out: Array | None) -> Array:
    """Take along the first axis in a call that has no plan yet."""
    check_arrays("take", out, table=table, indices=indices)
    if not table.ndim:
        raise InvalidUsageError("take: the table has no dimension that rows could be taken along")
    if indices.dtype.name not in INTEGERS:
        raise UnsupportedError(f"take: indices are {' or '.join(INTEGERS)}, not {indices.dtype}; cast them")
    shape = indices.shape + table.shape[1:]
    key: tuple[object, ...] | None = key_of("take", table, indices, out)
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
    if binding(table) is None if table.is_contiguous else _is_copied_in_parts(table):
        raise UnsupportedError(f"take: a kernel of {table.device} cannot see a table of {table.nbytes} bytes at once")
    if not (table.is_contiguous and indices.is_contiguous):
        table, indices, key = table.contiguous(), indices.contiguous(), None
    if _is_direct(out):
        _take(table, indices, out, key)
    else:
        out.copy_from(take(table, indices))
    return out


def _is_copied_in_parts(table: Array) -> bool:
    """Say whether a contiguous copy would be more than a kernel can see, before one is made."""
    limits = table.device.limits
    return (
        round_up(table.nbytes, WIDE) > limits.max_storage_buffer_range or len(cut(table.nbytes, limits.max_buffer)) > 1
    )


def _take_along(table: Array, indices: Array, axis: int, out: Array | None) -> Array:
    """Take along an axis that is given."""
    check_arrays("take", out, table=table, indices=indices)
    if not -table.ndim <= axis < table.ndim:
        raise InvalidUsageError(f"take: axis {axis} of a table with {table.ndim} dimensions")
    axis %= table.ndim
    if not axis:
        return take(table, indices, out=out)
    others = [number for number in range(table.ndim) if number != axis]
    if out is not None:
        check_out("take", out, table.shape[:axis] + indices.shape + table.shape[axis + 1 :], table.dtype)
        check_overlap("take", out, table, indices, in_place=False)
    rows = take(table.transpose(axis, *others), indices)
    numbers = range(indices.ndim)
    made = rows.transpose(
        *(indices.ndim + number for number in range(axis)), *numbers, *range(indices.ndim + axis, rows.ndim)
    )
    if out is None:
        return made.contiguous()
    out.copy_from(made)
    return out


def _nothing(table: Array, out: Array) -> Array:
    """Return what a table without rows gives."""
    return out.device.array(np.broadcast_to(_missing(table), out.shape), out.dtype)


def _missing(table: Array) -> Any:
    """Return the element of a row that is not there, as NumPy holds it."""
    made = {"c": complex(math.nan, math.nan)}.get(table.dtype.numpy.kind, math.nan if table.dtype.is_float else 0)
    return np.array(made).astype(table.dtype.numpy)


def _is_direct(out: Array) -> bool:
    """Say whether the kernel can write ``out``: whole words that are all its own."""
    ends = out.nbytes % 4 == 0 or out.byte_offset + out.nbytes == out.storage.nbytes
    return out.is_contiguous and out.byte_offset % 4 == 0 and ends


def _take(table: Array, indices: Array, out: Array, key: tuple[object, ...] | None) -> None:
    """Take into an array that the kernel can write, in halves where it cannot see all of it.

    Args:
        table: contiguous, as the others are.
        indices: the numbers.
        out: where the rows go.
        key: what later calls find the plan by, where one dispatch is all.
    """
    places = [binding(array) for array in (table, indices, out)]
    if None in places or out.nbytes >= 1 << 32:
        _take_halves(table, indices.reshape(-1), out.reshape(indices.size, -1))
        return
    (seen, first), (numbers, index_first), (rows, rows_first) = (place for place in places if place is not None)
    itemsize = table.dtype.itemsize
    row = out.nbytes // indices.size
    unit = math.gcd(4, row, table.byte_offset)
    if not any(nbytes % 16 for nbytes in (row, first * itemsize, rows_first * itemsize)):
        unit = 64 if row % 64 == 0 and table.device.info.tests_lanes else 16
    word = min(max(unit, 4), 16)
    even, odd = _patterns(table, min(unit, 4))
    push = words(
        out.nbytes // unit,
        row // unit,
        table.shape[0],
        first * itemsize // min(unit, 16),
        index_first,
        rows_first * itemsize // word,
        indices.dtype == dtypes.int32,
        even,
        odd,
    )
    grid = fold_groups(table.device, -(-out.nbytes // (max(unit, 4) * _GROUP)))
    dispatch("take", f"take_u{unit}", (table, indices, out), (seen, numbers, rows), push, grid, key=key)


def _take_halves(table: Array, indices: Array, out: Array) -> None:
    """Take into a matrix of which the kernel cannot see all."""
    half = indices.size // 2 // 4 * 4  # whole words
    if half:
        _take(table, indices[:half], out[:half], None)
        _take(table, indices[half:], out[half:], None)
        return
    aside = out.device.empty(out.shape, out.dtype)  # few rows, which lie to either side of a border
    if binding(aside) is None:
        raise UnsupportedError(f"take: a kernel of {table.device} cannot see {out.nbytes} bytes of rows at once")
    _take(table, indices.copy(), aside, None)
    out.copy_from(aside)


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
    first, axis = arrays[0], _number("concatenate", axis)
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


def stack(arrays: Sequence[Array], axis: int = 0, *, out: Array | None = None) -> Array:
    """Return arrays of one shape along a new axis, as ``np.stack`` does.

    Args:
        arrays: at least one, on one device. Floats of several types become what ``np.result_type`` says.
        axis: where the result has the new axis; negative ones count from the end.
        out: where the result goes, in other memory than the arrays'.

    Raises:
        InvalidUsageError: no arrays, closed ones, several devices; several shapes; a wrong ``out``.
        UnsupportedError: types that devices do not convert to one.
    """
    if not isinstance(arrays, Sequence) or not arrays:
        raise InvalidUsageError("stack takes a sequence of at least one vkpar.Array")
    check_same_device(*arrays)
    shape, axis = arrays[0].shape, _number("stack", axis)
    for array in arrays:
        if array.shape != shape:
            raise InvalidUsageError(f"stack: arrays of one shape, not {shape} and {array.shape}")
    if not -len(shape) - 1 <= axis <= len(shape):
        raise InvalidUsageError(f"stack: axis {axis} of a result with {len(shape) + 1} dimensions")
    axis %= len(shape) + 1
    return concatenate([array[(slice(None),) * axis + (None,)] for array in arrays], axis, out=out)


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
    """
    if not isinstance(a, Array):
        raise InvalidUsageError(f"split takes a vkpar.Array, not {type(a).__name__}")
    axis = _number("split", axis)
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
