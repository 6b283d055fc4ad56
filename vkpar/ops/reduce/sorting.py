"""Sorted elements, where they lie, and what lies at places along an axis."""

from __future__ import annotations

import operator
from typing import Final

from vkpar import dtypes
from vkpar.abi import reduce as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.operators import operations
from vkpar.dtypes import DType, uint32
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.arrays.making import arange
from vkpar.ops.arrays.take import index_words, take
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, NARROW, check_arrays, check_out, check_overlap
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.functions import (
    equal,
    greater,
    greater_equal,
    less,
    logical_and,
    logical_not,
    logical_or,
    not_equal,
    where,
)
from vkpar.ops.elementwise.mathematics import bitwise_and, bitwise_or, invert
from vkpar.ops.reduce.scans import CHUNK, PAIRS, back, checked, lying_last, scan, seen, where_ones_lie

_BITS: Final = 4  # of a pass; see shaders/sort.comp
_SIGN: Final = 1 << 31  # of the upper words of float64
_INFINITE: Final = 0x7FF00000  # the upper word of infinity
MOST: Final = 1 << 31  # elements of all rows: places are words


def sort(a: Array, axis: int | None = -1, *, out: Array | None = None) -> Array:
    """Return the elements in rising order along an axis, NaN last; equal ones keep their order.

    Args:
        a: float64, float32, float16, bfloat16, integers of 8 to 64 bits or bool, of any shape.
        axis: along which; None for all elements, in one dimension.
        out: where the result goes, of its shape and type, sharing no memory with ``a``.

    Raises:
        InvalidUsageError: not an array, a closed one; no such axis; a wrong ``out``.
        UnsupportedError: a type that devices do not compute; more than 2^31 elements, or more bytes than a kernel of
            the device can see at once.

    Examples:
        >>> vkpar.sort(device.array([3.0, 1.0, 2.0])).tolist()
        [1.0, 2.0, 3.0]
    """
    source, at = checked("sort", a, axis, out)
    if out is not None:
        check_out("sort", out, source.shape, a.dtype)
        check_overlap("sort", out, a, in_place=False)
    if not source.size:
        return source.copy() if out is None else out
    rows = lying_last(source, at)
    return back("sort", elements_at(rows, _places("sort", rows, a.dtype), known=True), source, at, out)


def argsort(a: Array, axis: int | None = -1, *, out: Array | None = None) -> Array:
    """Return where the elements lie that :func:`sort` gives, as uint32.

    Arguments and errors are those of :func:`sort`; ``out`` is of uint32.

    Examples:
        >>> vkpar.argsort(device.array([3.0, 1.0, 2.0])).tolist()
        [1, 2, 0]
    """
    source, at = checked("argsort", a, axis, out)
    if out is not None:
        check_out("argsort", out, source.shape, uint32)
        check_overlap("argsort", out, a, in_place=False)
    if not source.size:
        return source.device.empty(source.shape, uint32) if out is None else out
    return back("argsort", _places("argsort", lying_last(source, at), a.dtype), source, at, out, uint32)


def take_along_axis(a: Array, indices: Array, axis: int | None = -1, *, out: Array | None = None) -> Array:
    """Return the elements at places along an axis, as :func:`argsort` and :func:`topk` give these.

    Args:
        a: an array of any type.
        indices: integers, of ``a``'s shape but for the axis; those below 0 count from the end. A place that is
            not there gives what :func:`take` gives.
        axis: along which; None for ``a`` in one dimension.
        out: where the result goes, of the indices' shape and ``a``'s type, sharing no memory with either.

    Raises:
        InvalidUsageError: not arrays, closed ones; no such axis; shapes that do not fit; a wrong ``out``.
        UnsupportedError: indices of another type, or more elements than an int32 counts.

    Examples:
        >>> a = device.array([[3, 1, 2]])
        >>> vkpar.take_along_axis(a, vkpar.argsort(a)).tolist()
        [[1, 2, 3]]
    """
    check_arrays("take_along_axis", out, a=a, indices=indices)
    source, axis = (a.reshape(-1), 0) if axis is None else (a, axis)
    indices = index_words("take_along_axis", indices)
    if indices.ndim != source.ndim or not -source.ndim <= axis < source.ndim:
        raise InvalidUsageError(f"take_along_axis: axis {axis} of {source.shape}, and indices of {indices.shape}")
    at = axis % source.ndim
    if any(n != at and a_n != i_n for n, (a_n, i_n) in enumerate(zip(source.shape, indices.shape, strict=True))):
        raise InvalidUsageError(f"take_along_axis: {source.shape} and {indices.shape} differ not along {axis} alone")
    if out is not None:
        check_out("take_along_axis", out, indices.shape, a.dtype)
        check_overlap("take_along_axis", out, a, indices, in_place=False)
    if not indices.size:
        return source.device.empty(indices.shape, a.dtype) if out is None else out
    order = (*(n for n in range(source.ndim) if n != at), at)
    made = elements_at(source.transpose(order).contiguous(), indices.transpose(order).contiguous())
    return back("take_along_axis", made, source, at, out)


def one_hot(indices: Array, num_classes: int, dtype: object = "float32") -> Array:
    """Return rows of zeros with a one each, where ``indices`` say; a number that no row has gives zeros alone.

    Args:
        indices: integers, of any shape.
        num_classes: the length of a row, which is the last axis of the result.
        dtype: of the result.

    Raises:
        InvalidUsageError: not an array, or a negative length.
        UnsupportedError: indices of another type, or a ``dtype`` that devices do not compute.

    Examples:
        >>> vkpar.one_hot(device.array([1, 0]), 2).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    check_arrays("one_hot", None, indices=indices)
    indices = index_words("one_hot", indices)
    if operator.index(num_classes) < 0:
        raise InvalidUsageError(f"one_hot: rows of {num_classes} elements")
    classes = arange(indices.device, num_classes, dtype=indices.dtype)
    return cast(equal(indices[..., None], classes), dtype)


def nonzero(a: Array) -> tuple[Array, ...]:
    """Return where the elements lie that are not 0, in C order: for each axis their numbers along it, as uint32.

    The host reads how many they are, so that the call waits for what makes ``a``.

    Args:
        a: the array, of any computed type.

    Raises:
        InvalidUsageError: not an array, a closed one; inside a capture, where :func:`where` does with all elements what
            is to be done with some of them.
        UnsupportedError: as :func:`sort` says.

    Examples:
        >>> [places.tolist() for places in vkpar.nonzero(device.array([0, 5, 7]))]
        [[1, 2]]
    """
    source, _ = checked("nonzero", a, None)
    if not source.size:
        return tuple(a.device.empty(0, uint32) for _ in a.shape)
    if source.size > MOST:
        raise UnsupportedError(f"nonzero: places are words, which count no {source.size} elements; take parts of them")
    flags = cast(not_equal(source, 0), "uint32")
    try:
        count = int(flags.sum().item())
    except InvalidUsageError as error:
        raise InvalidUsageError(f"nonzero reads how many there are; vkpar.where takes all elements: {error}") from error
    left = where_ones_lie("nonzero", flags.reshape(1, -1)).reshape(-1)[:count]
    found: list[Array] = []
    for length in a.shape[:0:-1]:
        found.insert(0, left % length)
        left = left // length
    return (left, *found) if a.ndim else ()


def elements_at(rows: Array, places: Array, *, known: bool = False) -> Array:
    """Return the elements of rows at places in them, which are ``known`` to be there; all lie side by side."""
    length = rows.shape[-1]
    count = rows.size // max(length, 1)
    if count == 1:
        return take(rows.reshape(-1), places.reshape(-1)).reshape(places.shape)
    if rows.size > MOST:
        raise UnsupportedError(f"an int32 counts no {rows.size} elements; take parts of them")
    if places.dtype == "int32":
        places = cast(where(less(places, 0), places + length, places), "uint32")
    if not known:  # those that no row has are so far off that the array has none there, in whichever row
        places = where(less(places, length), places, rows.size)
    starts = (arange(rows.device, count, dtype="uint32") * length).reshape((*rows.shape[:-1], 1))
    return take(rows.reshape(-1), places + starts)


def _places(name: str, rows: Array, dtype: DType) -> Array:
    """Return where elements of a type go, which lie side by side; those of 8 and 16 bits as whole numbers of 32."""
    if dtype.name not in NARROW:
        return places_of(name, rows)
    bits = 8 * dtype.itemsize if dtype != "bool" else 1
    return places_of(name, rows if rows.dtype == uint32 else add(rows, 1 << (bits - 1)), bits=bits)


def places_of(name: str, rows: Array, *, largest: bool = False, bits: int = 32) -> Array:
    """Return where the elements of rows, that lie side by side, go, by the lowest ``bits`` of their keys."""
    if rows.size > MOST:
        raise UnsupportedError(f"{name}: places are words, which count no {rows.size} elements; take parts of them")
    if rows.dtype.name in PAIRS:
        return _places_of_pairs(name, rows, largest=largest)
    done = repeat("argsort", (rows,), (None,), largest, bits)
    if done is not None:
        return done[0]
    made = rows.device.empty(rows.shape, uint32)
    call = Call(name, key_of("argsort", (rows,), (None,), largest, bits), (rows,), (made,))
    record_sort(call, call.operands[0], call.results[0], largest=largest, bits=bits)
    call.keep()
    return made


def _places_of_pairs(name: str, rows: Array, *, largest: bool) -> Array:
    """Return where numbers of 64 bits go: by their lower words first, and these places by the upper words."""
    words = Array(rows.storage, rows.byte_offset, (*rows.shape, 2), uint32)
    low, high = words[..., 0].contiguous(), words[..., 1].contiguous()
    if rows.dtype.is_float:
        low, high = _ordered(low, high, largest=largest)
    lower = places_of(name, low, largest=largest)
    upper = elements_at(high, lower, known=True)
    upper = Array(upper.storage, upper.byte_offset, upper.shape, dtypes.resolve(PAIRS[rows.dtype.name]))
    return elements_at(lower, places_of(name, upper, largest=largest), known=True)


def _ordered(low: Array, high: Array, *, largest: bool) -> tuple[Array, Array]:
    """Return words that order as the float64 do whose words these are: zeros are equal, and all NaN are last."""
    size = bitwise_and(high, _SIGN - 1)
    none = logical_or(greater(size, _INFINITE), logical_and(equal(size, _INFINITE), not_equal(low, 0)))
    zero = logical_not(logical_or(size, low))
    negative = greater_equal(high, _SIGN)
    ordered = where(negative, invert(high), bitwise_or(high, _SIGN))
    high = where(none, 0 if largest else 2 * _SIGN - 1, where(zero, _SIGN, ordered))
    return where(logical_or(none, zero), 0, where(negative, invert(low), low)), high


def kind_of(array: Array) -> int:
    """Return what kernels call the type of elements that they order; see shaders/common/order.glsl."""
    return 2 if array.dtype.name in FLOATS else int(array.dtype == "int32")


def record_sort(call: Call, source: Array, target: Array, *, largest: bool = False, bits: int = 32) -> Array:
    """Record the passes of a radix sort of rows, which leave places in ``target``; return the keys in their order."""
    count = source.shape[-1]
    rows, chunks = source.size // count, -(-count // CHUNK)
    pairs = [(call.temporary((rows, count), uint32), call.temporary((rows, count), uint32)) for _ in range(2)]
    counts, sums = (call.temporary((rows, 16 * chunks), uint32) for _ in range(2))
    kind = kind_of(source)
    keys, places = source, pairs[1][1]
    passes = -(-bits // _BITS)
    for number in range(passes):
        last = number == passes - 1
        to_keys, to_places = pairs[number % 2][0], target if last else pairs[number % 2][1]
        arrays = (keys, places, to_keys, to_places)
        told = (kind, int(number == 0), int(largest))
        if chunks > 1:
            _pass(call, arrays, counts, (rows, count), number * _BITS, abi.SortConstants(*told, counts=1, alone=0))
            scan(call, counts, sums)
        _pass(call, arrays, sums, (rows, count), number * _BITS, abi.SortConstants(*told, counts=0, alone=chunks == 1))
        keys, places = to_keys, to_places
    return keys


def _pass(
    call: Call,
    arrays: tuple[Array, Array, Array, Array],
    counts: Array,
    shape: tuple[int, int],
    shift: int,
    constants: abi.SortConstants,
) -> None:
    rows, count = shape
    chunks = -(-count // CHUNK)
    found = [seen(call, array) for array in (*arrays, counts)]
    push = pack(abi.Sort(count, rows, chunks, shift, *(first for _, first in found)))
    call.dispatch("sort", (*arrays, counts), [item for item, _ in found], push, rows * chunks, constants)


operations.update(sort=sort, argsort=argsort)
