"""Memory of arrays that nobody holds any more, kept at hand for the next array of the same size.

Program order protects it: everything that runs on a device's queues runs in the order of the calls, so that what a new
array is for comes after whatever the old one was used for. Nothing has to be waited for, as long as the memory stays
with the device; before it goes back to the driver, or to another purpose, its last use has to be done.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.buffer import Buffer
from vkpar.vulkan.memory.subbuffers import SubBuffers, spans_of

if TYPE_CHECKING:
    from vkpar.vulkan.pump.ledger import Ledger

_MOST_SHARE: Final = 16  # what is kept takes a sixteenth of the heap at most,
_MOST_BYTES: Final = 256 << 20  # and so much, or on large heaps a sixty-fourth, up to 2 GiB
_LARGE_SHARE: Final = 64  # a piece of a model's prompt drops half a gigabyte, block by block
_LARGE_BYTES: Final = 2 << 30

_forks = [0]  # of this process, in which the devices of its parent are not to be used


def _note_fork() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_note_fork)


class _Holder(weakref.ref[SubBuffers]):
    """Tells that the memory of an array is not held any more: a method of a built-in type is called with it.

    So nothing written in Python runs where an array dies, and no interrupt is lost there.
    """

    __slots__ = ("buffers",)
    buffers: tuple[Buffer, ...]


def _kept(heap_nbytes: int) -> int:
    """Return how many bytes are kept at most of a heap, whose size is 0 where it is not known."""
    most = max(_MOST_BYTES, min(heap_nbytes // _LARGE_SHARE, _LARGE_BYTES))
    return min(heap_nbytes // _MOST_SHARE or _MOST_BYTES, most)


class Recycler:
    """The dropped memory of one device's arrays.

    Args:
        heap_nbytes: of the heap that arrays lie in; 0 where it is not known.
        most: bytes that are kept at most; by default what the heap allows.
        before: what was in this one's place; its memory is kept as it is from now on, and serves no other array.

    Attributes:
        ledger: the device's; new arrays have nothing to do with what failures have spoiled of their memory before.
    """

    def __init__(self, heap_nbytes: int = 0, most: int | None = None, before: Recycler | None = None) -> None:
        self._before = before
        self._holders: set[_Holder] = set()
        self._dropped: deque[_Holder] = deque()
        self._idle: dict[int, deque[Buffer]] = {}  # by the bytes that they take
        self._nbytes = 0  # of the idle ones, more or less: threads may race for the count
        self._most = _kept(heap_nbytes) if most is None else most
        self._forks = _forks[0]
        self.ledger: Ledger | None = None if before is None else before.ledger

    def hold(self, memory: SubBuffers) -> SubBuffers:
        """Take note of an array's memory: it comes back here when nobody holds it any more."""
        holder = _Holder(memory, self._dropped.append)
        holder.buffers = memory.buffers
        self._holders.add(holder)
        ledger = self.ledger
        if ledger is not None:
            memory.born = ledger.clock.seq
            if ledger.clock.lost:
                ledger.mend(spans_of(memory.buffers), memory.born)
        return memory

    def excuse(self) -> None:
        """Mend what failures have spoiled before the memory that is held came to whom it belongs to now."""
        if self._before is not None:
            self._before.excuse()
        for holder in list(self._holders):
            memory = holder()
            if memory is not None and memory.born and self.ledger is not None:
                self.ledger.mend(spans_of(memory.buffers), memory.born)

    def serves(self, memory: SubBuffers) -> bool:
        """Say whether ``memory`` comes back here, and is kept, when nobody holds it any more."""
        return len(memory.buffers) == 1 and weakref.ref(memory) in self._holders

    def take(self, nbytes: int, label: Callable[[], str] | None) -> SubBuffers | None:
        """Return memory of so many bytes that was dropped before; None where there is none of that size."""
        reserved = (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        if self._forks != _forks[0]:
            return None
        buffer = self._just_dropped(reserved) if self._dropped else None
        if buffer is None:
            idle = self._idle.get(reserved)
            if not idle:
                return None
            try:
                buffer = idle.pop()
            except IndexError:  # another thread took it
                return None
            self._nbytes -= buffer.reserved
        buffer.nbytes, buffer.label = nbytes, label
        buffer.lease.nbytes, buffer.lease.label = nbytes, label
        return self.hold(SubBuffers((buffer,)))

    def _just_dropped(self, reserved: int) -> Buffer | None:
        """Return what alone was dropped where it has so many bytes, as a loop's results do; else sort what was."""
        if len(self._dropped) == 1:
            try:
                holder = self._dropped.popleft()
            except IndexError:  # another thread took it
                return None
            buffers = holder.buffers
            if len(buffers) == 1 and buffers[0].reserved == reserved:
                self._holders.discard(holder)
                return buffers[0]  # hold() mends it
            self._dropped.append(holder)
        self.sort()
        return None

    def sort(self) -> None:
        """Keep what was dropped since the last call, as far as there is room."""
        while self._dropped:
            try:
                holder = self._dropped.popleft()
            except IndexError:  # another thread took it
                return
            self._holders.discard(holder)
            buffers = holder.buffers
            reserved = buffers[0].reserved
            if self.ledger is not None and self.ledger.clock.lost:
                self.ledger.mend(spans_of(buffers), self.ledger.clock.seq)
            if buffers[1:] or reserved > self._most:
                continue
            if self._nbytes + reserved > self._most:
                self.evict()  # sizes that nobody asks for again must not keep out those that somebody will
            self._nbytes += reserved
            idle = self._idle.get(reserved)
            if idle is None:
                idle = self._idle.setdefault(reserved, deque())
            idle.append(buffers[0])

    def evict(self) -> None:
        """Keep nothing any more: the buffers go as all do that nobody holds."""
        self._idle = {}
        self._nbytes = 0
        for holder in list(self._holders):
            if holder() is None:  # an interrupt may have ended the call that was about to sort it
                self._holders.discard(holder)


class Divided:
    """The dropped memory of a device while one thread captures: what the thread's arrays lie in stays with its graph.

    A graph's commands name that memory each time they run. So it serves the graph's arrays alone, in the order in which
    they were captured, until the graph is closed.

    Args:
        rest: everybody else's.
        own: the capturing thread's.

    Attributes:
        rest, own: as they were given.
        paused: the capturing thread is served as everybody else.
    """

    def __init__(self, rest: Recycler, own: Recycler) -> None:
        self.rest, self.own = rest, own
        self.paused = False
        self._thread = threading.get_ident()

    def _mine(self) -> Recycler:
        return self.own if threading.get_ident() == self._thread and not self.paused else self.rest

    def hold(self, memory: SubBuffers) -> SubBuffers:
        """Take note of an array's memory, as :meth:`Recycler.hold` does."""
        return self._mine().hold(memory)

    def take(self, nbytes: int, label: Callable[[], str] | None) -> SubBuffers | None:
        """Return memory that was dropped before, as :meth:`Recycler.take` does."""
        return self._mine().take(nbytes, label)

    def excuse(self) -> None:
        """Mend what was spoiled before its memory changed hands, as :meth:`Recycler.excuse` does."""
        self.rest.excuse()
        self.own.excuse()

    def sort(self) -> None:
        """Keep what was dropped since the last call; the graph's is sorted when its thread takes some."""
        self.rest.sort()

    def evict(self) -> None:
        """Keep nothing any more but what is the graph's."""
        self.rest.evict()
