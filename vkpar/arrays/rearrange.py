"""Copies on the device between views of any strides and elements that lie side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from vkpar.abi import arrays as abi
from vkpar.arrays.layout import WIDE, Strides, c_strides, extent, joined
from vkpar.arrays.region import WORD, dispatch_of, units_of
from vkpar.arrays.storage import Storage
from vkpar.arrays.views import Viewable
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.accounting import ARRAYS
from vkpar.vulkan.memory.pool import round_up

if TYPE_CHECKING:
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.memory.subbuffers import SubBuffers
    from vkpar.vulkan.pipelines.kernel import Pipeline

_MANY: Final = 64  # parts, from which on it pays to move a view in halves, and each twice

# On CPU drivers a row costs as much as 2 KiB of it where the driver copies it; a kernel takes ten times as long a byte.
_ROW: Final = 128  # elements, from which on the driver does
_ROWS_NBYTES: Final = 1 << 20  # of all: fewer are not worth what the host does
_MOST_ROWS: Final = 1 << 14  # at once


class _Part(NamedTuple):
    """Elements of a view that a kernel moves at once, in units of 1, 2 or 4 bytes.

    Attributes:
        first: the place of the first unit in the view's memory.
        counts: how many units along each axis.
        strides: units from one place to the next.
        at: how many units of the view come before.
    """

    first: int
    counts: tuple[int, ...]
    strides: Strides
    at: int


class Sent(NamedTuple):
    """A dispatch: its kernel, what that sees of the view and of the packed elements, push constants, work-groups."""

    pipeline: Pipeline
    ranges: list[BufferRange]
    push: bytes
    groups: tuple[int, int, int]


def gather(view: Viewable, packed: Viewable) -> None:
    """Copy a view to ``packed``, contiguous and of as many elements of the same size, which shares no memory with it.

    Both have elements and are on one device.
    """
    _rearrange(view, packed, "region_pack")


def scatter(packed: Viewable, view: Viewable) -> None:
    """Copy ``packed``, as of :func:`gather`, to a view that shows no element twice."""
    _rearrange(view, packed, "region_unpack")


def alone(view: Viewable, packed: Viewable, kernel: str) -> Sent | None:
    """Return the one dispatch that copies between a view and ``packed``; None where it takes several, or more."""
    return _Move(view, packed, kernel).alone()


def copy_rows(source: Viewable, target: Viewable) -> bool:
    """Copy a view to another of as many elements, in other memory, where a CPU driver's own copies of rows are best.

    Returns:
        False, and nothing done, elsewhere: on GPUs, of short rows, of few bytes, of memory in several buffers.
    """
    found = _rows_of(source, target)
    if found is None:
        return False
    counts, axes = found
    there, here, size = source.storage, target.storage, source.dtype.itemsize
    places = np.array([[there.base + source.byte_offset, here.base + target.byte_offset]], np.int64)
    for count, step in zip(counts[:-1], axes, strict=True):
        places = (places[:, None, :] + np.arange(count)[:, None] * (np.array(step) * size)).reshape(-1, 2)
    rows = np.empty((len(places), 5), np.uint64)
    rows[:, 0], rows[:, 2], rows[:, 4] = there.number, here.number, counts[-1] * size
    rows[:, [1, 3]] = places
    stream, pins = source.storage.device.logical.stream, (there.ready, here.ready)
    for first in range(0, len(rows), _MOST_ROWS):
        part = rows[first : first + _MOST_ROWS]
        stream.copy_parts(len(part), part.tobytes(), pins)
    return True


def goes_by_rows(source: Viewable, target: Viewable) -> bool:
    """Say whether :func:`copy_rows` copies a view to another."""
    return _rows_of(source, target) is not None


def _rows_of(source: Viewable, target: Viewable) -> tuple[tuple[int, ...], list[tuple[int, int]]] | None:
    """Return the sizes of the axes of both, rows last, and the elements from one to the next of each but these."""
    if not source.storage.device.logical.info.is_cpu or source.nbytes < _ROWS_NBYTES:
        return None
    if source.storage.ready is None or target.storage.ready is None:
        return None
    shape = source.shape if target.steps is None else target.shape
    if source.steps is not None and source.shape != shape:
        return None
    strides = (view.strides if view.shape == shape else c_strides(shape) for view in (source, target))
    counts, (first, second) = joined(shape, *strides)
    if not counts or counts[-1] < _ROW or (first[-1], second[-1]) != (1, 1):
        return None
    return counts, list(zip(first[:-1], second[:-1], strict=True))


def _rearrange(view: Viewable, packed: Viewable, kernel: str) -> None:
    """Copy between a view and ``packed``, at once or half by half: each half by way of memory of its own."""
    move = _Move(view, packed, kernel)
    axis = move.far_axis()
    if axis is None:
        move.run()
        return
    for part, among in _halves(view, packed, axis):
        source, target = (part, among) if kernel == "region_pack" else (among, part)
        aside = type(packed)(Storage(packed.storage.device, part.nbytes), 0, part.shape, part.dtype)
        gather(source, aside)
        scatter(aside, target)


def _halves(view: Viewable, packed: Viewable, axis: int) -> Iterator[tuple[Viewable, Viewable]]:
    """Yield the two halves of a view along an axis, and the same elements of ``packed``."""
    shape, steps = view.shape, c_strides(view.shape)
    middle = (shape[axis] + 1) // 2
    for first, count in ((0, middle), (middle, shape[axis] - middle)):
        part = (*shape[:axis], count, *shape[axis + 1 :])
        yield (
            view.strided(part, view.strides, first * view.strides[axis]),
            packed.strided(part, steps, first * steps[axis]),
        )


class _Move:
    """A copy between a view and packed elements; see :func:`gather`."""

    def __init__(self, view: Viewable, packed: Viewable, kernel: str) -> None:
        self._device = view.storage.device
        self._logical = self._device.logical
        self._view, self._packed, self._kernel = view, packed, kernel
        self._memory = view.storage.memory
        self._most = self._logical.info.limits.max_storage_buffer_range // WIDE * WIDE
        counts, (strides,) = joined(view.shape, view.strides)
        self._unit, counts, strides = units_of(counts, strides, view.dtype.itemsize, view.byte_offset)
        self._whole = _Part(view.byte_offset // self._unit, counts, strides, 0)

    def far_axis(self) -> int | None:
        """Return the axis that reaches furthest where parts, cut along the axes before it, would be many and small.

        Such as of the transpose of a few long rows, each binding of which holds some elements of every column.
        """
        if self._fits(self._whole):
            return None
        shape, strides = self._view.shape, self._view.strides
        reach = [(count - 1) * abs(stride) for count, stride in zip(shape, strides, strict=True)]
        axis = reach.index(max(reach))
        return axis if math.prod(shape[:axis]) > _MANY else None

    def alone(self) -> Sent | None:
        """Return the dispatch that moves everything where it lies; None where there is no such."""
        start, nbytes = self._packed.byte_offset, math.prod(self._whole.counts) * self._unit
        if not (self._fits(self._whole) and self._is_direct(start, nbytes)):
            return None
        return self._sent(self._whole, self._packed.storage.memory, start)

    def run(self) -> None:
        """Move all parts."""
        for part in _parts(self._whole, self._fits):
            nbytes = math.prod(part.counts) * self._unit
            start = self._packed.byte_offset + part.at * self._unit
            if self._is_direct(start, nbytes):
                self._dispatch(part, self._packed.storage.memory, start)
                continue
            aside = self._device.allocate_array(nbytes, None, ARRAYS)
            place, held = self._packed.storage.memory.ranges(start, nbytes), aside.ranges(0, nbytes)
            if self._kernel == "region_pack":
                self._dispatch(part, aside, 0)
                self._logical.copy(held, place)
            else:
                self._logical.copy(place, held)
                self._dispatch(part, aside, 0)

    def _span(self, part: _Part) -> tuple[int, int]:
        """Return the first byte of the memory that a part of the view reaches, and the one after the last."""
        low, high = extent(part.counts, part.strides)
        return (part.first + low) * self._unit, (part.first + high) * self._unit

    def _fits(self, part: _Part) -> bool:
        """Say whether a kernel can see all of a part, and write it as words."""
        nbytes = round_up(math.prod(part.counts) * self._unit, WIDE)
        most = min(self._most, self._logical.info.limits.max_buffer)  # a view made by broadcasting reaches less
        return len(part.counts) <= abi.AXES and nbytes <= most and self._bound(self._memory, *self._span(part))

    def _bound(self, memory: SubBuffers, low: int, high: int) -> bool:
        """Say whether one binding holds bytes ``low`` to ``high``."""
        aligned = low // ALIGNMENT * ALIGNMENT
        return round_up(high - aligned, WIDE) <= self._most and memory.reach(aligned) >= high - aligned

    def _is_direct(self, start: int, nbytes: int) -> bool:
        """Say whether a kernel can read or write the packed elements where they lie: whole words of one binding."""
        memory = self._packed.storage.memory
        whole = nbytes % WORD == 0 or start + nbytes == self._packed.storage.nbytes
        return start % WORD == 0 and whole and self._bound(memory, start, start + nbytes)

    def _window(self, memory: SubBuffers, low: int, high: int) -> tuple[BufferRange, int]:
        """Return the binding that holds bytes ``low`` to ``high``, and where in the memory it begins."""
        aligned = low // ALIGNMENT * ALIGNMENT
        nbytes = min(round_up(high - aligned, WIDE), memory.reach(aligned))
        return memory.range(aligned, nbytes), aligned

    def _dispatch(self, part: _Part, packed: SubBuffers, start: int) -> None:
        """Move one part from or to byte ``start`` of ``packed``."""
        sent = self._sent(part, packed, start)
        self._logical.dispatch("copy", sent.pipeline, sent.ranges, sent.push, sent.groups)

    def _sent(self, part: _Part, packed: SubBuffers, start: int) -> Sent:
        count = math.prod(part.counts)
        window, begin = self._window(self._memory, *self._span(part))
        words, cell = self._window(packed, start, start + count * self._unit)
        first = part.first - begin // self._unit
        region = abi.Region.of(first, (start - cell) // WORD, part.counts, part.strides)
        pushes = self._logical.pushes(2)
        pipeline, push, groups = dispatch_of(
            self._logical, self._kernel, self._unit, region, len(part.counts), pushes=pushes
        )
        return Sent(pipeline, [window, words], push, groups)


def _parts(part: _Part, fits: Callable[[_Part], bool]) -> Iterator[_Part]:
    """Cut a part along its first axes into parts that fit, in order."""
    if fits(part):
        yield part
        return
    count, *counts = part.counts
    stride, *strides = part.strides
    if count == 1:
        yield from _parts(part._replace(counts=tuple(counts), strides=tuple(strides)), fits)
        return
    half, row = (count + 1) // 2, math.prod(counts)
    yield from _parts(part._replace(counts=(half, *counts)), fits)
    rest = _Part(part.first + half * stride, (count - half, *counts), part.strides, part.at + half * row)
    yield from _parts(rest, fits)
