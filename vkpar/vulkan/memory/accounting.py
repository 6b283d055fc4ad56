"""What a device's memory is used for: accounting where memory is taken, and a report of it."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vkpar import env, text
from vkpar.vulkan.machine.physical import Heap
from vkpar.vulkan.memory.pool import Room

ARRAYS, STAGING, SLOTS, BOUNCE_BUFFERS = "arrays", "staging", "slots", "bounce buffers"
LIMITED = (ARRAYS, BOUNCE_BUFFERS)  # what VKPAR_MAX_MEMORY bounds


@dataclass(frozen=True)
class HeapMemory:
    """A heap as one opened device uses it; all numbers are bytes.

    Attributes:
        index: its number.
        device_local: it is the device's own memory.
        total: its size.
        used: what buffers of this device hold of it, padding included.
        cached: what else of it this device's blocks hold: free pieces, blocks kept for later, the driver's rounding.
        imported: host memory that communicators brought in as memory of this heap; it takes none of the heap.
        budget: what the driver lets this process have of it now (VK_EXT_memory_budget), what it has already included;
            None where the driver does not say.
        process_used: what the driver says that the whole process has of it, other devices opened on the same card and
            the driver's own needs included; None where it does not say.

    Examples:
        >>> heap = device.memory().heaps[0]
        >>> heap.index, heap.used <= heap.total
        (0, True)
    """

    index: int
    device_local: bool
    total: int
    used: int
    cached: int
    imported: int
    budget: int | None
    process_used: int | None


@dataclass(frozen=True)
class DeviceMemory:
    """What an opened device's memory is used for at one moment; see :meth:`vkpar.Device.memory`. Numbers are bytes.

    Attributes:
        heaps: one per heap.
        arrays: what arrays hold, those included that are dropped while work on them is pending.
        staging: the ring through which arrays are written and read, made at the first write and the first read.
        slots: the staging memory of the device's communicators: imported, mapped, or copied into device memory. Ranks
            import the same host memory: what several of them report is there once.
        bounce_buffers: what collectives keep in place of views that kernels cannot reach, until memory runs out.
        pipelines: how many pipelines the device keeps; Vulkan does not tell how many bytes they take.
        limit: what ``VKPAR_MAX_MEMORY`` lets arrays and bounce buffers have; 0 for no limit.
        buffers: how many buffers there are; they lie in ``blocks`` Vulkan allocations.
        trimmable: what :meth:`vkpar.Device.trim` would give back, a part of the cached bytes.
        largest_free: the largest free piece in any block.
        fragmentation: the share of the free bytes that lie outside their block's largest piece, from 0 to 1.

    Examples:
        >>> before = device.memory().arrays
        >>> kept = device.zeros(1024)
        >>> device.memory().arrays - before >= kept.nbytes
        True
    """

    heaps: tuple[HeapMemory, ...]
    arrays: int
    staging: int
    slots: int
    bounce_buffers: int
    pipelines: int
    limit: int
    buffers: int
    blocks: int
    trimmable: int
    largest_free: int
    fragmentation: float

    @property
    def used(self) -> int:
        """Bytes that buffers hold, on all heaps."""
        return sum(heap.used for heap in self.heaps)

    @property
    def cached(self) -> int:
        """Bytes that blocks hold and no buffer does, on all heaps."""
        return sum(heap.cached for heap in self.heaps)

    def __str__(self) -> str:
        """Return a table of the heaps, and a few lines on what they are used for."""
        titles = ("heap", "kind", "total", "used", "cached", "imported", "budget", "process")
        limit = f" of {text.units(self.limit)} that VKPAR_MAX_MEMORY allows" if self.limit else ""
        return "\n".join(
            [
                *text.columns([titles, *map(_cells, self.heaps)], left=(1,)),
                f"arrays {text.units(self.arrays)}{limit}",
                f"staging {text.units(self.staging)}, slots {text.units(self.slots)}, bounce buffers "
                f"{text.units(self.bounce_buffers)}",
                f"buffers {self.buffers}, blocks {self.blocks}, pipelines {self.pipelines}; trim() would free "
                f"{text.units(self.trimmable)}",
                f"largest free piece {text.units(self.largest_free)}, fragmentation {self.fragmentation:.0%}",
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
        return {
            **asdict(self),
            "heaps": [asdict(heap) for heap in self.heaps],
            "used": self.used,
            "cached": self.cached,
        }


def _cells(heap: HeapMemory) -> tuple[str, ...]:
    sizes = (heap.total, heap.used, heap.cached, heap.imported, heap.budget, heap.process_used)
    shown = ("-" if nbytes is None else text.units(nbytes) for nbytes in sizes)
    return (str(heap.index), "device-local" if heap.device_local else "host", *shown)


def _on(heap: int, counts: Counter[tuple[str, int]]) -> int:
    return sum(nbytes for (_, where), nbytes in counts.copy().items() if where == heap)


class Accounting:
    """What one opened device has taken, by purpose and by heap; may be written to from any thread.

    An allocator has an accounting of its own, which is a part of its device's and is rebuilt after an interrupt.

    Args:
        whole: the accounting that this one is a part of, as long as this one lives.
    """

    def __init__(self, whole: Accounting | None = None) -> None:
        self._lock = threading.RLock()
        self._parts: weakref.WeakSet[Accounting] = weakref.WeakSet()
        self.clear()
        if whole is not None:
            whole._parts.add(self)

    def clear(self) -> None:
        """Forget everything, but for what the parts hold."""
        # By purpose and heap, so that an entry is one step.
        self._used: Counter[tuple[str, int]] = Counter()
        self._imported: Counter[tuple[str, int]] = Counter()
        self._buffers: Counter[int] = Counter()  # by heap, as the blocks: their number, and their bytes
        self._number: Counter[int] = Counter()
        self._blocks: Counter[int] = Counter()

    def buffer(self, purpose: str, heap: int, nbytes: int, sign: int = 1) -> None:
        """Book a buffer of ``nbytes`` in a block of ``heap``, or with ``sign`` -1 that it is gone."""
        with self._lock:
            self._used[purpose, heap] += sign * nbytes
            self._buffers[heap] += sign

    def block(self, heap: int, nbytes: int, sign: int = 1) -> None:
        """Book a block that takes ``nbytes`` of ``heap``, or that it is gone."""
        with self._lock:
            self._blocks[heap] += sign * nbytes
            self._number[heap] += sign

    def imported(self, purpose: str, heap: int, nbytes: int, sign: int = 1) -> None:
        """Book host memory that was imported as memory of ``heap``, or that it is gone."""
        with self._lock:
            self._imported[purpose, heap] += sign * nbytes

    def of(self, *purposes: str) -> int:
        """Return the bytes booked for ``purposes``."""
        with self._lock:
            return sum(
                nbytes
                for part in (self, *self._parts)
                for counts in (part._used, part._imported)
                for (purpose, _), nbytes in counts.copy().items()
                if purpose in purposes
            )

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of buffers and of blocks."""
        every = (self, *self._parts)
        return sum(part._buffers.total() for part in every), sum(part._number.total() for part in every)

    def _on(self, heap: int) -> tuple[int, int, int]:
        """Return the bytes used, held in blocks, and imported, of one heap."""
        every = (self, *self._parts)
        used = sum(_on(heap, part._used) for part in every)
        imported = sum(_on(heap, part._imported) for part in every)
        return used, sum(part._blocks[heap] for part in every), imported

    def report(self, found: Sequence[Heap], room: Room, trimmable: int, pipelines: int) -> DeviceMemory:
        """Return what the memory is used for.

        Args:
            found: the device's heaps with what the driver says of them now.
            room: what is free in the blocks.
            trimmable: bytes of blocks that could be freed.
            pipelines: how many pipelines the device keeps.
        """
        buffers, blocks = self.counts
        return DeviceMemory(
            heaps=self.heaps(found),
            arrays=self.of(ARRAYS),
            staging=self.of(STAGING),
            slots=self.of(SLOTS),
            bounce_buffers=self.of(BOUNCE_BUFFERS),
            pipelines=pipelines,
            limit=env.get().max_memory,
            buffers=buffers,
            blocks=blocks,
            trimmable=trimmable,
            largest_free=room.largest,
            fragmentation=room.fragmentation,
        )

    def heaps(self, found: Sequence[Heap]) -> tuple[HeapMemory, ...]:
        """Return each heap's accounting beside the driver's figures."""
        with self._lock:
            return tuple(self._heap(heap, *self._on(heap.index)) for heap in found)

    def _heap(self, heap: Heap, used: int, blocks: int, imported: int) -> HeapMemory:
        return HeapMemory(
            index=heap.index,
            device_local=heap.device_local,
            total=heap.nbytes,
            used=used,
            cached=blocks - used,
            imported=imported,
            budget=heap.budget,
            process_used=heap.used,
        )
