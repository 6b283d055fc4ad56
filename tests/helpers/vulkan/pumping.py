"""A group of the pump on its own: real queues, an arena and mirrors of it, batches that know what they must read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from helpers.vulkan.replacing import callbacks

import vkpar
from vkpar.vulkan import api
from vkpar.vulkan.command import CommandPool
from vkpar.vulkan.memory.buffer import BufferRange, SharedBuffer
from vkpar.vulkan.memory.hostmemory import HostArena, HostImport
from vkpar.vulkan.pump import native
from vkpar.vulkan.pump.ports import Batch
from vkpar.vulkan.semaphore import TimelineSemaphore

SLOT = 512


def bytes_at(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    ffi = api.load().ffi
    return np.frombuffer(ffi.buffer(ffi.cast("char*", address), nbytes), np.uint32)


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


class Stand:
    """A group over real queues: ranks that import one arena, and ``mapped`` ones with a mirror of it.

    A batch copies the slots that it reads into cells of its own, then fills those that it writes. ``fakes[r]`` takes
    the place of some of rank r's Vulkan functions.
    """

    def __init__(
        self,
        devices: Sequence[vkpar.Device],
        mapped: Sequence[int],
        nslots: int,
        nbytes: int = SLOT,
        fakes: Mapping[int, Mapping[str, Callable[..., int]]] | None = None,
    ) -> None:
        self.logical = [device.logical for device in devices]
        self.nslots, self.nbytes, self.mapped = nslots, nbytes, set(mapped)
        self._undo = ExitStack()
        self.timelines = [self._keep(TimelineSemaphore(logical.handle)) for logical in self.logical]
        self.gates = [self._keep(TimelineSemaphore(logical.handle, host_only=True)) for logical in self.logical]
        self.held = [0] * len(devices)  # the highest value that a rank's gate is waited for
        self.pools = [self._keep(CommandPool(logical.handle, logical.compute.family)) for logical in self.logical]
        alignment = max(logical.info.limits.host_import_alignment for logical in self.logical)
        self.arena = self._keep(HostArena(nslots * nbytes, alignment))
        self.mirrors: dict[int, int] = {}
        self.shared = [self._memory(rank) for rank in range(len(devices))]
        self.cells: list[tuple[np.ndarray[Any, Any], int]] = []  # what a batch read, and what it should have
        self.ports = [self._port(rank, (fakes or {}).get(rank, {})) for rank in range(len(devices))]
        self.group = self._group()

    def _keep(self, made: Any) -> Any:
        self._undo.callback(made.close)
        return made

    def _memory(self, rank: int) -> SharedBuffer:
        logical = self.logical[rank]
        if rank not in self.mapped:
            return self._keep(HostImport(logical.handle, logical.info, self.arena, logical.compute.family)).shared()
        mirror = self._buffer(rank, self.nslots * self.nbytes)
        self.mirrors[rank] = mirror.mapped
        return SharedBuffer(mirror.range(), logical.compute.family, False)

    def _buffer(self, rank: int, nbytes: int) -> Any:
        buffer = self.logical[rank].allocator.allocate(nbytes, "readback", purpose="slots")
        self._undo.callback(self.logical[rank].allocator.release, buffer)
        bytes_at(buffer.mapped, nbytes)[:] = 0
        return buffer

    def _port(self, rank: int, fakes: Mapping[str, Callable[..., int]]) -> Any:
        made = callbacks(fakes)
        self._undo.callback(made.clear)  # it must outlive the threads that call it
        handles = replace(self.logical[rank].compute._handles(), timeline=self.timelines[rank].handle, **made)
        return self._keep(native.CQueue(handles))

    def _group(self) -> Any:
        group = native.CGroup(self.ports, self.nslots)
        slots = range(self.nslots)
        group.set_slots(self.arena.address, [self.nbytes * slot for slot in slots], [self.nbytes for _ in slots])
        for rank, address in self.mirrors.items():
            group.set_mapped(rank, address)
        for rank, logical in enumerate(self.logical):
            group.set_local(rank, self._keep(TimelineSemaphore(logical.handle, host_only=True)).handle)
        self._keep(group).start(0)
        return group

    def batch(self, rank: int, reads: dict[int, int], writes: dict[int, int], *, gated: bool = False) -> Batch:
        """Return a batch that expects words in the slots that it reads and leaves words in those that it writes."""
        commands, vk = self.pools[rank].allocate(), api.load()
        again = vk.struct("VkCommandBufferBeginInfo", flags=vk.vk.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT)
        vk.check(vk.lib.vkBeginCommandBuffer(commands.handle, again), "vkBeginCommandBuffer")
        commands.record_acquire(self.shared[rank], [self.shared[rank].range])
        for slot, word in reads.items():
            cell = self._buffer(rank, self.nbytes)
            commands.record_copy(self.slot(rank, slot), cell.range())
            self.cells.append((bytes_at(cell.mapped, self.nbytes), word))
        commands.record_order()
        for slot, word in writes.items():
            where = self.slot(rank, slot)
            vk.lib.vkCmdFillBuffer(commands.handle, where.buffer, where.offset, where.nbytes, word)
        commands.record_release(self.shared[rank], [self.shared[rank].range])
        commands.end()
        gate = None
        if gated:
            self.held[rank] += 1
            gate = (self.gates[rank].handle, self.held[rank])
        return Batch(rank, commands.handle, tuple(reads), tuple(writes), gate)

    def slot(self, rank: int, slot: int) -> BufferRange:
        whole = self.shared[rank].range
        return BufferRange(whole.buffer, whole.offset + slot * self.nbytes, self.nbytes)

    def enqueue(self, batches: Sequence[Batch]) -> list[int]:
        program = self.group.program(batches)
        self._undo.callback(program.close)
        return list(program.enqueue())

    def reached(self, rank: int) -> int:
        return int(self.timelines[rank].value())

    def wait(self, rank: int, value: int | None = None) -> None:
        wanted = self.ports[rank].last if value is None else value
        until(lambda: self.reached(rank) >= wanted)

    def release(self, rank: int) -> None:
        """Let all of the rank's batches through its gate, value by value: see ``advance`` in ``_pump_bridge.h``."""
        for value in range(self.gates[rank].value() + 1, self.held[rank] + 1):
            self.gates[rank].signal(value)

    def finish(self) -> None:
        """Wait until every queue is empty."""
        for rank in range(len(self.ports)):
            self.release(rank)
        for rank in range(len(self.ports)):
            self.wait(rank)

    def check(self) -> None:
        """Finish, and compare everything that was read."""
        self.finish()
        for index, (found, word) in enumerate(self.cells):
            assert np.all(found == word), f"read {index}: {found[:4]} in place of {word}"
        until(lambda: not self.group.stats().pending)  # a thread counts after it has signalled
        stats = self.group.stats()
        assert stats.pending_by_rank == (0,) * len(self.ports)
        assert sum(stats.histogram) == stats.bridges
        assert stats.copied_bytes == stats.copies * self.nbytes
        assert self.group.error() == 0

    def close(self) -> None:
        self.group.abort()
        self.finish()
        self._undo.close()


@contextmanager
def stand(devices: Sequence[vkpar.Device], mapped: Sequence[int] = (), nslots: int = 4, **rest: Any) -> Iterator[Stand]:
    made = Stand(devices, mapped, nslots, **rest)
    try:
        yield made
    finally:
        made.close()
