"""Uploads and downloads of a device through a small, persistent ring of host-visible memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkpar.errors import OutOfMemoryError
from vkpar.vulkan import capturing
from vkpar.vulkan.gate import Gate
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.accounting import STAGING
from vkpar.vulkan.memory.buffer import Buffer, BufferRange
from vkpar.vulkan.memory.hostmemory import HostBlock, host_bytes
from vkpar.vulkan.memory.imports import HostImports, HostWindow
from vkpar.vulkan.memory.mapped import MappedArrays
from vkpar.vulkan.memory.memory import Allocator
from vkpar.vulkan.memory.memtypes import HOST, READBACK, UPLOAD
from vkpar.vulkan.memory.subbuffers import SubBuffers
from vkpar.vulkan.queue import Frame, Queue
from vkpar.vulkan.stream import Stream

_CELLS = 4

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Load:
    """What one cell carries, in one submission.

    Attributes:
        queue: what the device's part runs on.
        host: copies between the bytes of a cell and the host's memory.
        record: records the device's part, between a cell and the device's memory.
    """

    queue: Queue
    host: Callable[[_Bytes], None]
    record: Callable[[Frame, BufferRange], None]


@dataclass
class _Cell:
    buffer: BufferRange
    host: _Bytes  # the mapped bytes
    queue: Queue | None = None  # what used it last
    value: int | None = 0  # and that queue's timeline value then; None where an interrupt came before it was known

    def wait(self) -> None:
        if self.queue is not None:
            self.queue.wait(self.queue.last if self.value is None else self.value)


class _Ring:
    """Cells of one direction, taken in turn; a cell is free once its last copy is done."""

    def __init__(self, allocator: Allocator, cell_nbytes: int, kind: str, *, spares: bool = False) -> None:
        nbytes = cell_nbytes * _CELLS
        self._buffer: Buffer = allocator.allocate(nbytes, kind, purpose=STAGING, alone=True, spares=spares)
        host = host_bytes(self._buffer.mapped, self._buffer.nbytes)
        self.cells = [
            _Cell(
                self._buffer.range(index * cell_nbytes, cell_nbytes),
                host[index * cell_nbytes : (index + 1) * cell_nbytes],
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
    """Copies between NumPy memory and a device, in pieces.

    Args:
        allocator: where the rings come from.
        queue: what plain copies run on.
        nbytes: the size of a ring.
        upload_kind: the kind of memory that uploads go through where there is room.

    Attributes:
        cell_nbytes: what one cell holds.
    """

    def __init__(self, allocator: Allocator, queue: Queue, nbytes: int, upload_kind: str = UPLOAD) -> None:
        self.cell_nbytes = max(nbytes // _CELLS // ALIGNMENT * ALIGNMENT, ALIGNMENT)
        self.upload_kind = upload_kind
        self._allocator = allocator
        self._queue = queue
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
            return _Ring(self._allocator, self.cell_nbytes, kind, spares=kind == UPLOAD)
        except OutOfMemoryError:
            if kind != UPLOAD:
                raise
        return _Ring(self._allocator, self.cell_nbytes, HOST)  # arrays have filled the device's memory

    def upload(self, source: _Bytes, target: Sequence[BufferRange]) -> None:
        """Copy ``source`` (flat bytes) to ``target``, of as many bytes; ``source`` is free on return."""
        self.send(self._plain(source, target, to_host=False))

    def download(self, source: Sequence[BufferRange], target: _Bytes) -> None:
        """Fill ``target`` (flat bytes) from ``source``, of as many bytes; returns when it is there."""
        self.receive(self._plain(target, source, to_host=True))

    def _plain(self, host: _Bytes, device: Sequence[BufferRange], *, to_host: bool) -> Iterator[Load]:
        start = 0
        for parts in cells(device, self.cell_nbytes):
            nbytes = sum(part.nbytes for part in parts)
            yield _plain_load(self._queue, host[start : start + nbytes], parts, to_host=to_host)
            start += nbytes

    def send(self, loads: Iterable[Load]) -> None:
        """Carry ``loads`` to the device; the host's memory is free on return."""
        with self._lock:
            ring = self._ring(UPLOAD)
            for load in loads:
                cell = ring.next()
                cell.wait()
                load.host(cell.host)
                self._submit(cell, load, to_host=False)

    def receive(self, loads: Iterable[Load]) -> None:
        """Carry ``loads`` to the host; returns when they are there."""
        with self._lock:
            ring = self._ring(READBACK)
            pending: deque[tuple[_Cell, Load]] = deque()
            for load in loads:
                if len(pending) == _CELLS:
                    self._collect(*pending.popleft())
                cell = ring.next()
                self._submit(cell, load, to_host=True)
                pending.append((cell, load))
            for item in pending:
                self._collect(*item)

    def _collect(self, cell: _Cell, load: Load) -> None:
        cell.wait()
        load.host(cell.host)

    def _submit(self, cell: _Cell, load: Load, *, to_host: bool) -> None:
        def record(frame: Frame) -> None:
            frame.commands.record_order()
            load.record(frame, cell.buffer)
            if to_host:
                frame.commands.record_host_release()

        cell.value, cell.queue = None, load.queue
        cell.value = load.queue.run(record)

    def close(self) -> None:
        """Forget the rings; the allocator frees their memory."""
        self._rings.clear()


def _plain_load(queue: Queue, values: _Bytes, parts: Sequence[BufferRange], *, to_host: bool) -> Load:
    """Return what copies between ``values`` and ``parts``, one after the other."""

    def host(cell: _Bytes) -> None:
        if to_host:
            values[:] = cell[: values.size]
        else:
            cell[: values.size] = values

    def record(frame: Frame, cell: BufferRange) -> None:
        packed = [cell.head(values.size)]
        frame.commands.record_copies(*((parts, packed) if to_host else (packed, parts)))

    return Load(queue, host, record)


class HostCopies:
    """Copies between the host and a device's memory, each by the shortest way that it can go.

    Args:
        gate: every call passes it.
        stream: of the device.
        staging: carries what can go no other way.
        imports: the host's memory that the device sees.
        mapped: writes and reads where the host sees the device's memory; None: never.
        reap: releases the device's memory that nobody holds.
    """

    def __init__(
        self,
        gate: Gate,
        stream: Stream,
        staging: Staging,
        imports: HostImports,
        mapped: MappedArrays | None,
        reap: Callable[[], None],
    ) -> None:
        self._gate, self._stream, self._reap = gate, stream, reap
        self._staging, self._imports, self._mapped = staging, imports, mapped

    def upload(self, source: Any, target: Sequence[BufferRange]) -> None:
        """Copy flat uint8 ``source`` to ``target``, of as many bytes; ``source`` is free on return."""
        with self._gate.lock():
            self._gate.check()
            self.refuse_captured("writing from the host")
            if self._imports.upload(source, target) or (self._mapped and self._mapped.upload(source, target)):
                return
            self._staging.upload(source, target)

    def download(self, source: Sequence[BufferRange], target: Any) -> None:
        """Fill flat uint8 ``target`` from ``source``, of as many bytes; returns when it is there."""
        with self._gate.lock():
            self._gate.check()
            self.refuse_captured("reading to the host")
            if self._imports.download(source, target) or (self._mapped and self._mapped.download(source, target)):
                return
            self._staging.download(source, target)

    def send(self, loads: Iterable[Load], memory: SubBuffers, nbytes: int, straight: Callable[[], None]) -> None:
        """Carry ``nbytes`` to the device; the host's memory is free on return.

        Args:
            loads: how the staging ring carries them.
            memory: where to.
            nbytes: how many.
            straight: writes them to ``memory`` where that is mapped.
        """
        with self._gate.lock():
            self._gate.check()
            self.refuse_captured("writing from the host")
            if self._mapped is None or not self._mapped.write(memory.whole, nbytes, straight):
                self._staging.send(loads)

    def receive(self, loads: Iterable[Load], memory: SubBuffers, straight: Callable[[], None] | None) -> None:
        """Carry ``loads`` to the host; returns when they are there. The arguments are those of :meth:`send`.

        None for ``straight`` has the ring carry them, wherever ``memory`` is.
        """
        with self._gate.lock():
            self._gate.check()
            self.refuse_captured("reading to the host")
            if self._mapped is None or straight is None or not self._mapped.read(memory.whole, straight):
                self._staging.receive(loads)

    def refuse_captured(self, what: str) -> None:
        """Refuse what cannot be done while this thread captures the device."""
        if capturing.by_thread:
            capturing.refuse(self._stream, what)

    def add(self, block: HostBlock) -> HostWindow:
        """Let copies from and to ``block`` go straight, until :meth:`drop`, or until it is retired.

        Raises:
            UnsupportedError: the driver cannot import it.
            OutOfMemoryError: it cannot pin so much.
        """
        with self._gate.lock():
            self._gate.check()
            self._reap()
            return self._imports.add(block)

    def drop(self, window: HostWindow) -> None:
        """Wait for the copies from and to ``window``, then forget it; the device's own close does so too."""
        with self._gate.lock():
            if not self._gate.is_shut:
                self._imports.drop(window, lambda: self._gate.is_shut)
