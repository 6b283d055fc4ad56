"""Regions of an array: what NumPy's basic indexing selects, as boxes of elements that lie regular steps apart."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from vkpar.abi import arrays as abi
from vkpar.abi.words import pack
from vkpar.arrays.layout import Strides, c_strides, is_c_order, joined
from vkpar.arrays.shape import MOST_DIMENSIONS
from vkpar.errors import IndexingError, InvalidUsageError

if TYPE_CHECKING:
    from vkpar.vulkan.device import LogicalDevice
    from vkpar.vulkan.pipelines.kernel import Pipeline

WORD: Final = 4
_GROUP: Final = 256  # invocations of a work-group
_EACH: Final = 16  # words of an invocation of a CPU driver, which divides lane by lane

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
    """What a key selects: a view.

    Attributes:
        shape: its dimensions, as NumPy has them.
        start: its first element's place in the array's memory, in elements.
        strides: elements of memory from one place to the next along each axis.
    """

    shape: tuple[int, ...]
    start: int
    strides: Strides

    @property
    def is_contiguous(self) -> bool:
        """True where the elements lie side by side, in C order."""
        return is_c_order(self.shape, self.strides)

    @cached_property
    def box(self) -> Box:
        """Its elements, with as few axes as will do, all steps positive and falling; no element comes twice."""
        if not math.prod(self.shape):
            return Box(self.start, (0,), (1,))
        counts, strides = self._axes
        low = sum((count - 1) * min(stride, 0) for count, stride in zip(counts, strides, strict=True))
        order = self._order
        return Box(self.start + low, tuple(counts[axis] for axis in order), tuple(abs(strides[a]) for a in order))

    @cached_property
    def _axes(self) -> tuple[tuple[int, ...], Strides]:
        """The lengths and strides of its axes, joined where one can stand for two."""
        counts, (strides,) = joined(self.shape, self.strides)
        return counts, strides

    @property
    def _order(self) -> list[int]:
        """The axes by falling steps."""
        strides = self._axes[1]
        return sorted(range(len(strides)), key=lambda axis: -abs(strides[axis]))

    def arranged(self, values: np.ndarray[Any, np.dtype[_T]]) -> np.ndarray[Any, np.dtype[_T]]:
        """Return a view of C-contiguous ``values`` of the region's shape, with the axes and the order of its box."""
        if not math.prod(self.shape):
            return values.reshape((0,))
        counts, strides = self._axes
        backwards: tuple[Any, ...] = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in strides)
        return values.reshape(counts)[(*backwards, ...)].transpose(self._order)


def select(key: Any, shape: tuple[int, ...], strides: Strides | None = None) -> Region:
    """Return what ``key`` selects from an array of ``shape``, whose first element counts as place 0.

    Args:
        key: whole numbers, slices with any step, ``None`` for a new axis of length 1, at most one ``...``, or a tuple
            of these.
        shape: the array's dimensions.
        strides: its strides; None for those of C order.

    Raises:
        IndexingError: another kind of key, too many of them, or a number out of range.
        InvalidUsageError: more dimensions than NumPy has.
    """
    result = []
    kept = []
    start = 0
    axes = iter(zip(shape, c_strides(shape) if strides is None else strides, strict=True))
    for item in _expanded(key, len(shape)):
        if item is None:
            result.append(1)
            kept.append(0)
            continue
        length, stride = next(axes)
        if isinstance(item, slice):
            first, count, step = sliced(item, length)
            result.append(count)
            kept.append(step * stride)
            start += first * stride
        else:
            start += _place(item, length) * stride
    if len(result) > MOST_DIMENSIONS:
        raise InvalidUsageError(f"{len(result)} dimensions: NumPy's arrays have {MOST_DIMENSIONS} at most")
    return Region(tuple(result), start if math.prod(result) else 0, tuple(kept))


def _expanded(key: Any, ndim: int) -> list[Any]:
    """Return an item of the key for each axis, those of new axes among them."""
    items = list(key) if isinstance(key, tuple) else [key]
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexingError(f"... stands in a key once: {key!r}")
    named = len(items) - len(dots) - sum(item is None for item in items)
    if named > ndim:
        raise IndexingError(f"too many indices for {ndim} dimensions: {key!r}")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (ndim - named), *items[at + 1 :]]


def _place(item: Any, length: int) -> int:
    """Return the place that a whole number names."""
    try:
        if isinstance(item, (bool, np.bool_)):
            raise TypeError
        place = operator.index(item)
    except TypeError:
        raise IndexingError(
            f"regions are made of whole numbers, slices, None and ..., not of {type(item).__name__}; vkpar.take and "
            "vkpar.where choose elements by numbers and by masks"
        ) from None
    if not -length <= place < length:
        raise IndexingError(f"index {place} of an axis of {length}")
    return place % length


def sliced(item: slice, length: int) -> tuple[int, int, int]:
    """Return the first place, the number of places and the step of a slice."""
    try:
        places = range(*item.indices(length))
    except (TypeError, ValueError) as error:
        raise InvalidUsageError(f"{item!r}: {error}") from None
    return (places.start, len(places), places.step) if len(places) > 1 else (places.start, len(places), 1)


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


def units_of(
    counts: Sequence[int], strides: Sequence[int], itemsize: int, first: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the largest unit of 1, 2 or 4 bytes that elements are made of, and their axes in units.

    Args:
        counts: elements along each axis.
        strides: elements from one to the next.
        itemsize: bytes of an element.
        first: the byte at which the first one begins.
    """
    axes = [(count, stride * itemsize) for count, stride in zip(counts, strides, strict=True) if count > 1]
    run = axes.pop()[0] * itemsize if axes and axes[-1][1] == itemsize else itemsize
    unit = math.gcd(WORD, first, run, *(stride for _, stride in axes))
    if run > unit or not axes:
        axes.append((run // unit, unit))
    return unit, tuple(count for count, _ in axes), tuple(stride // unit for _, stride in axes)


def dispatch_of(
    logical: LogicalDevice, kernel: str, unit: int, region: abi.Region, axes: int, *, pushes: bool = False
) -> tuple[Pipeline, bytes, tuple[int, int, int]]:
    """Return the pipeline, the push constants and the numbers of work-groups that move units of a region."""
    push, each = pack(region), _EACH if logical.info.is_cpu else 1
    constants = abi.RegionConstants(axes, each)
    pipeline = logical.pipelines.shipped(f"{kernel}_u{unit}", 2, len(push), constants, pushes=pushes)
    groups = -(-region.count_ * unit // (WORD * _GROUP * each))
    rows = -(-groups // logical.info.limits.max_workgroup_count[0])
    return pipeline, push, (-(-groups // rows), rows, 1)
