"""The fallback of the C helper: the same logic (see ``_pump.c``) in Python, for machines without a compiler."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vkpar.errors import VulkanError
from vkpar.vulkan import api
from vkpar.vulkan.pump import Batch, QueueHandles, _enqueue_failed, enqueue_lock
from vkpar.vulkan.pump_python_bridge import Bridge, Failed, Need, check

_TIMEOUT = 2
_NAPPING_NS, _NAP_SECONDS = 20_000_000, 10e-6  # as in _pump_types.h


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

    def __init__(self, handles: QueueHandles, *, naps: bool = False) -> None:
        self.handles = handles
        self._naps = naps
        self._awaited, self._since = 0, 0  # the value last waited for, and when that began
        self.last = 0
        self.stream = None  # only the C helper gathers operations
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

    @property
    def submitted(self) -> int:
        return self.last

    def wait_idle(self, function: Any) -> None:
        with enqueue_lock:
            api.load().check(function(self.handles.queue), "vkQueueWaitIdle")

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

    def has_reached(self, value: int) -> bool:
        """Say whether the timeline has ``value``; False where it cannot be told: waiting for it will say why."""
        try:
            return self.counter() >= value
        except VulkanError:
            return False

    def wait(self, value: int, timeout_ns: int) -> bool:
        """Block until the timeline has ``value``, perhaps after naps; False when the time ran out."""
        vk = api.load()
        start = now = time.monotonic_ns()
        if self._awaited != value:
            self._awaited, self._since = value, start
        while self._naps and now - start < timeout_ns and now - self._since < _NAPPING_NS:
            if self.counter() >= value:
                return True
            time.sleep(_NAP_SECONDS)
            now = time.monotonic_ns()
        values = vk.ffi.new("uint64_t[]", [value])
        info = vk.struct("VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=self._timeline, pValues=values)
        result = self.handles.wait(self.handles.device, info, max(0, timeout_ns - (now - start)))
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


class PyGroup(Bridge):
    """A group in Python."""

    def __init__(self, queues: Sequence[PyQueue], nslots: int) -> None:
        super().__init__(queues)
        self._waited = [[0] * len(queues) for _ in queues]
        self._writer = [(0, 0)] * nslots
        self._readers: list[dict[int, int]] = [{} for _ in range(nslots)]
        self._fetched: list[set[int]] = [set() for _ in range(nslots)]  # memories that a parked need copies the slot to

    def program(self, batches: Sequence[Batch]) -> PyProgram:
        return PyProgram(self, batches)

    def waits_for(self, batch: Batch, value: int) -> list[tuple[Any, int]]:
        """Return the semaphores and values that ``batch``, which will signal ``value``, waits for."""
        waits: list[tuple[Any, int]] = []
        required, needs = self._collect(batch, value)
        for src, wanted in enumerate(required):
            if wanted <= self._waited[batch.rank][src]:
                continue
            self._waited[batch.rank][src] = wanted
            if (batch.rank, src) in self.native:
                waits.append((self.native[batch.rank, src], wanted))
            elif not self.queues[src].has_reached(wanted):
                needs.append(Need(wanted, src))
        if needs:
            waits.append(self.park(batch.rank, needs))
        if batch.gate:
            waits.append(batch.gate)
        return waits + self.queues[batch.rank].sibling_wait()

    def _collect(self, batch: Batch, value: int) -> tuple[list[int], list[Need]]:
        required, needs = [0] * len(self.queues), []

        def require(src: int, wanted: int) -> None:
            if src != batch.rank:
                required[src] = max(required[src], wanted)

        for slot in batch.reads:
            need = self._fetch(batch.rank, slot)
            if need:
                needs.append(need)
            else:
                require(*self._writer[slot])
            self._readers[slot][batch.rank] = value
        for slot in batch.writes:
            require(*self._writer[slot])
            for reader in self._readers[slot].items():
                require(*reader)
            self._readers[slot].clear()
            self._fetched[slot].clear()
            self._writer[slot] = (batch.rank, value)
        return required, needs

    def _fetch(self, rank: int, slot: int) -> Need | None:
        """Return the need of a reader that does not share the writer's memory, None where it does."""
        source, value = self._writer[slot]
        memory = self.memory(rank)
        if not value or self.memory(source) == memory:
            return None
        need = Need(value, source, None if memory in self._fetched[slot] else slot)
        self._fetched[slot].add(memory)
        self._waited[rank][source] = max(self._waited[rank][source], value)
        return need


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
        """Return a VkResult, and the first rank that was not submitted; after a failure the group is aborted."""
        queues = self._group.queues
        waited = [queue.sibling_waited for queue in queues]
        late = len(queues)
        try:
            following, submissions = self._build()
            self._group.check_usable()
            for late, queue in enumerate(queues):
                if submissions[late]:
                    check(queue.send(submissions[late]))
                queue.last = following[late]
        except BaseException as error:
            for rank in range(late % len(queues), len(queues)):  # what was not submitted has not waited
                queues[rank].sibling_waited = waited[rank]
            self._group.abort()
            if not isinstance(error, Failed):
                raise
            return error.result, late
        return 0, len(queues)

    def _build(self) -> tuple[list[int], list[list[Submission]]]:
        queues = self._group.queues
        following = [queue.last for queue in queues]
        submissions: list[list[Submission]] = [[] for _ in queues]
        for batch in self._batches:
            following[batch.rank] += 1
            value = following[batch.rank]
            waits = self._group.waits_for(batch, value)
            timeline = queues[batch.rank].handles.timeline
            submissions[batch.rank].append(Submission(timeline, batch.command, waits, value))
        return following, submissions

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
