"""Checks of what a collective is given, before anything is recorded."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vkpar.arrays.array import Array
from vkpar.comm.requests.operands import Elements, Part
from vkpar.comm.requests.there import ThereArray
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError

Arrays = Sequence[Array | None]  # by rank, as calls give them
Given = Sequence[Elements | None]  # by rank, what of them was checked


def check_list(devices: Sequence[Device], arrays: Arrays, name: str) -> list[Elements | None]:
    """Return the elements of one array per rank, each on its rank's device, and None for None.

    Raises:
        InvalidUsageError: no sequence, another number of arrays, or an array that :func:`check_array` refuses.
    """
    if not isinstance(arrays, Sequence) or len(arrays) != len(devices):
        given = len(arrays) if isinstance(arrays, Sequence) else type(arrays).__name__
        raise InvalidUsageError(f"{name} takes one array per rank, {len(devices)} of them; got {given}")
    return [
        None if array is None else check_array(devices, rank, array, f"{name}[{rank}]")
        for rank, array in enumerate(arrays)
    ]


def check_array(devices: Sequence[Device], rank: int, array: Array, name: str) -> Elements:
    """Return the elements of an array on the device of ``rank``; ``name`` is the argument's name in the message.

    Raises:
        InvalidUsageError: ``array`` is no :class:`~vkpar.Array`, lives on another device, or is a view whose elements
            do not lie side by side.
    """
    if not isinstance(array, (Array, ThereArray)):
        raise InvalidUsageError(f"{name} is a {type(array).__name__}, not a vkpar.Array; see Device.array")
    if array.device is not devices[rank]:
        owner = next((f" (rank {other})" for other, device in enumerate(devices) if device is array.device), "")
        raise InvalidUsageError(f"{name} is on {array.device!r}{owner}, but rank {rank} is {devices[rank]!r}")
    array.check_contiguous(name)
    return Elements.of(array)


def check_rank(devices: Sequence[object], rank: int) -> int:
    """Return the root ``rank`` as an int.

    Raises:
        InvalidUsageError: no whole number, or one that is no rank.
    """
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < len(devices):
        raise InvalidUsageError(f"root is a rank from 0 to {len(devices) - 1}, not {rank!r}")
    return int(rank)


def check_anywhere(devices: Sequence[Device], array: Array, name: str) -> tuple[int, Elements]:
    """Return the rank that ``array`` lives on, and its elements.

    Raises:
        InvalidUsageError: no array, one on a device of another communicator, or a view whose elements do not lie side
            by side.
    """
    if not isinstance(array, (Array, ThereArray)):
        raise InvalidUsageError(f"{name} is a {type(array).__name__}, not a vkpar.Array; see Device.array")
    array.check_contiguous(name)
    for rank, device in enumerate(devices):
        if device is array.device:
            return rank, Elements.of(array)
    raise InvalidUsageError(f"{name} is on {array.device!r}, which is no rank of this communicator")


def contributions(given: Given, count: int) -> list[Elements | None]:
    """Return what is given, None in place of what contributes nothing to a reduction of ``count`` elements."""
    return [None if each is None or (each.size == 0 and count) else each for each in given]


def check_contributors(sources: Given) -> tuple[int, ...]:
    """Return the ranks that contribute.

    Raises:
        InvalidUsageError: none does.
    """
    ranks = tuple(rank for rank, each in enumerate(sources) if each is not None)
    if not ranks:
        raise InvalidUsageError("no rank contributes: every array is None or of size zero")
    return ranks


def largest(*given: Given) -> int:
    """Return the most elements that any of the arrays has."""
    return max((each.size for part in given for each in part if each is not None), default=0)


def check_alike(count: int, dtype: DType, **named: Given) -> None:
    """Refuse arrays that have not ``count`` elements of ``dtype``; the keywords name them in the message.

    Raises:
        InvalidUsageError: an array has another count or dtype.
    """
    found = [
        (name, rank, (each.size, each.dtype))
        for name, given in named.items()
        for rank, each in enumerate(given)
        if each is not None
    ]
    for name, rank, form in found:
        if form != (count, dtype):
            others = (_has(*other) for other in found if other[2] != form)
            other = next(others, f"{count} {dtype}")
            raise InvalidUsageError(f"{_has(name, rank, form)}, {other}: counts and dtypes must agree")


def _has(name: str, rank: int, form: tuple[int, DType]) -> str:
    return f"rank {rank}'s {name} has {form[0]} {form[1]}"


def check_out(devices: Sequence[Device], out: Arrays | None, counts: Sequence[int], dtype: DType) -> list[Elements]:
    """Return the elements of ``out``, an array per rank; that of rank r has ``counts[r]`` elements of ``dtype``.

    Raises:
        InvalidUsageError: ``out`` is None, or an array is missing, on the wrong rank, or of another count or dtype.
    """
    if out is None:
        raise InvalidUsageError(f"out is needed: arrays of {list(counts)} elements, by rank")
    made = []
    for rank, (each, count) in enumerate(zip(check_list(devices, out, "out"), counts, strict=True)):
        if each is None or (each.size, each.dtype) != (count, dtype):
            given = "None" if each is None else f"{each.size} {each.dtype}"
            raise InvalidUsageError(f"out[{rank}] is {given}; this needs {count} {dtype}")
        made.append(each)
    return made


def check_counts(counts: Any, nranks: int) -> tuple[int, ...]:
    """Return ``counts``: a whole number of elements per rank.

    Raises:
        InvalidUsageError: another number of counts, or a count that is negative or no whole number.
    """
    made = tuple(counts) if isinstance(counts, Iterable) else ()
    if len(made) != nranks or not all(_is_count(count) for count in made):
        raise InvalidUsageError(f"counts takes one whole number of elements per rank, {nranks} of them; got {counts!r}")
    return tuple(map(int, made))


def check_count_rows(counts: Any, nranks: int) -> tuple[tuple[int, ...], ...]:
    """Return ``counts`` as one row per rank; a single row stands for all of them.

    Raises:
        InvalidUsageError: another number of rows, or a row that :func:`check_counts` refuses.
    """
    rows = tuple(counts) if isinstance(counts, Iterable) else ()
    if not rows or all(_is_count(item) for item in rows):
        return (check_counts(counts, nranks),) * nranks
    if len(rows) != nranks:
        raise InvalidUsageError(f"counts takes one row for all ranks, or {nranks} rows, one per rank; got {len(rows)}")
    return tuple(check_counts(row, nranks) for row in rows)


def _is_count(count: Any) -> bool:
    return isinstance(count, (int, np.integer)) and not isinstance(count, bool) and int(count) >= 0


def check_aliasing(
    rank: int, sources: Sequence[Part], targets: Sequence[Part], partners: Mapping[int, int] | None = None
) -> None:
    """Refuse destinations that share bytes with one another, or with a source that is not exactly in their place.

    Args:
        rank: the rank whose arrays they are.
        sources: the arrays that the rank gives.
        targets: the arrays that the rank gets.
        partners: by the start of a source, the start of the target that may take its place; a source that is not named
            may be overwritten by the target of the same start alone.

    Raises:
        InvalidUsageError: such an overlap.
    """
    placed = sorted((*_place(elements), start) for start, elements in targets if elements.size)
    for (memory, _, end, _), (other, first, _, _) in itertools.pairwise(placed):
        if memory == other and first < end:
            raise InvalidUsageError(f"rank {rank}: two destinations overlap")
    begins = [target[:2] for target in placed]
    for source in sources:
        if not source.elements.size:
            continue
        memory, first, end = _place(source.elements)
        after = bisect.bisect_right(begins, (memory, first))
        for other, begin, stop, start in placed[max(0, after - 1) : after + 1]:  # no others can overlap it
            if other != memory or begin >= end or stop <= first:
                continue
            if (begin, stop) != (first, end):
                raise InvalidUsageError(f"rank {rank}: out overlaps the array in part; it must be the same or apart")
            if start != (partners or {}).get(source.start, source.start):
                raise InvalidUsageError(
                    f"rank {rank}: a destination overlaps what is sent elsewhere; they must be apart"
                )


def _place(elements: Elements) -> tuple[int, int, int]:
    """Return what stands for the memory of elements, and their first byte there and the one after their last."""
    return id(elements.memory), elements.first, elements.end
