"""What a device takes back: memory that nobody holds any more, and all that can be spared where memory runs out."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from vkpar.vulkan.gate import Gate
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory import pool
from vkpar.vulkan.memory.buffer import Lease
from vkpar.vulkan.memory.memory import Allocator
from vkpar.vulkan.memory.recycle import Divided, Recycler
from vkpar.vulkan.queue import Queue


class Keeper(Protocol):
    """Keeps memory of a device for later; see :attr:`Reclaimer.keepers`."""

    def evict(self) -> bool:
        """Drop what can be made again, once it is not in use any more; say whether there was any."""


class Reclaimer:
    """Takes back the memory of one device, once it was told by :meth:`serve` what gave that out.

    Args:
        info: the physical device.
        gate: the device's; nothing is taken from a device whose gate is shut.
        compute: the queue that kernels run on; ``transfer``: that of uploads and downloads, which may be the same.
        recycler: returns what keeps the memory of dropped arrays; during a capture that is another one.

    Attributes:
        keepers: who keeps memory for later, held weakly: they are asked for it before an allocation fails.
    """

    _allocator: Allocator

    def __init__(
        self, info: DeviceInfo, gate: Gate, compute: Queue, transfer: Queue, recycler: Callable[[], Recycler | Divided]
    ) -> None:
        self._card = info.driver_uuid, info.device_uuid
        self._gate = gate
        self._compute, self._transfer = compute, transfer
        self._recycler = recycler
        self._others: tuple[Callable[[], None], ...] = ()
        self._retired: deque[tuple[int, int, Lease]] = deque()  # with the timelines' values that they wait for
        self._reaping = threading.Lock()
        self._border, self._kept = 0, list[Lease]()  # what blocks of lower serials have is kept
        self.keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()

    def serve(self, allocator: Allocator, *others: Callable[[], None]) -> None:
        """Take back the memory of ``allocator``, for other devices on the same card too."""
        self._allocator, self._others = allocator, others
        with _opening:
            _opened.add(self)

    def keep(self) -> None:
        """Give nothing back from now on of the blocks that there are, whoever holds or drops it."""
        with self._reaping:
            self._border = pool.newer()

    def relief(self) -> Iterator[None]:
        """Free what can be spared, what costs least first; yield whenever an allocation may find room now.

        What is free by now goes first, memory of dropped arrays that is kept for the next ones too, then what other
        devices on the same card keep for later, then what is about to be given back is waited for, and at last the
        keepers drop what they have.
        """
        self.reap(everything=True)
        yield
        if self._trim_others():
            yield
        while self._wait_for_retired():
            yield
        for keeper in list(self.keepers):
            if keeper.evict():
                self.reap(everything=True)
                yield
                while self._wait_for_retired():
                    yield

    def _trim_others(self) -> int:
        """Free the empty blocks of the other devices opened on this card; return their bytes."""
        with _opening:
            others = [each for each in _opened if each is not self and not each._gate.is_shut]
        return sum(each._allocator.trim() for each in others if each._card == self._card)

    def _wait_for_retired(self) -> bool:
        """Wait until the oldest buffer that nobody holds is released; False where there is none."""
        try:
            compute, transfer, _ = self._retired[0]
        except IndexError:
            return False
        self._compute.wait(compute)
        self._transfer.wait(transfer)
        self.reap()
        return True

    def reap(self, *, everything: bool = False) -> None:
        """Release the buffers, and the imports, that nobody can reach any more and whose work is done.

        With ``everything`` that goes for the memory of dropped arrays, too, that is kept for the next ones. An
        interrupt leaves a buffer in the queue that it came from, so that it may be in both; the second release of it
        does nothing.
        """
        for release in self._others:
            release()
        recycler = self._recycler()
        recycler.sort()
        if everything:
            recycler.evict()
        dropped = self._allocator.dropped
        if not dropped and not self._retired:
            return
        with self._reaping:
            while dropped:
                self._retired.append((self._compute.last, self._transfer.last, dropped[0]))
                dropped.popleft()
            if not self._retired:
                return
            compute, transfer = self._compute.timeline.value(), self._transfer.timeline.value()
            while self._retired and self._retired[0][0] <= compute and self._retired[0][1] <= transfer:
                lease = self._retired[0][2]
                if lease.piece.block.serial > self._border:
                    self._allocator.release(lease)
                else:
                    self._kept.append(lease)
                self._retired.popleft()


_opened: weakref.WeakSet[Reclaimer] = weakref.WeakSet()
_opening = threading.Lock()  # held while that changes or is walked
