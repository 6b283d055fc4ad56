"""Rows of a table by their numbers."""

from __future__ import annotations

import math
import operator
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.abi import arrays as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.layout import WIDE
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import NARROW, check_arrays, check_out, check_overlap, widened
from vkpar.ops.call.dispatch import run_pair
from vkpar.ops.elementwise import cpu
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.expressions import INTEGERS
from vkpar.ops.elementwise.functions import equal, where
from vkpar.ops.elementwise.mathematics import right_shift
from vkpar.ops.elementwise.ways import binding
from vkpar.ops.quantized.weights import Quantized, take_rows
from vkpar.vulkan.memory.pool import round_up
from vkpar.vulkan.memory.subbuffers import cut

_WORD: Final = 1 << 32
_GROUP: Final = 256  # words that a work-group makes


def take(table: Array | Quantized, indices: Array, axis: int = 0, *, out: Array | None = None) -> Array:
    """Return rows of ``table``, or what lies along another axis, by their numbers.

    Numbers below zero count from the end. A row that is not there is NaN, or zeros where the type has no NaN: the host
    does not see the numbers, so that nothing can be raised.

    Args:
        table: at least one dimension, any type; or quantised weights, whose rows are float32, or of ``out``'s type.
        indices: integers, any shape.
        axis: which they count along; negative ones count from the end. Along others than the
            first, the table is copied with that axis first, and the result once more.
        out: where the result goes: of ``table``'s type and shape, with that of ``indices`` in the axis's place, in
            other memory.

    Raises:
        InvalidUsageError: not arrays, closed ones, several devices; a table without that axis; a wrong ``out``.
        UnsupportedError: indices of another type, or a table that a kernel of the device cannot see whole.

    Examples:
        >>> table = device.array([[1.0, 2.0], [3.0, 4.0]])
        >>> vkpar.take(table, device.array([1, 0, -1])).tolist()
        [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]
    """
    if type(axis) is not int:
        axis = axis_number("take", axis)
    if isinstance(table, Quantized):
        return _take_quantized(table, indices, axis, out)
    if not axis:
        done = run_pair("take", table, indices, out, in_place=False)
    else:
        made = repeat("take", (table, indices), (out,), axis)
        done = made[0] if made else None
    return _take_anew(table, indices, axis, out) if done is None else done


def axis_number(operation: str, axis: Any) -> int:
    """Return the number of an axis, as NumPy's numbers are, too.

    Raises:
        InvalidUsageError: no whole number.
    """
    try:
        return operator.index(axis)
    except TypeError as error:
        raise InvalidUsageError(f"{operation}: an axis is a whole number, not {axis!r}") from error


def index_words(operation: str, indices: Array) -> Array:
    """Return numbers of elements in 32 bits; those of 64 bits that these do not hold as one that no array has.

    Raises:
        UnsupportedError: no integers.
    """
    name = indices.dtype.name
    if name in INTEGERS:
        return indices
    if name in NARROW - {"bool"}:
        return cast(indices, widened(indices))
    if name not in ("int64", "uint64"):
        raise UnsupportedError(f"{operation}: indices are integers, not {indices.dtype}; cast them")
    kind, none = ("int32", _WORD // 2 - 1) if name == "int64" else ("uint32", _WORD - 1)
    if not indices.size:
        return indices.device.empty(indices.shape, kind)
    words = indices.contiguous().reshape(-1).view(kind).reshape((*indices.shape, 2))
    low, high = words[..., 0], words[..., 1]
    return where(equal(high, right_shift(low, 31) if name == "int64" else 0), low, none)


def _take_quantized(table: Quantized, indices: Array, axis: int, out: Array | None) -> Array:
    if axis:
        raise UnsupportedError(f"take: quantised weights give rows, not what lies along axis {axis}; dequantize them")
    return take_rows(table, indices, out)


def _take_anew(table: Array, indices: Array, axis: int, out: Array | None) -> Array:
    """Take in a call that has no plan yet."""
    check_arrays("take", out, table=table, indices=indices)
    if not table.ndim:
        raise InvalidUsageError("take: the table has no dimension that rows could be taken along")
    if indices.dtype.name not in INTEGERS:
        return take(table, index_words("take", indices), axis, out=out)
    if not -table.ndim <= axis < table.ndim:
        raise InvalidUsageError(f"take: axis {axis} of a table with {table.ndim} dimensions")
    at = axis % table.ndim
    shape = table.shape[:at] + indices.shape + table.shape[at + 1 :]
    if out is not None:
        check_out("take", out, shape, table.dtype)
        check_overlap("take", out, table, indices, in_place=False)
    made = table.device.empty(shape, table.dtype) if out is None else out
    if not made.size:
        return made
    if not table.size:
        made.copy_from(_nothing(table, made))
        return made
    call = Call("take", key_of("take", (table, indices), (out,), axis), (table, indices), (made,))
    numbers = range(at, at + indices.ndim)
    source = _with_first(call, call.operands[0], [at])
    target = _with_first(call, call.results[0], list(numbers))
    if binding(source) is None if source.is_contiguous else _is_copied_in_parts(table):
        raise UnsupportedError(f"take: a kernel of {table.device} cannot see a table of {table.nbytes} bytes at once")
    direct = target if _is_direct(target) else call.temporary(target.shape, target.dtype)
    _take(call, landing.packed(call, source), landing.packed(call, call.operands[1]), direct)
    landing.land(call, direct, target)
    call.keep(None if axis else key_of("take", (table, indices), (out,)))
    return made


def _with_first(call: Call, array: Array, axes: list[int]) -> Array:
    """Return a view of an array of a call with some axes before the others."""
    order = (*axes, *(number for number in range(array.ndim) if number not in axes))
    return array if list(order) == sorted(order) else call.view(array, array.transpose(order))


def _is_copied_in_parts(table: Array) -> bool:
    """Say whether a contiguous copy would be more than a kernel can see, before one is made."""
    limits = table.device.limits
    return (
        round_up(table.nbytes, WIDE) > limits.max_storage_buffer_range or len(cut(table.nbytes, limits.max_buffer)) > 1
    )


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


def _take(call: Call, table: Array, indices: Array, out: Array) -> None:
    """Take into an array that the kernel can write, in halves where it cannot see all of it."""
    places = [binding(array) for array in (table, indices, out)]
    if None in places or out.nbytes >= 1 << 32:
        call.forget()
        _take_halves(call, table, indices.reshape(-1), out.reshape(indices.size, -1))
        return
    (seen, first), (numbers, index_first), (rows, rows_first) = (place for place in places if place is not None)
    itemsize = table.dtype.itemsize
    row = out.nbytes // indices.size
    unit = math.gcd(4, row, table.byte_offset)
    if not any(nbytes % 16 for nbytes in (row, first * itemsize, rows_first * itemsize)):
        unit = cpu.run_of_rows(table.device, row)
    word = min(max(unit, 4), 16)
    even, odd = _patterns(table, min(unit, 4))
    told = abi.Take(
        count_=out.nbytes // unit,
        row=row // unit,
        height=table.shape[0],
        table_first=first * itemsize // min(unit, 16),
        index_first=index_first,
        rows_first=rows_first * itemsize // word,
        is_signed=indices.dtype == dtypes.int32,
        missing_even=even,
        missing_odd=odd,
    )
    groups = -(-out.nbytes // (max(unit, 4) * _GROUP))
    call.dispatch(f"take_u{unit}", (table, indices, out), (seen, numbers, rows), pack(told), groups)


def _take_halves(call: Call, table: Array, indices: Array, out: Array) -> None:
    """Take into a matrix of which the kernel cannot see all."""
    half = indices.size // 2 // 4 * 4  # whole words
    if half:
        _take(call, table, indices[:half], out[:half])
        _take(call, table, indices[half:], out[half:])
        return
    aside = call.temporary(out.shape, out.dtype)  # few rows, which lie to either side of a border
    if binding(aside) is None:
        raise UnsupportedError(f"take: a kernel of {table.device} cannot see {out.nbytes} bytes of rows at once")
    _take(call, table, indices.copy(), aside)
    landing.move(call, aside, out)


def _patterns(table: Array, unit: int) -> tuple[int, int]:
    """Return the units of even and odd columns of a row that is not there."""
    element = np.array(_missing(table)).tobytes()
    repeated = element * max(2 * unit // len(element), 1)
    parts = [int.from_bytes(repeated[at : at + unit], "little") for at in range(0, len(repeated), unit)]
    return parts[0], parts[1]  # of complex numbers both parts are NaN
