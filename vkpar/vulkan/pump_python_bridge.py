"""The bridge of the Python fallback: the same logic as ``_pump_bridge.h``, where the reasons are given."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from vkpar.vulkan import api
from vkpar.vulkan.pump import HISTOGRAM_BUCKETS, BridgeStats, bucket_of

_SLICE_NS = 100_000_000
_UNKNOWN = -13
_SHARED = -1


class Failed(Exception):
    """An enqueue ends here, with a negative VkResult."""

    def __init__(self, result: int) -> None:
        super().__init__(result)
        self.result = result


def check(result: int) -> None:
    """Raise :class:`Failed` for a negative VkResult."""
    if result < 0:
        raise Failed(result)


class Need(NamedTuple):
    """A batch waits until ``src``'s timeline has ``value`` and then, unless None, until ``slot`` was copied."""

    value: int
    src: int
    slot: int | None = None


class _Local:
    """A destination's own timeline and the batches parked on it, oldest first."""

    def __init__(self) -> None:
        self.semaphore: Any = None
        self.done = 0
        self.parked: deque[list[int]] = deque()  # each entry: [needs still missing]


class Bridge:
    """One daemon thread per source queue; what is parked waits for them.

    Attributes:
        queues: the ranks' queues (``PyQueue``).
        native: by (dst, src): src's timeline on dst's device.
    """

    def __init__(self, queues: Sequence[Any]) -> None:
        n = len(queues)
        self.queues = list(queues)
        self.native: dict[tuple[int, int], Any] = {}
        self._slots: list[tuple[int, int]] = []  # each slot's offset and length in every memory
        self._address = {_SHARED: 0}  # of the shared memory, and of mapped ranks' own
        self._locals = [_Local() for _ in range(n)]
        self._needs: list[deque[tuple[Need, int, list[int]]]] = [deque() for _ in range(n)]
        self._lock = threading.Lock()
        self._wakes = [threading.Condition(self._lock) for _ in range(n)]
        self._threads: list[threading.Thread] = []
        self._stop = False
        self._aborted = False
        self._error = 0
        self._spin_ns = 0
        self._counts = {"bridges": 0, "spins": 0, "blocks": 0, "copies": 0, "copied_bytes": 0}
        self._histogram = [0] * HISTOGRAM_BUCKETS

    def set_native(self, dst: int, src: int, semaphore: Any) -> None:
        self.native[dst, src] = semaphore

    def set_local(self, dst: int, semaphore: Any) -> None:
        self._locals[dst].semaphore = semaphore

    def set_slots(self, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        self._address[_SHARED] = base
        self._slots = list(zip(offsets, sizes, strict=True))

    def set_mapped(self, rank: int, address: int) -> None:
        self._address[rank] = address

    def memory(self, rank: int) -> int:
        """Return which memory ``rank`` has its slots in: its own, or the shared one."""
        return rank if rank in self._address else _SHARED

    def start(self, spin_ns: int) -> None:
        self._spin_ns = spin_ns
        ranks = range(len(self.queues))
        for src in ranks:
            if any(dst != src and (dst, src) not in self.native for dst in ranks):
                thread = threading.Thread(target=self._bridge, args=(src,), name=f"vkpar-bridge-{src}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        with self._lock:
            self._stop = True
            for wake in self._wakes:
                wake.notify()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            for rank, local in enumerate(self._locals):
                for missing in local.parked:
                    missing[0] = 0
                self._needs[rank].clear()
                self._advance(rank)

    def error(self) -> int:
        return self._error

    def stats(self) -> BridgeStats:
        with self._lock:
            pending = tuple(len(local.parked) for local in self._locals)
            return BridgeStats(**self._counts, histogram=tuple(self._histogram), pending_by_rank=pending)

    def close(self) -> None:
        self.stop()

    def check_usable(self) -> None:
        """Raise :class:`Failed` after an abort or a failure."""
        with self._lock:
            self._refuse()

    def _refuse(self) -> None:
        check(self._error or (_UNKNOWN if self._aborted else 0))

    def park(self, dst: int, needs: Sequence[Need]) -> tuple[Any, int]:
        """Park ``dst``'s next batch until all ``needs`` are met; return the wait that it makes."""
        with self._lock:
            self._refuse()
            local, missing = self._locals[dst], [len(needs)]
            local.parked.append(missing)
            for need in needs:
                self._needs[need.src].append((need, dst, missing))
                self._wakes[need.src].notify()
            return local.semaphore, local.done + len(local.parked)

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _bridge(self, src: int) -> None:
        needs = self._needs[src]
        with self._lock:
            while not self._stop:
                if not needs or self._error:
                    self._wakes[src].wait()
                    continue
                value = needs[0][0].value
                with self._unlocked():
                    result, counter, counted = self._watch(src, value)
                    seen = time.monotonic_ns()
                self._counts[counted] += 1
                if result < 0:
                    self._error = self._error or result
                else:
                    self._deliver(src, counter, seen)

    def _watch(self, src: int, value: int) -> tuple[int, int, str]:
        """Wait for a while; return a VkResult, the source's value and how it was looked at."""
        queue, start, counted = self.queues[src], time.monotonic_ns(), "spins"
        try:
            counter = queue.counter()
            while counter < value and time.monotonic_ns() - start < self._spin_ns:
                counter = queue.counter()
            if counter < value:
                counted = "blocks"
                queue.wait(value, _SLICE_NS)
                counter = queue.counter()
        except Exception as error:
            result = getattr(api.load().vk, getattr(error, "result", ""), _UNKNOWN)
            return int(result), 0, counted
        return 0, counter, counted

    def _deliver(self, src: int, counter: int, seen: int) -> None:
        """Deliver what ``counter`` allows; what is parked meanwhile is left to the next look."""
        needs = self._needs[src]
        for _ in range(len(needs)):
            if not needs or self._stop or self._error or needs[0][0].value > counter:
                return
            need, dst, missing = needs[0]
            if need.slot is not None and not self._copy(need.slot, src, dst):
                return
            needs.popleft()
            missing[0] -= 1
            entries = self._advance(dst)
            self._counts["bridges"] += entries
            self._histogram[bucket_of(time.monotonic_ns() - seen)] += entries

    def _copy(self, slot: int, src: int, dst: int) -> bool:
        """Copy a slot while others take the lock; False where an abort came meanwhile."""
        ffi, (offset, nbytes) = api.load().ffi, self._slots[slot]
        source, target = (self._address[self.memory(rank)] + offset for rank in (src, dst))
        with self._unlocked():
            ffi.memmove(ffi.cast("char*", target), ffi.cast("char*", source), nbytes)
        self._counts["copies"] += 1
        self._counts["copied_bytes"] += nbytes
        return not self._aborted

    def _advance(self, dst: int) -> int:
        """Signal the oldest batches that have all they wait for, one by one; return how many these are."""
        local, handles, ready = self._locals[dst], self.queues[dst].handles, 0
        while local.parked and local.parked[0][0] == 0:
            info = api.load().struct("VkSemaphoreSignalInfo", semaphore=local.semaphore, value=local.done + 1)
            result = handles.signal(handles.device, info)
            if result < 0:
                self._error = self._error or result
                break
            local.done += 1
            local.parked.popleft()
            ready += 1
        return ready
