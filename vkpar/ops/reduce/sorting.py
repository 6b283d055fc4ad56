"""Sorted elements, where they lie, and what lies at places along an axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

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
from vkpar.ops.call.work import WARP, ceil_power, has_warps
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
from vkpar.ops.elementwise.ways import binding
from vkpar.ops.reduce import cpu
from vkpar.ops.reduce.scans import PAIRS, back, checked, lying_last, scan, seen, where_ones_lie

if TYPE_CHECKING:
    from vkpar.device import Device

_BITS: Final = 8  # of a pass; see shaders/sort.comp
_THREADS: Final = 256  # invocations of a work-group at most, and how many elements one has of a row
_ITEMS: Final = 16
_ITEMS_OF_MANY: Final = 12  # of a row of many work-groups; what 16 and 8 take is in docs/notes/operations.md
_LANES: Final = "sort_lanes"  # of CPU drivers
_ORDERS, _ALONE, _COMPARES = 1, 2, 3  # what kernels do; see shaders/common/sort.glsl
_LOW: Final = {"float16": 13, "bfloat16": 16}  # bits of their keys as float32 that say nothing
_KINDS: Final = {"uint64": 0, "int64": 1, "float64": 2}
_SIGN: Final = 1 << 31  # of the upper words of float64
_INFINITE: Final = 0x7FF00000  # the upper word of infinity
MOST: Final = 1 << 31  # elements of all rows: places are words
_Constants = abi.SortConstants | abi.SortLanesConstants


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
    if rows.dtype.name in PAIRS and not _is_seen(rows):
        return back("sort", elements_at(rows, places_of("sort", rows), known=True), source, at, out)
    direct = out is not None and out.is_contiguous and out.dtype == rows.dtype and at == source.ndim - 1
    if out is not None and direct and (rows.dtype.name not in PAIRS or _is_seen(out)):
        _sorted(rows, out, order_of(a.dtype))
        return out
    return back("sort", _sorted(rows, None, order_of(a.dtype)), source, at, out)


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
    return back("argsort", places_of("argsort", lying_last(source, at), order_of(a.dtype)), source, at, out, uint32)


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


class Order(NamedTuple):
    """How elements are ordered: by which bits of their keys, which of these turned; the largest first.

    Elements of two words are of a ``kind`` that the words do not tell; see shaders/common/order.glsl.
    """

    low: int = 0
    bits: int = 32
    flip: int = 0
    largest: bool = False
    words: int = 1
    kind: int = 0


_RISING: Final = Order()


def order_of(dtype: DType) -> Order:
    """Return how elements rise that were of a type before they had 32 bits."""
    if dtype.name in PAIRS:
        return Order(bits=64, words=2, kind=_KINDS[dtype.name])
    if dtype.name not in NARROW:
        return Order(_LOW.get(dtype.name, 0))
    bits = 8 * dtype.itemsize
    return Order(0, bits, 1 << (bits - 1) if dtype.numpy.kind == "i" else 0)


def _sorted(rows: Array, out: Array | None, order: Order) -> Array:
    """Return elements in order, in rows that lie side by side."""
    _check_size("sort", rows)
    source, target = _words(rows), None if out is None else _words(out)
    done = repeat("sort", (source,), (target,), order)
    if done is None:
        made = rows.device.empty(source.shape, source.dtype) if target is None else target
        call = Call("sort", key_of("sort", (source,), (target,), order), (source,), (made,))
        record_sort(call, call.operands[0], call.results[0], None, order)
        call.keep()
    else:
        made = done[0]
    return Array(made.storage, made.byte_offset, rows.shape, rows.dtype) if out is None else out


def _words(rows: Array) -> Array:
    """Return elements that lie side by side, those of 64 bits as two words each."""
    if rows.dtype.name not in PAIRS:
        return rows
    return Array(rows.storage, rows.byte_offset, (*rows.shape[:-1], 2 * rows.shape[-1]), uint32)


def _is_seen(rows: Array) -> bool:
    """Say whether a kernel of the device sorts elements of 64 bits, and sees all of these."""
    return cpu.sorts(rows.device, 1, 1, 1) is not None and binding(rows) is not None


def places_of(name: str, rows: Array, order: Order = _RISING) -> Array:
    """Return where the elements of rows, that lie side by side, go."""
    _check_size(name, rows)
    if rows.dtype.name in PAIRS:
        if not _is_seen(rows):
            return _places_of_pairs(name, rows, largest=order.largest)
        order = order_of(rows.dtype)._replace(largest=order.largest)
    source = _words(rows)
    done = repeat("argsort", (source,), (None,), order)
    if done is not None:
        return done[0]
    made = rows.device.empty(rows.shape, uint32)
    call = Call(name, key_of("argsort", (source,), (None,), order), (source,), (made,))
    record_sort(call, call.operands[0], None, call.results[0], order)
    call.keep()
    return made


def _check_size(name: str, rows: Array) -> None:
    if rows.size > MOST:
        raise UnsupportedError(f"{name}: places are words, which count no {rows.size} elements; take parts of them")


def _places_of_pairs(name: str, rows: Array, *, largest: bool) -> Array:
    """Return where numbers of 64 bits go: by their lower words first, and these places by the upper words."""
    words = Array(rows.storage, rows.byte_offset, (*rows.shape, 2), uint32)
    low, high = words[..., 0].contiguous(), words[..., 1].contiguous()
    if rows.dtype.is_float:
        low, high = _ordered(low, high, largest=largest)
    order = Order(largest=largest)
    lower = places_of(name, low, order)
    upper = elements_at(high, lower, known=True)
    upper = Array(upper.storage, upper.byte_offset, upper.shape, dtypes.resolve(PAIRS[rows.dtype.name]))
    return elements_at(lower, places_of(name, upper, order), known=True)


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
    return _KINDS.get(array.dtype.name, 2 if array.dtype.name in FLOATS else int(array.dtype == "int32"))


def record_sort(call: Call, source: Array, keys: Array | None, places: Array | None, order: Order) -> None:
    """Record the passes of a radix sort of rows, which leave elements in ``keys`` and their places in ``places``.

    A row that a work-group of a GPU holds is sorted in one dispatch, as are short rows on CPU drivers. Otherwise a pass
    is counting, the running sums of the counts, and writing; CPU drivers need not count where a row is one chunk.
    """
    count = source.shape[-1] // order.words
    rows = source.size // source.shape[-1]
    kernel, chunk, constants = _kernel(call.device, rows, count, order)
    chunks = -(-count // chunk)
    phase = constants.phase
    at_once = phase == _COMPARES or (chunks == 1 and kernel != _LANES)
    shifts = range(order.low, order.bits, order.bits if at_once else _BITS)
    passes = len(shifts)
    shape = (rows, source.shape[-1])
    all_keys = [*_turns(call, shape, passes - 1), None] if keys is None else _turns(call, shape, passes, keys)
    all_places = [None] * passes if places is None else _turns(call, (rows, count), passes, places)
    counts, sums = [call.temporary((rows, 256 * chunks), uint32) for _ in range(2)] if chunks > 1 else [None, None]
    kind = order.kind if order.words > 1 else kind_of(source)
    told = constants._replace(kind=kind, largest=int(order.largest), phase=0)
    left, before = source, None
    for number, shift in enumerate(shifts):
        push = abi.Sort(count, rows, chunks, shift, order.bits, order.flip)
        if counts is not None and sums is not None:
            _pass(call, kernel, (left, before, None, None, counts), push, told)
            scan(call, counts, sums)
        to, after = all_keys[number], all_places[number]
        stored = {"keys": int(to is not None), "places": int(after is not None)}
        now = told._replace(begins=int(not number), phase=phase, **stored)
        _pass(call, kernel, (left, before, to, after, sums), push, now)
        left, before = (left if to is None else to), after


def _kernel(device: Device, rows: int, count: int, order: Order) -> tuple[str, int, _Constants]:
    """Return the kernel that sorts rows, the elements of a chunk, and what it is told: of chunks, and how it sorts."""
    shape = cpu.sorts(device, rows, count, (order.bits - order.low) // _BITS)
    if shape is not None:
        threads, items, compares = shape
        phase = _COMPARES if compares else _ALONE if items >= count else _ORDERS
        return _LANES, items, abi.SortLanesConstants(0, 0, 0, phase, 0, 0, threads, items, order.words)
    threads = min(max(ceil_power(-(-count // _ITEMS)), WARP), _THREADS)
    kernel = "sort_warps" if has_warps(device.info, "ballot") else "sort_masks"
    items = ceil_power(-(-count // threads))
    items = items if items <= _ITEMS else _ITEMS_OF_MANY
    phase, warp = _ALONE if threads * items >= count else _ORDERS, device.info.features.subgroup_size
    return kernel, threads * items, abi.SortConstants(0, 0, 0, phase, 0, 0, threads, items, warp)


def _turns(call: Call, shape: tuple[int, int], passes: int, last: Array | None = None) -> list[Array | None]:
    """Return where each pass writes, in turns to one array or another, the last one to ``last`` if that is given."""
    two = [] if last is None else [last]
    two += [call.temporary(shape, uint32) for _ in range(min(passes, 2) - len(two))]
    return [two[(passes - 1 - number) % 2] for number in range(passes)]


def _pass(call: Call, kernel: str, arrays: Sequence[Array | None], push: abi.Sort, constants: _Constants) -> None:
    """Record a dispatch that is bound to elements, places, where both go, and counts, or to others in place of None."""
    known = [array for array in arrays if array is not None]
    bound = [known[0 if at < 2 else -1] if array is None else array for at, array in enumerate(arrays)]
    found = [seen(call, array) for array in bound]
    words = pack(push, abi.SortFirsts(*(first for _, first in found)))
    work = push.rows * push.chunks
    groups = -(-work // constants.threads) if kernel == _LANES else work
    call.dispatch(kernel, bound, [item for item, _ in found], words, groups, constants)


operations.update(sort=sort, argsort=argsort)
