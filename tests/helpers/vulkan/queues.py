"""Many queues on the one that a driver has, for tests of what runs on several queues of a device."""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from vkpar.vulkan import api
from vkpar.vulkan.pump.ports import QueueHandles, enqueue_lock
from vkpar.vulkan.queue import Queue


@dataclass
class Submission:
    """A copy of one VkSubmitInfo, with all that it points to."""

    info: Any
    waits: list[tuple[Any, int]]


@dataclass
class Apart:
    """A queue apart: its submissions reach the driver's queue in order, each once all that it waits for is there."""

    handles: QueueHandles
    pending: deque[Submission] = field(default_factory=deque)

    def submit(self, _queue: Any, count: int, infos: Any, _fence: Any) -> int:
        """Take the place of vkQueueSubmit."""
        self.pending.extend(_copy(infos[index]) for index in range(count))
        return 0

    def step(self) -> None:
        """Give the oldest submission to the driver if it can run now."""
        if self.pending and all(self._reached(*wait) for wait in self.pending[0].waits):
            info = self.pending.popleft().info
            with enqueue_lock:
                result = self.handles.submit(self.handles.queue, 1, info, api.load().ffi.NULL)
            assert result == 0

    def _reached(self, semaphore: Any, value: int) -> bool:
        counter = api.load().ffi.new("uint64_t*")
        assert self.handles.counter(self.handles.device, semaphore, counter) == 0
        return int(counter[0]) >= value


def _copy(info: Any) -> Submission:
    vk = api.load()
    timelines = vk.ffi.cast("VkTimelineSemaphoreSubmitInfo*", info.pNext)
    nwaits, nsignals = info.waitSemaphoreCount, info.signalSemaphoreCount
    semaphores = [info.pWaitSemaphores[index] for index in range(nwaits)]
    wanted = [int(timelines.pWaitSemaphoreValues[index]) for index in range(nwaits)]
    values = vk.struct(
        "VkTimelineSemaphoreSubmitInfo",
        waitSemaphoreValueCount=nwaits,
        pWaitSemaphoreValues=wanted,
        signalSemaphoreValueCount=nsignals,
        pSignalSemaphoreValues=[timelines.pSignalSemaphoreValues[index] for index in range(nsignals)],
    )
    made = vk.struct(
        "VkSubmitInfo",
        pNext=values,
        waitSemaphoreCount=nwaits,
        pWaitSemaphores=semaphores,
        pWaitDstStageMask=[info.pWaitDstStageMask[index] for index in range(nwaits)],
        commandBufferCount=info.commandBufferCount,
        pCommandBuffers=[info.pCommandBuffers[index] for index in range(info.commandBufferCount)],
        signalSemaphoreCount=nsignals,
        pSignalSemaphores=[info.pSignalSemaphores[index] for index in range(nsignals)],
    )
    return Submission(made, list(zip(semaphores, wanted, strict=True)))


@contextmanager
def queues_apart(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make every queue that is opened in the block one apart; what was submitted in it has to be waited for in it."""
    made: list[tuple[Apart, Any]] = []  # with the callback, which must outlive the queue
    over = threading.Event()
    real = Queue._handles

    def handles(queue: Queue) -> QueueHandles:
        apart = Apart(real(queue))
        made.append((apart, api.load().ffi.callback("PFN_vkQueueSubmit", apart.submit)))
        return replace(apart.handles, submit=made[-1][1])

    def run() -> None:
        while not over.is_set() or any(apart.pending for apart, _ in made):
            for apart, _ in list(made):
                apart.step()
            time.sleep(0.0002)

    # The callback runs while the helper holds the lock of all submissions, where a finalizer may want that lock, too.
    gc.collect()
    gc.disable()
    patch.setattr(Queue, "_handles", handles)
    thread = threading.Thread(target=run, name="queues apart", daemon=True)
    thread.start()
    try:
        yield
    finally:
        gc.enable()
        over.set()
        thread.join(60)
        assert not thread.is_alive(), "submissions were left"
