"""The fallback of the C helper: the same logic (see ``_pump.c``) in Python, for machines without a compiler."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vkpar.vulkan import api
from vkpar.vulkan.pump import HISTOGRAM_BUCKETS, Batch, BridgeStats, QueueHandles, _enqueue_failed, enqueue_lock

_SLICE_NS = 100_000_000
_TIMEOUT = 2


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C until the block is done, then deliver it (Python runs handlers in the main thread only)."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    try:
        signal.signal(signal.SIGINT, lambda number, _: held.append(number))
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)


class PyQueue:
    """A queue driven from Python."""

    def __init__(self, handles: QueueHandles) -> None:
        self.handles = handles
        self.last = 0
        self._sibling: PyQueue | None = None
        self.sibling_waited = 0
        vk = api.load()
        self._timeline = vk.ffi.new("VkSemaphore[1]", [handles.timeline])
        self._value = vk.ffi.new("uint64_t[1]")
        self._wait = vk.struct("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=self._timeline)
        self._counter = vk.ffi.new("uint64_t*")

    def pair(self, other: PyQueue) -> None:
        self._sibling, other._sibling = other, self

    def sibling_wait(self) -> list[tuple[Any, int]]:
        """Return the wait on the device's other queue that the next submission needs, and count it as made."""
        sibling = self._sibling
        if sibling is None or sibling.last <= self.sibling_waited:
            return []
        self.sibling_waited = sibling.last
        return [(sibling.handles.timeline, sibling.last)]

    def submit(self, command: Any) -> int:
        with enqueue_lock, uninterrupted():
            before = self.sibling_waited
            value = self.last + 1
            submit = Submission(self.handles.timeline, command, self.sibling_wait(), value)
            result = self.send([submit])
            if result < 0:
                self.sibling_waited = before
            else:
                self.last = value
        api.load().check(result, "vkQueueSubmit")
        return value

    def send(self, submissions: Sequence[Submission]) -> int:
        """Call vkQueueSubmit and return its result."""
        vk = api.load()
        infos = vk.ffi.new("VkSubmitInfo[]", [item.info[0] for item in submissions])
        return int(self.handles.submit(self.handles.queue, len(submissions), infos, vk.ffi.NULL))

    def counter(self) -> int:
        """Return the timeline's value now."""
        counter = api.load().ffi.new("uint64_t*")
        api.load().check(
            self.handles.counter(self.handles.device, self.handles.timeline, counter), "vkGetSemaphoreCounterValue"
        )
        return int(counter[0])

    def wait(self, value: int, timeout_ns: int) -> bool:
        """Block until the timeline has ``value``; False when the time ran out."""
        vk = api.load()
        values = vk.ffi.new("uint64_t[]", [value])
        info = vk.struct("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=self._timeline, pValues=values)
        result = self.handles.wait(self.handles.device, info, timeout_ns)
        vk.check(result, "vkWaitSemaphores")
        return bool(result != _TIMEOUT)

    def close(self) -> None:
        """Nothing is held outside Python."""


class Submission:
    """A VkSubmitInfo with all that it points to."""

    def __init__(self, timeline: Any, command: Any, waits: Sequence[tuple[Any, int]], value: int) -> None:
        vk = api.load()
        values = vk.struct(
            "VkTimelineSemaphoreSubmitInfo",
            waitSemaphoreValueCount=len(waits),
            pWaitSemaphoreValues=[wanted for _, wanted in waits],
            signalSemaphoreValueCount=1,
            pSignalSemaphoreValues=[value],
        )
        self.info = vk.struct(
            "VkSubmitInfo",
            pNext=values,
            waitSemaphoreCount=len(waits),
            pWaitSemaphores=[semaphore for semaphore, _ in waits],
            pWaitDstStageMask=[vk.vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT] * len(waits),
            commandBufferCount=1,
            pCommandBuffers=[command],
            signalSemaphoreCount=1,
            pSignalSemaphores=[timeline],
        )


class _Local:
    """A destination's own timeline and the batches parked on it, oldest first."""

    def __init__(self) -> None:
        self.semaphore: Any = None
        self.done = 0
        self.parked: deque[list[int]] = deque()  # each entry: [sources still missing]


class PyGroup:
    """A group in Python; its waiter threads are daemons."""

    def __init__(self, queues: Sequence[PyQueue], nslots: int) -> None:
        n = len(queues)
        self.queues = list(queues)
        self._native: dict[tuple[int, int], Any] = {}
        self._waited = [[0] * n for _ in range(n)]
        self._writer = [(0, 0)] * nslots
        self._readers: list[dict[int, int]] = [{} for _ in range(nslots)]
        self._locals = [_Local() for _ in range(n)]
        self._needs: list[deque[tuple[int, int, list[int]]]] = [deque() for _ in range(n)]
        self._lock = threading.Lock()
        self._wakes = [threading.Condition(self._lock) for _ in range(n)]
        self._threads: list[threading.Thread] = []
        self._stop = False
        self._error = 0
        self._spin_ns = 0
        self._counts = {"bridges": 0, "spins": 0, "blocks": 0}
        self._histogram = [0] * HISTOGRAM_BUCKETS

    def set_native(self, dst: int, src: int, semaphore: Any) -> None:
        self._native[dst, src] = semaphore

    def set_local(self, dst: int, semaphore: Any) -> None:
        self._locals[dst].semaphore = semaphore

    def start(self, spin_ns: int) -> None:
        self._spin_ns = spin_ns
        ranks = range(len(self.queues))
        for src in ranks:
            if any(dst != src and (dst, src) not in self._native for dst in ranks):
                thread = threading.Thread(target=self._bridge, args=(src,), name=f"vkpar-bridge-{src}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def program(self, batches: Sequence[Batch]) -> PyProgram:
        return PyProgram(self, batches)

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
            for rank, local in enumerate(self._locals):
                for missing in local.parked:
                    missing[0] = 0
                self._needs[rank].clear()
                self._advance(rank)

    def error(self) -> int:
        with self._lock:
            return self._error

    def stats(self) -> BridgeStats:
        with self._lock:
            pending = sum(len(local.parked) for local in self._locals)
            return BridgeStats(**self._counts, pending=pending, histogram=tuple(self._histogram))

    def close(self) -> None:
        """Nothing is held outside Python."""

    def _bridge(self, src: int) -> None:
        needs = self._needs[src]
        with self._lock:
            while not self._stop:
                if not needs or self._error:
                    self._wakes[src].wait()
                    continue
                value = needs[0][0]
                self._lock.release()
                try:
                    result, counter, seen = self._watch(src, value)
                finally:
                    self._lock.acquire()
                if result < 0:
                    self._error = self._error or result
                elif counter >= value:
                    self._deliver(src, counter, seen)

    def _watch(self, src: int, value: int) -> tuple[int, int, int]:
        queue, start = self.queues[src], time.monotonic_ns()
        try:
            counter = queue.counter()
            while counter < value and time.monotonic_ns() - start < self._spin_ns:
                counter = queue.counter()
            if counter >= value:
                self._counts["spins"] += 1
            else:
                self._counts["blocks"] += 1
                queue.wait(value, _SLICE_NS)
                counter = queue.counter()
        except Exception as error:
            result = getattr(api.load().vk, getattr(error, "result", ""), -13)
            return int(result), 0, 0
        return 0, counter, time.monotonic_ns()

    def _deliver(self, src: int, counter: int, seen: int) -> None:
        needs = self._needs[src]
        while needs and needs[0][0] <= counter:
            _, dst, missing = needs.popleft()
            missing[0] -= 1
            self._advance(dst)
            self._counts["bridges"] += 1
            bucket = min(HISTOGRAM_BUCKETS - 1, max(1, time.monotonic_ns() - seen).bit_length() - 1)
            self._histogram[bucket] += 1

    def _advance(self, dst: int) -> None:
        local, before = self._locals[dst], self._locals[dst].done
        while local.parked and local.parked[0][0] == 0:
            local.parked.popleft()
            local.done += 1
        if local.done == before:
            return
        vk = api.load()
        info = vk.struct("VkSemaphoreSignalInfo", semaphore=local.semaphore, value=local.done)
        handles = self.queues[dst].handles
        result = handles.signal(handles.device, info)
        if result < 0:
            self._error = self._error or result

    def park(self, dst: int, sources: Sequence[tuple[int, int]]) -> tuple[Any, int]:
        """Park ``dst``'s next batch until all ``sources`` (rank, value) are there; return the wait that it makes."""
        with self._lock:
            local, missing = self._locals[dst], [len(sources)]
            local.parked.append(missing)
            for src, value in sources:
                self._needs[src].append((value, dst, missing))
                self._wakes[src].notify()
            return local.semaphore, local.done + len(local.parked)

    def waits_for(self, batch: Batch, value: int) -> list[tuple[Any, int]]:
        """Return the semaphores and values that ``batch``, which will signal ``value``, waits for."""
        native, bridged = [], []
        for src, wanted in enumerate(self._required(batch, value)):
            if wanted <= self._waited[batch.rank][src]:
                continue
            self._waited[batch.rank][src] = wanted
            if (batch.rank, src) in self._native:
                native.append((self._native[batch.rank, src], wanted))
            elif not self.queues[src].wait(wanted, 0):
                bridged.append((src, wanted))
        if bridged:
            native.append(self.park(batch.rank, bridged))
        return native + self.queues[batch.rank].sibling_wait()

    def _required(self, batch: Batch, value: int) -> list[int]:
        required = [0] * len(self.queues)

        def require(src: int, wanted: int) -> None:
            if src != batch.rank:
                required[src] = max(required[src], wanted)

        for slot in batch.reads:
            require(*self._writer[slot])
            self._readers[slot][batch.rank] = value
        for slot in batch.writes:
            require(*self._writer[slot])
            for reader in self._readers[slot].items():
                require(*reader)
            self._readers[slot].clear()
            self._writer[slot] = (batch.rank, value)
        return required


class PyProgram:
    """A program in Python."""

    def __init__(self, group: PyGroup, batches: Sequence[Batch]) -> None:
        self._group = group
        self._batches = list(batches)

    def enqueue(self) -> list[int]:
        with enqueue_lock, uninterrupted():
            result, failed = self._enqueue()
        values = self.last()
        if result < 0:
            raise _enqueue_failed(result, failed, values)
        return values

    def last(self) -> list[int]:
        return [queue.last for queue in self._group.queues]

    def _enqueue(self) -> tuple[int, int]:
        queues = self._group.queues
        following = [queue.last for queue in queues]
        waited = [queue.sibling_waited for queue in queues]
        submissions: list[list[Submission]] = [[] for _ in queues]
        for batch in self._batches:
            following[batch.rank] += 1
            value = following[batch.rank]
            waits = self._group.waits_for(batch, value)
            timeline = queues[batch.rank].handles.timeline
            submissions[batch.rank].append(Submission(timeline, batch.command, waits, value))
        for rank, queue in enumerate(queues):
            if submissions[rank]:
                result = queue.send(submissions[rank])
                if result < 0:
                    for late in range(rank, len(queues)):  # what was not submitted has not waited
                        queues[late].sibling_waited = waited[late]
                    return result, rank
            queue.last = following[rank]
        return 0, len(queues)

    def close(self) -> None:
        """Nothing is held outside Python."""


def wait(queues: Sequence[PyQueue], values: Sequence[int], timeout_ns: int, spin_ns: int) -> int:
    """Wait as :func:`vkpar.vulkan.pump.wait` does."""
    start = time.monotonic_ns()
    for index, (queue, value) in enumerate(zip(queues, values, strict=True)):
        while queue.counter() < value and time.monotonic_ns() - start < min(spin_ns, timeout_ns):
            pass
        left = max(0, timeout_ns - (time.monotonic_ns() - start))
        if not queue.wait(value, left):
            return index
    return len(queues)
