"""The largest elements along an axis, or the least ones, without sorting the others."""

from __future__ import annotations

import operator
from typing import Final

from vkpar.abi import reduce as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.region import WORD
from vkpar.dtypes import uint32
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.elementwise.ways import binding
from vkpar.ops.reduce import cpu
from vkpar.ops.reduce.scans import PAIRS, back, checked, lying_last, seen
from vkpar.ops.reduce.sorting import MOST as MOST_PLACES
from vkpar.ops.reduce.sorting import Order, elements_at, kind_of, places_of

MOST: Final = 512  # elements that a work-group finds; see shaders/topk.comp
_THREADS: Final = (32, 64, 128, 256)
_HANDS: Final = 6  # of an invocation
_TURNS: Final = 32  # elements of a hand at most: numbers of a chunk's elements have 16 bits


def topk(a: Array, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """Return the ``k`` largest elements along an axis, falling, or the least ones, rising; and where they lie.

    NaN is last in either case, and of equal elements the first ones are taken.

    Args:
        a: float64, float32, float16, bfloat16, integers of 8 to 64 bits or bool.
        k: how many, from 0 to the length of the axis.
        axis: along which.
        largest: the least ones otherwise.

    Returns:
        The elements, of ``a``'s type, and their places, of uint32.

    Raises:
        InvalidUsageError: not an array, a closed one; no such axis, or a ``k`` that it has not.
        UnsupportedError: as :func:`sort` says.

    Examples:
        >>> values, places = vkpar.topk(device.array([3.0, 1.0, 2.0]), 2)
        >>> values.tolist(), places.tolist()
        ([3.0, 2.0], [0, 2])
    """
    source, at = checked("topk", a, axis)
    try:
        k = operator.index(k)
    except TypeError as error:
        raise InvalidUsageError(f"topk takes a whole number, not {k!r}") from error
    if not 0 <= k <= source.shape[at]:
        raise InvalidUsageError(f"topk: there are no {k} elements along an axis of {source.shape[at]}")
    shape = (*source.shape[:at], k, *source.shape[at + 1 :])
    if not k or not source.size:
        return source.device.empty(shape, a.dtype), source.device.empty(shape, uint32)
    rows = lying_last(source, at)
    found = first_of(rows, k, largest=bool(largest)) if k <= _most(rows) else None
    values, places = found or _sorted(rows, k, largest=bool(largest))
    return back("topk", values, source, at, None), back("topk", places, source, at, None, uint32)


def _sorted(rows: Array, k: int, *, largest: bool) -> tuple[Array, Array]:
    """Return what comes first in order."""
    places = places_of("topk", rows, Order(largest=largest))[..., :k].contiguous()
    return elements_at(rows, places, known=True), places


def _most(rows: Array) -> int:
    """Return how many elements a work-group finds, whose shared memory holds pairs of words less often."""
    return MOST if rows.dtype.itemsize == WORD else 2 * _groups(rows)[-1]


def _groups(rows: Array) -> tuple[int, ...]:
    """Return the invocations that work-groups may have."""
    words = rows.dtype.itemsize // WORD
    most = rows.device.limits.max_shared_memory // WORD
    return tuple(n for n in _THREADS if (2 + _HANDS * (1 + words)) * n + 128 * (1 + words) + 8 <= most)


def first_of(rows: Array, k: int, *, largest: bool) -> tuple[Array, Array] | None:
    """Return the ``k`` largest or least elements of rows that lie side by side, at most ``MOST``, and their places.

    Each dispatch leaves the first ones of chunks, until a row is one chunk. None of 64 bits that no kernel can see.
    """
    if rows.size > MOST_PLACES:
        raise UnsupportedError(f"topk: places are words, which count no {rows.size} elements; take parts of them")
    done = repeat("topk", (rows,), (None, None), k, largest)
    if done is not None:
        return done[0], done[1]
    shape = (*rows.shape[:-1], k)
    made = rows.device.empty(shape, rows.dtype), rows.device.empty(shape, uint32)
    if rows.dtype.name in PAIRS and not all(map(binding, (rows, *made))):
        return None
    call = Call("topk", key_of("topk", (rows,), (None, None), k, largest), (rows,), made)
    (source,), (values, places) = call.operands, call.results
    length = count = rows.shape[-1]
    number = rows.size // length
    words, each = rows.dtype.itemsize // WORD, cpu.in_order_at_once(rows.device)
    left = source
    while True:
        chunk, threads = _shape(count, k, _groups(rows))
        chunks = -(-count // chunk)
        ends = chunks == 1
        found = places if ends else call.temporary((number, chunks * k), uint32)
        arrays = (source, left, values if ends else found, found)
        places_seen = [seen(call, array) for array in arrays]
        firsts = (first * array.dtype.itemsize // WORD for array, (_, first) in zip(arrays, places_seen, strict=True))
        push = pack(abi.Topk(count, number, chunks, chunk, k, length, *firsts))
        constants = abi.TopkConstants(kind_of(rows), largest, left is source, ends, threads, words, each)
        call.dispatch("topk", arrays, [item for item, _ in places_seen], push, number * chunks, constants)
        if ends:
            break
        left, count = found, chunks * k
    call.keep()
    return made


def _shape(count: int, k: int, groups: tuple[int, ...]) -> tuple[int, int]:
    """Return how many of a row's elements a work-group takes, and its invocations.

    What the hands that it chooses hold is no more than all hands are; the fewest invocations that do all of a row win.
    """
    for threads in groups:
        most = _HANDS * threads * min(_HANDS * threads // k, _TURNS)
        if count <= most and k <= 2 * threads:
            break
    return -(-count // -(-count // most)), threads
