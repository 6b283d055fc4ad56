"""Regions of an array: what NumPy's basic indexing selects, as boxes of elements that lie regular steps apart."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from vkpar.errors import InvalidUsageError

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class Box:
    """Elements of an array, each axis a positive step apart; an axis spans no more than one step of the one before.

    Attributes:
        start: the first element's place in the array's memory, in elements.
        counts: how many along each axis.
        strides: elements of memory from one to the next along each axis.
        lead: the places in the region, along its first axes, that all of them share.
        first: the place of the first one along the region's next axis.
    """

    start: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    lead: tuple[int, ...] = ()
    first: int = 0

    @property
    def index(self) -> tuple[int | slice, ...]:
        """The index of the box in an array of the region's ``counts``."""
        return (*self.lead, slice(self.first, self.first + self.counts[0])) if self.counts else self.lead

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.counts)

    @property
    def span(self) -> int:
        """How many elements of memory it reaches over, from the first one to the last, gaps included."""
        return 1 + sum((count - 1) * stride for count, stride in zip(self.counts, self.strides, strict=True))

    @property
    def run(self) -> int:
        """How many elements lie side by side along the last axis."""
        return self.counts[-1] if self.strides[-1:] == (1,) else 1

    def rows(self, start: int, stop: int) -> Box:
        """Return places ``start`` to ``stop`` along the first axis."""
        counts = (stop - start, *self.counts[1:])
        return Box(self.start + start * self.strides[0], counts, self.strides, self.lead, self.first + start)

    def row(self, place: int) -> Box:
        """Return one place along the first axis, without that axis."""
        lead = (*self.lead, self.first + place)
        return Box(self.start + place * self.strides[0], self.counts[1:], self.strides[1:], lead)


@dataclass(frozen=True)
class Region:
    """What a key selects.

    Attributes:
        shape: the result's, as NumPy has it.
        box: its elements, with as few axes as will do, all steps positive.
        flips: which of the box's axes the result runs along backwards.
    """

    shape: tuple[int, ...]
    box: Box
    flips: tuple[bool, ...]

    @property
    def is_contiguous(self) -> bool:
        """True where the elements lie side by side, in order: a view can stand for them."""
        return not self.box.size or (self.box.strides in ((), (1,)) and not any(self.flips))

    def arranged(self, values: np.ndarray[Any, np.dtype[_T]]) -> np.ndarray[Any, np.dtype[_T]]:
        """Return a view of C-contiguous ``values`` of the region's shape, with the axes and the order of its box."""
        backwards: tuple[Any, ...] = tuple(slice(None, None, -1 if flip else 1) for flip in self.flips)
        return values.reshape(self.box.counts)[(*backwards, ...)]


def select(key: Any, shape: tuple[int, ...]) -> Region:
    """Return what ``key`` selects from a C-contiguous array of ``shape``.

    Args:
        key: whole numbers, slices with any step, at most one ``...``, or a tuple of these.
        shape: the array's dimensions.

    Raises:
        InvalidUsageError: another kind of key, too many of them, or a number out of range.
    """
    axes = []
    result = []
    start, stride = 0, math.prod(shape)
    for item, length in zip(_expanded(key, len(shape)), shape, strict=True):
        stride = stride // length if length else 0
        if isinstance(item, slice):
            first, count, step = sliced(item, length)
            result.append(count)
            start += (first + min(step, 0) * (count - 1)) * stride
            axes.append((count, abs(step) * stride, step < 0))
        else:
            start += _place(item, length) * stride
    if not math.prod(result):
        return Region(tuple(result), Box(0, (0,), (1,)), (False,))
    counts, strides, flips = _collapsed(axes)
    return Region(tuple(result), Box(start, counts, strides), flips)


def _expanded(key: Any, ndim: int) -> list[Any]:
    """Return an item of the key for each axis."""
    items = list(key) if isinstance(key, tuple) else [key]
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise InvalidUsageError(f"... stands in a key once: {key!r}")
    if len(items) - len(dots) > ndim:
        raise InvalidUsageError(f"too many indices for {ndim} dimensions: {key!r}")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (ndim - len(items) + len(dots)), *items[at + 1 :]]


def _place(item: Any, length: int) -> int:
    """Return the place that a whole number names."""
    try:
        if isinstance(item, (bool, np.bool_)):
            raise TypeError
        place = operator.index(item)
    except TypeError:
        raise InvalidUsageError(
            f"regions are made of whole numbers, slices and ..., not of {type(item).__name__}"
        ) from None
    if not -length <= place < length:
        raise InvalidUsageError(f"index {place} of an axis of {length}")
    return place % length


def sliced(item: slice, length: int) -> tuple[int, int, int]:
    """Return the first place, the number of places and the step of a slice."""
    try:
        places = range(*item.indices(length))
    except (TypeError, ValueError) as error:
        raise InvalidUsageError(f"{item!r}: {error}") from None
    return (places.start, len(places), places.step) if len(places) > 1 else (places.start, len(places), 1)


def _collapsed(
    axes: list[tuple[int, int, bool]],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]]:
    """Join axes that one axis can stand for, and leave out those of length 1."""
    joined: list[tuple[int, int, bool]] = []
    for count, stride, flip in axes:
        if count == 1:
            continue
        if joined and joined[-1][1:] == (count * stride, flip):
            joined[-1] = (joined[-1][0] * count, stride, flip)
        else:
            joined.append((count, stride, flip))
    counts, strides, flips = zip(*joined, strict=True) if joined else ((), (), ())
    return counts, strides, flips


def boxes(box: Box, reach: Callable[[int], int], most: int, *, ndim: int = 64) -> Iterator[Box]:
    """Cut ``box`` along its first axes into boxes, in order.

    Args:
        box: at least one element.
        reach: how many elements of memory from a place on may be spanned.
        most: how many elements one of them may have, at least one.
        ndim: how many axes one of them may have.
    """
    while True:
        if not box.counts:
            yield box
            return
        places = _fitting(box, reach(box.start), most) if len(box.counts) <= ndim else 0
        if places:
            yield box.rows(0, places)
        else:
            yield from boxes(box.row(0), reach, most, ndim=ndim)
            places = 1
        if places == box.counts[0]:
            return
        box = box.rows(places, box.counts[0])


def _fitting(box: Box, reach: int, most: int) -> int:
    """Return how many places along the first axis one box may have."""
    by_span = (reach - box.row(0).span) // box.strides[0] + 1
    return max(0, min(box.counts[0], by_span, most // math.prod(box.counts[1:])))
