"""A queue with its one timeline, and the reusable frames in which one-shot work is recorded."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from vkpar import env
from vkpar.errors import DeviceLostError, VulkanError, WaitTimeoutError
from vkpar.timeouts import SLICE_NS, Deadline
from vkpar.vulkan import api, capturing, tracing
from vkpar.vulkan.command import CommandBuffer, CommandPool, DescriptorPool
from vkpar.vulkan.gate import Gate
from vkpar.vulkan.machine import instance
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.pump import native
from vkpar.vulkan.pump.ports import QueueHandles, enqueue_lock
from vkpar.vulkan.semaphore import TimelineSemaphore

_log = logging.getLogger("vkpar")
_MAX_FRAMES = 128
_SETS_PER_FRAME = 4
DESCRIPTORS_PER_FRAME = 64
_SPIN_NS = 500_000  # longer than most hops between GPUs: NVIDIA's driver wakes blocked threads 0.1 to 7 ms late
_GLANCE_SECONDS = 0.001  # between looks at whether a thread has submitted what it was given
_RETRY_SECONDS = 0.02  # after a wait that failed


def _nobody() -> None:
    return None


def spin_ns(devices: Iterable[DeviceInfo], waiters: int) -> int:
    """Return how long waits spin before they block, since drivers of GPUs wake blocked threads late.

    Args:
        devices: that are waited for.
        waiters: threads that usually wait at the same time; the process has more cores than that, or nothing spins.
    """
    wanted = env.get().spin_us
    if wanted is not None:
        return 1000 * wanted
    cores = len(os.sched_getaffinity(0))
    return _SPIN_NS if cores > waiters and not any(info.is_cpu for info in devices) else 0


class _Call:
    """Stands for a call under way: it is gone when that has ended, in whichever way."""


class Frame:
    """A command buffer and descriptor pool for one submission, used again once that is done.

    Attributes:
        value: of the queue's timeline, at which it is done; None until that is known.
        taken_by: the call that records into it: a signal's handler may make another in the midst of that.
    """

    def __init__(self, device: Any, family: int) -> None:
        with ExitStack() as undo:
            self._pool = CommandPool(device, family)
            undo.callback(self._pool.close)
            self._descriptors = [DescriptorPool(device, _SETS_PER_FRAME, DESCRIPTORS_PER_FRAME)]
            undo.callback(self._descriptors[0].close)
            self.commands: CommandBuffer = self._pool.allocate()
            undo.pop_all()
        self._device = device
        self._sets = 0
        self.value: int | None = 0
        self.taken_by: Callable[[], _Call | None] = _nobody

    @property
    def is_taken(self) -> bool:
        """True while a call records into it."""
        return self.taken_by() is not None

    def begin(self) -> None:
        """Start recording."""
        self.commands.begin()

    def reset(self) -> None:
        """Forget what was recorded; it must not be pending."""
        while len(self._descriptors) > 1:
            self._descriptors.pop().close()
        self._descriptors[0].reset()
        self._sets = 0
        self._pool.reset()

    def descriptors(self, layout: Any, ranges: Sequence[BufferRange]) -> Any:
        """Return a descriptor set that lives as long as this frame's submission."""
        if self._sets == _SETS_PER_FRAME * len(self._descriptors):
            self._descriptors.append(DescriptorPool(self._device, _SETS_PER_FRAME, DESCRIPTORS_PER_FRAME))
        self._sets += 1
        return self._descriptors[-1].allocate(layout, ranges)

    def close(self) -> None:
        """Destroy the frame; it must not be pending."""
        while self._descriptors:
            self._descriptors.pop().close()
        self._pool.close()


class Queue:
    """A VkQueue; every submission signals the next value of its timeline.

    Attributes:
        device: the VkDevice.
        port: the pump's view of the queue.
        gate: shut before the queue is closed.
        exportable: its timeline may be exported to other devices.
        stamps: takes the times of what :meth:`run` submits; None where nobody traces.
    """

    stamps: Any = None

    def __init__(self, device: Any, info: DeviceInfo, family: int, label: str, gate: Gate, index: int = 0) -> None:
        vk = self._vk = api.load()
        self.device = self._device = device
        self._info = info
        self.gate = self._gate = gate
        self.exportable = info.features.timeline_export
        self.device_name = info.name
        self.family = family
        self.label = label
        made = vk.ffi.new("VkQueue*")
        vk.lib.vkGetDeviceQueue(device, family, index, made)
        self.handle = made[0]
        self._frames: deque[Frame] = deque()  # oldest submission first
        self._spin_ns = spin_ns([info], 1)
        with ExitStack() as undo:
            self.timeline = TimelineSemaphore(device, exportable=info.features.timeline_export)
            undo.callback(self.timeline.close)
            self.port = native.CQueue(self._handles(), naps=not info.is_cpu, skips=not instance.validating())
            undo.pop_all()

    def _handles(self) -> QueueHandles:
        device, function = self._device, self._vk.device_function
        return QueueHandles(
            device=device,
            queue=self.handle,
            timeline=self.timeline.handle,
            submit=function(device, "vkQueueSubmit"),
            wait=function(device, "vkWaitSemaphores"),
            signal=function(device, "vkSignalSemaphore"),
            counter=function(device, "vkGetSemaphoreCounterValue"),
        )

    @property
    def last(self) -> int:
        """The value that the newest submission will signal."""
        return self.port.last

    @property
    def reached(self) -> int:
        """The timeline's value now.

        Raises:
            InvalidUsageError: the device is closed.
        """
        with self._gate.lock():
            self._gate.check()
            return self.timeline.value()

    def run(self, record: Callable[[Frame], None]) -> int:
        """Record into a free frame, submit it, return its timeline value."""
        if capturing.by_thread:
            capturing.refuse(self.port.stream, "a copy between the host and a device")
        while True:
            with self._gate.lock(), enqueue_lock:
                self._gate.check()
                frame = self._free_frame()
                if frame is not None:
                    return self._run_in(frame, record)
                oldest = self._frames[0].value or 0
            self.wait(oldest)

    def _free_frame(self) -> Frame | None:
        """Return a frame that is not pending; None where as many as allowed are."""
        frames = self._frames
        for _ in range(len(frames)):
            if not frames[0].is_taken:
                break
            frames.rotate(-1)
        if frames and frames[0].value is None and not frames[0].is_taken:
            frames[0].value = self.last  # an interrupt ended a call, before it submitted or after
        if frames and not frames[0].is_taken and (frames[0].value or 0) <= self.timeline.value():
            self.confirm()
            frames[0].reset()
            return frames[0]
        if len(frames) == _MAX_FRAMES:
            return None
        frames.appendleft(Frame(self._device, self.family))
        return frames[0]

    def _run_in(self, frame: Frame, record: Callable[[Frame], None]) -> int:
        """Record into ``frame``, the first one, and submit it.

        It stays in the queue, at its end, and says what it waits for before it is submitted: wherever an interrupt ends
        this, it is there for later calls, and none takes it while it is pending.
        """
        call = _Call()
        frame.taken_by = weakref.ref(call)
        self._frames.rotate(-1)
        frame.begin()
        stamps = self.stamps
        row = None if stamps is None else stamps.begin(frame.commands)
        record(frame)
        if stamps is not None:
            stamps.end(frame.commands, row)
        frame.commands.end()
        frame.value = None
        frame.value = value = self.port.submit(frame.commands.handle)
        return value

    def wait(self, value: int, timeout: float | Deadline | None = None) -> None:
        """Block until the timeline has ``value``; Ctrl-C is answered within 100 ms.

        Raises:
            WaitTimeoutError: ``timeout`` seconds were not enough.
            DeviceLostError: the device is gone.
            InvalidUsageError: the device is closed; or ``timeout`` is no number, NaN or negative.
        """
        deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
        begun = 0.0 if tracing.watcher is None else time.monotonic()
        while not self._wait_slice(value, deadline):
            if deadline.passed:
                raise self._timeout(value, deadline.timeout)
        if tracing.watcher is not None:
            tracing.watcher.host(f"wait for {self._gate.what}", begun, queue=self.label, value=value)

    def _wait_slice(self, value: int, deadline: Deadline) -> bool:
        with self._gate.lock():
            self._gate.check()
            return native.wait([self.port], [value], deadline.left_ns(SLICE_NS), self._spin_ns) == 1

    def _timeout(self, value: int, timeout: float | None) -> WaitTimeoutError:
        reached = self.reached
        return WaitTimeoutError(
            f"{self._gate.what}: the {self.label} queue's timeline is at {reached}, not at {value}, after {timeout} s",
            {"device": self._info.name, "queue": self.label, "wanted": value, "reached": reached},
        )

    def passed(self, value: int, seconds: float = 0.1) -> bool:
        """Wait for ``value``, ``seconds`` at most; works after the gate was shut. A lost device has passed all.

        What was gathered and not submitted is not pending; what a thread is about to submit is.
        """
        try:
            if self.port.is_sending():
                time.sleep(min(seconds, _GLANCE_SECONDS))
                return False
            if not native.wait([self.port], [min(value, self.port.submitted)], int(seconds * 1e9)):
                return False
        except DeviceLostError:
            return True
        self.confirm()
        return True

    def confirm(self) -> None:
        """Before freeing what is done, let the validation layer know: it ignores the values of exported timelines."""
        if instance.validating() and self.timeline.exported:
            self.port.wait_idle(self._vk.device_function(self._device, "vkQueueWaitIdle"))

    def close(self) -> None:
        """Destroy frames and timeline; nothing may be pending."""
        while self._frames:
            self._frames.pop().close()
        self.port.close()
        self.timeline.close()


class Drained(Protocol):
    """A queue as far as it is drained."""

    @property
    def timeline(self) -> Any:
        """What tells its value."""

    @property
    def device_name(self) -> str:
        """What errors call it."""

    def passed(self, value: int, seconds: float = 0.1) -> bool:
        """Wait for ``value``, ``seconds`` at most."""


def drain(
    queues: Sequence[Drained], values: Sequence[int], patience: float, look: Callable[[], object] = _nobody
) -> list[int]:
    """Wait for each queue's timeline value; works after their gates were shut.

    A look that fails, for want of memory, says nothing: it is tried again.

    Args:
        queues: that are waited for.
        values: of their timelines.
        patience: seconds.
        look: called again and again meanwhile: it may find out that they wait for something in vain.

    Returns:
        the numbers of those that are late where none of them moved for ``patience`` seconds.
    """
    late, seen, since = list(range(len(queues))), [-1], time.monotonic()
    failed: VulkanError | None = None
    while late and time.monotonic() - since < patience:
        look()
        try:
            queues[late[0]].passed(values[late[0]])
            late = [index for index in late if not queues[index].passed(values[index], 0)]
            reached = [queues[index].timeline.value() for index in late]
        except VulkanError as error:
            failed = error
            time.sleep(_RETRY_SECONDS)
            continue
        if reached != seen:
            seen, since = reached, time.monotonic()
    if late and failed is not None:
        _log.error("waiting for %s, which is being closed, failed: %s", queues[late[0]].device_name, failed)
    return late
