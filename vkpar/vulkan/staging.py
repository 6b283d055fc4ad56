"""Uploads and downloads of a device through a small, persistent ring of host-visible memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkpar.errors import OutOfMemoryError
from vkpar.vulkan import api
from vkpar.vulkan.buffer import Buffer, BufferRange
from vkpar.vulkan.memory import Allocator
from vkpar.vulkan.memtypes import HOST, READBACK, UPLOAD
from vkpar.vulkan.pool import ALIGNMENT
from vkpar.vulkan.queue import Frame, Queue
from vkpar.vulkan.usage import STAGING

_CELLS = 4


@dataclass
class _Cell:
    buffer: BufferRange
    host: Any  # uint8 view of the mapped bytes
    value: int = 0  # timeline value of its last copy


class _Ring:
    """Cells of one direction, taken in turn; a cell is free once its last copy is done."""

    def __init__(self, allocator: Allocator, nbytes: int, kind: str) -> None:
        self.cell_nbytes = max(nbytes // _CELLS // ALIGNMENT * ALIGNMENT, ALIGNMENT)
        self._allocator = allocator
        self._buffer: Buffer = allocator.allocate(self.cell_nbytes * _CELLS, kind, purpose=STAGING, alone=True)
        ffi = api.load().ffi
        raw = ffi.buffer(ffi.cast("char*", self._buffer.mapped), self._buffer.nbytes)
        host = np.frombuffer(raw, np.uint8)
        self.cells = [
            _Cell(
                self._buffer.range(index * self.cell_nbytes, self.cell_nbytes),
                host[index * self.cell_nbytes : (index + 1) * self.cell_nbytes],
            )
            for index in range(_CELLS)
        ]
        self._turn = 0

    @property
    def memory_type(self) -> int:
        """The index of the memory type that it lies in."""
        return int(self._buffer.piece.block.backing.type)

    def next(self) -> _Cell:
        """Return the cell whose turn it is."""
        cell = self.cells[self._turn]
        self._turn = (self._turn + 1) % _CELLS
        return cell


def cells(ranges: Sequence[BufferRange], most: int) -> Iterator[list[BufferRange]]:
    """Cut ``ranges`` into groups of ``most`` bytes, the last one of what is left."""
    group: list[BufferRange] = []
    room = most
    for item in ranges:
        left: BufferRange | None = item
        while left is not None:
            part = left.head(min(left.nbytes, room))
            group.append(part)
            left, room = left.tail(part.nbytes), room - part.nbytes
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group


class Staging:
    """Copies between NumPy memory and a device, in pieces, on the queue given.

    Attributes:
        upload_kind: the kind of memory that uploads go through where there is room.
    """

    def __init__(self, allocator: Allocator, queue: Queue, nbytes: int, upload_kind: str = UPLOAD) -> None:
        self._allocator = allocator
        self._queue = queue
        self._nbytes = nbytes
        self.upload_kind = upload_kind
        self._rings: dict[str, _Ring] = {}
        self._lock = threading.Lock()

    @property
    def memory_types(self) -> dict[str, int]:
        """The indices of the memory types of the rings made so far: ``upload`` and ``readback``."""
        return {kind: ring.memory_type for kind, ring in self._rings.items()}

    def _ring(self, kind: str) -> _Ring:
        if kind not in self._rings:
            self._rings[kind] = self._make(self.upload_kind if kind == UPLOAD else kind)
        return self._rings[kind]

    def _make(self, kind: str) -> _Ring:
        try:
            return _Ring(self._allocator, self._nbytes, kind)
        except OutOfMemoryError:
            if kind != UPLOAD:
                raise
        return _Ring(self._allocator, self._nbytes, HOST)  # arrays have filled the device's memory

    def upload(self, source: np.ndarray[Any, np.dtype[np.uint8]], target: Sequence[BufferRange]) -> None:
        """Copy ``source`` (flat bytes) to ``target``, of as many bytes; ``source`` is free on return."""
        with self._lock:
            ring = self._ring(UPLOAD)
            start = 0
            for parts in cells(target, ring.cell_nbytes):
                nbytes = sum(part.nbytes for part in parts)
                cell = ring.next()
                self._queue.wait(cell.value)
                cell.host[:nbytes] = source[start : start + nbytes]
                cell.value = self._copy([cell.buffer.head(nbytes)], parts, to_host=False)
                start += nbytes

    def download(self, source: Sequence[BufferRange], target: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Fill ``target`` (flat bytes) from ``source``, of as many bytes; returns when it is there."""
        with self._lock:
            ring = self._ring(READBACK)
            pending: list[tuple[_Cell, int, int]] = []
            start = 0
            for parts in cells(source, ring.cell_nbytes):
                if len(pending) == _CELLS:
                    self._collect(target, *pending.pop(0))
                nbytes = sum(part.nbytes for part in parts)
                cell = ring.next()
                cell.value = self._copy(parts, [cell.buffer.head(nbytes)], to_host=True)
                pending.append((cell, start, nbytes))
                start += nbytes
            for item in pending:
                self._collect(target, *item)

    def _collect(self, target: np.ndarray[Any, np.dtype[np.uint8]], cell: _Cell, start: int, count: int) -> None:
        self._queue.wait(cell.value)
        target[start : start + count] = cell.host[:count]

    def _copy(self, source: Sequence[BufferRange], target: Sequence[BufferRange], *, to_host: bool) -> int:
        def record(frame: Frame) -> None:
            frame.commands.record_order()
            frame.commands.record_copies(source, target)
            if to_host:
                frame.commands.record_host_release()

        return self._queue.run(record)

    def close(self) -> None:
        """Forget the rings; the allocator frees their memory."""
        self._rings.clear()
