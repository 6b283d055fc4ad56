"""Regions on their way between the host and a device: packed into the cells of the staging ring."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from vkpar.abi import arrays as abi
from vkpar.arrays.region import WORD, Box, Region, boxes, dispatch_of, units_of
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.hostmemory import host_view
from vkpar.vulkan.memory.mapped import collide
from vkpar.vulkan.memory.pool import round_up
from vkpar.vulkan.memory.subbuffers import SubBuffers
from vkpar.vulkan.queue import Frame
from vkpar.vulkan.staging import Load

_Values = np.ndarray[Any, Any]
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Copies = tuple[Any, np.ndarray[Any, np.dtype[np.uint64]]]  # the buffer, and a row for each run
_Dispatch = tuple[Any, BufferRange, bytes, tuple[int, int, int]]  # pipeline, the array's binding, constants, groups

_PAD: Final = 16  # boxes begin at multiples of it in a cell
_MARGIN: Final = 64
_ALL: Final = sys.maxsize
_LONG: Final = 2048  # bytes: shorter rows are copied in another way

# Runs of at least so many bytes are copied one by one, shorter ones by a kernel. On CPU drivers a run costs as much as
# 1 KiB of it, and a kernel takes 12 times as long as a copy (measured); copies of GPUs cost more to begin.
_CPU_RUN: Final = 128
_GPU_RUN: Final = 128 << 10


def check_target(out: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: DType) -> None:
    """Refuse an ``out`` that elements of ``shape`` and ``dtype`` cannot be read into.

    Raises:
        InvalidUsageError: no NumPy array, a read-only one, one of another shape or dtype, or one not C-contiguous.
    """
    if not isinstance(out, np.ndarray):
        raise InvalidUsageError(f"cannot read into {type(out).__name__}; out is a NumPy array or a HostArray")
    if out.shape != shape or out.dtype != dtype.numpy:
        raise InvalidUsageError(f"cannot read {shape} {dtype} into {out.shape} {out.dtype}")
    if not out.flags.writeable:
        raise InvalidUsageError("cannot read into a read-only array")
    if not out.flags.c_contiguous:
        raise InvalidUsageError("cannot read into an array that is not C-contiguous")


def read(logical: LogicalDevice, memory: SubBuffers, first: int, region: Region, out: _Values) -> None:
    """Fill ``out`` from a region that has elements; return once it is filled.

    Args:
        logical: the device.
        memory: the buffers that hold the array.
        first: where in ``memory`` the array begins, in elements.
        region: of the array.
        out: C-contiguous, of the region's shape and of the array's element type.
    """
    transfer = _Transfer(logical, memory, first, region, out, to_host=True)
    logical.host.receive(transfer.loads(), memory, None if transfer.collides() else transfer.copy_straight)


def write(logical: LogicalDevice, memory: SubBuffers, first: int, region: Region, source: _Values) -> None:
    """Replace a region that has elements by ``source``, which may change on return; otherwise as :func:`read`."""
    transfer = _Transfer(logical, memory, first, region, source, to_host=False)
    logical.host.send(transfer.loads(), memory, source.nbytes, transfer.copy_straight)


def packs(box: Box, itemsize: int, *, is_cpu: bool) -> bool:
    """Say whether a kernel packs ``box`` on that kind of device; else copies do, one for each run of elements."""
    return box.run * itemsize < (_CPU_RUN if is_cpu else _GPU_RUN)


class _Transfer:
    """A region on its way, cut into boxes that share cells; see :func:`read` for the arguments."""

    def __init__(
        self, logical: LogicalDevice, memory: SubBuffers, first: int, region: Region, values: _Values, *, to_host: bool
    ) -> None:
        self._logical = logical
        self._memory = memory
        self._values = region.arranged(values)
        self._itemsize = values.itemsize
        self._to_host = to_host
        self._box = Box(first + region.box.start, region.box.counts, region.box.strides)
        self._packs = packs(self._box, self._itemsize, is_cpu=logical.info.is_cpu)
        self._binding = logical.info.limits.max_storage_buffer_range // _PAD * _PAD
        self._window: tuple[int, int, BufferRange] | None = None

    def collides(self) -> bool:
        """Say whether rows are long and lie where the host copies slowly; the cells of the ring lie better."""
        buffer, offset = self._memory.resolve(self._box.start * self._itemsize)
        row = self._box.counts[-1] * self._itemsize if self._box.strides[-1] == 1 else 0
        return row >= _LONG and collide(self._values.ctypes.data, buffer.mapped + offset)

    def copy_straight(self) -> None:
        """Copy on the host, from or to memory that is mapped."""
        for box in boxes(self._box, lambda place: self._memory.reach(place * self._itemsize) // self._itemsize, _ALL):
            buffer, offset = self._memory.resolve(box.start * self._itemsize)
            held = host_view(buffer.mapped + offset, box.span * self._itemsize)
            strides = [stride * self._itemsize for stride in box.strides]
            elements: _Values = np.ndarray(box.counts, self._values.dtype, held, 0, strides)
            if self._to_host:
                self._values[box.index] = elements
            else:
                elements[...] = self._values[box.index]

    def loads(self) -> Iterator[Load]:
        """Yield the loads that fill one cell after the other."""
        room = self._logical.staging.cell_nbytes
        if self._packs:
            room = min(room, self._binding)
        margin = self._margin(room)
        group: list[tuple[Box, int]] = []
        used, most = margin, (room - margin) // self._itemsize
        ndim = abi.AXES - 1 if self._packs else len(self._box.counts)
        for box in boxes(self._box, self._reach, most, ndim=ndim):
            nbytes = round_up(box.size * self._itemsize, _PAD)
            if used + nbytes > room:
                yield self._load(group)
                group, used = [], margin
            group.append((box, used))
            used += nbytes
        yield self._load(group)

    def _margin(self, room: int) -> int:
        """Return where in a cell the first box begins.

        Cells begin at a page, and NumPy's large arrays 16 bytes behind one. Some processors copy rows between such
        places at a quarter of their speed, so the rows of a cell that holds many begin a little later, unless a region
        would just not fit then.
        """
        row = self._box.row(0).size * self._itemsize
        fits = room - _MARGIN < self._box.size * self._itemsize <= room
        return 0 if fits or room < 16 * max(row, _MARGIN) else _MARGIN

    def _reach(self, place: int) -> int:
        """Return how many elements from a place on lie in one buffer and, where a kernel packs them, in a binding."""
        at = place * self._itemsize
        held = self._memory.reach(at)
        return (min(held, self._binding - at % ALIGNMENT) if self._packs else held) // self._itemsize

    def _load(self, group: list[tuple[Box, int]]) -> Load:
        def host(cell: _Bytes) -> None:
            for box, at in group:
                packed: _Values = np.ndarray(box.counts, self._values.dtype, cell.data, at)
                if self._to_host:
                    self._values[box.index] = packed
                else:
                    packed[...] = self._values[box.index]

        if self._packs:
            dispatches = [self._dispatch(box, at) for box, at in group]
            return Load(self._logical.compute, host, lambda frame, cell: self._record_kernels(frame, cell, dispatches))
        copies = [self._copies(box, at) for box, at in group]
        return Load(self._logical.transfer, host, lambda frame, cell: self._record_copies(frame, cell, copies))

    # --- copies ---

    def _copies(self, box: Box, at: int) -> _Copies:
        """Return the buffer, and a row for each run: its offset there, its offset in the cell, bytes."""
        nbytes = box.run * self._itemsize
        outer = len(box.counts) - (box.strides[-1:] == (1,))
        buffer, offset = self._memory.resolve(box.start * self._itemsize)
        places = np.array([buffer.offset + offset], np.uint64)
        for count, stride in zip(box.counts[:outer], box.strides[:outer], strict=True):
            steps = np.arange(count, dtype=np.uint64) * np.uint64(stride * self._itemsize)
            places = (places[:, None] + steps).ravel()
        rows = np.empty((len(places), 3), np.uint64)
        rows[:, 0] = places
        rows[:, 1] = at + np.arange(len(places), dtype=np.uint64) * np.uint64(nbytes)
        rows[:, 2] = nbytes
        return buffer.handle, rows

    def _record_copies(self, frame: Frame, cell: BufferRange, copies: Iterable[_Copies]) -> None:
        for buffer, rows in copies:
            placed = rows + np.array([0, cell.offset, 0], np.uint64)
            if self._to_host:
                frame.commands.record_regions(buffer, cell.buffer, placed)
            else:
                frame.commands.record_regions(cell.buffer, buffer, placed[:, [1, 0, 2]])

    # --- kernels ---

    def _dispatch(self, box: Box, at: int) -> _Dispatch:
        """Return the dispatch that moves a box to or from byte ``at`` of a cell."""
        window, first = self._bound(box)
        unit, counts, strides = units_of(box.counts, box.strides, self._itemsize, first)
        region = abi.Region.of(first // unit, at // WORD, counts, strides)
        kernel = f"region_{'pack' if self._to_host else 'unpack'}"
        pipeline, push, groups = dispatch_of(self._logical, kernel, unit, region, len(counts))
        return pipeline, window, push, groups

    def _bound(self, box: Box) -> tuple[BufferRange, int]:
        """Return a binding that holds a box, the one before where that does, and the first byte's place in it."""
        start = box.start * self._itemsize
        end = start + box.span * self._itemsize
        if self._window is None or not self._window[0] <= start < end <= self._window[1]:
            low = start // ALIGNMENT * ALIGNMENT
            nbytes = min(self._binding, self._memory.reach(low))
            self._window = (low, low + nbytes, self._memory.range(low, nbytes))
        return self._window[2], start - self._window[0]

    def _record_kernels(self, frame: Frame, cell: BufferRange, dispatches: Iterable[_Dispatch]) -> None:
        bound = cell.head(min(cell.nbytes, self._binding))
        sets: dict[BufferRange, Any] = {}
        for pipeline, window, push, groups in dispatches:
            if window not in sets:
                sets[window] = frame.descriptors(pipeline.layout.set_layout, [window, bound])
            frame.commands.record_dispatch(pipeline, sets[window], push, groups)
