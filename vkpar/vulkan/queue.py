"""A queue with its one timeline, and the reusable frames in which one-shot work is recorded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from vkpar.errors import DeviceLostError, WaitTimeoutError
from vkpar.vulkan import api, instance, pump
from vkpar.vulkan.buffer import BufferRange
from vkpar.vulkan.command import CommandBuffer, CommandPool, DescriptorPool
from vkpar.vulkan.gate import Gate
from vkpar.vulkan.physical import DeviceInfo
from vkpar.vulkan.semaphore import TimelineSemaphore

_MAX_FRAMES = 128
_SETS_PER_FRAME = 4
DESCRIPTORS_PER_FRAME = 64
_SLICE_NS = 100_000_000


class Frame:
    """A command buffer and descriptor pool for one submission, used again once that is done."""

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
        self.value = 0

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

    Args:
        device: the VkDevice.
        info: the physical device.
        family: the queue family.
        label: ``compute`` or ``transfer``, for messages.
        gate: shut before the queue is closed.
        index: which of the family's queues it is.

    Attributes:
        port: the pump's view of the queue.
        gate: shut before the queue is closed.
        exportable: its timeline may be exported to other devices.
    """

    def __init__(self, device: Any, info: DeviceInfo, family: int, label: str, gate: Gate, index: int = 0) -> None:
        vk = self._vk = api.load()
        self._device = device
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
        with ExitStack() as undo:
            self.timeline = TimelineSemaphore(device, exportable=info.features.timeline_export)
            undo.callback(self.timeline.close)
            self.port = pump.make_queue(self._handles(), naps=not info.is_cpu)
            undo.pop_all()

    def _handles(self) -> pump.QueueHandles:
        device, function = self._device, self._vk.device_function
        return pump.QueueHandles(
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
        while True:
            with self._gate.lock(), pump.enqueue_lock:
                self._gate.check()
                frame = self._free_frame()
                if frame is not None:
                    return self._run_in(frame, record)
                oldest = self._frames[0].value
            self.wait(oldest)

    def _free_frame(self) -> Frame | None:
        """Return a frame that is not pending; None where as many as allowed are."""
        if self._frames and self._frames[0].value <= self.timeline.value():
            frame = self._frames.popleft()
            self.confirm()
            frame.reset()
            return frame
        return Frame(self._device, self.family) if len(self._frames) < _MAX_FRAMES else None

    def _run_in(self, frame: Frame, record: Callable[[Frame], None]) -> int:
        before = self.last
        try:
            frame.begin()
            record(frame)
            frame.commands.end()
            frame.value = self.port.submit(frame.commands.handle)
        except BaseException:
            if self.last > before:
                frame.value = self.last  # it was submitted: the interrupt came right after
            raise
        finally:
            self._frames.append(frame)
        return frame.value

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Block until the timeline has ``value``; Ctrl-C is answered within 100 ms.

        Raises:
            WaitTimeoutError: ``timeout`` seconds were not enough.
            DeviceLostError: the device is gone.
            InvalidUsageError: the device is closed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._wait_slice(value, deadline):
            if deadline is not None and time.monotonic() >= deadline:
                raise self._timeout(value, timeout)

    def _wait_slice(self, value: int, deadline: float | None) -> bool:
        left = _SLICE_NS if deadline is None else int((deadline - time.monotonic()) * 1e9)
        with self._gate.lock():
            self._gate.check()
            return pump.wait([self.port], [value], max(0, min(left, _SLICE_NS))) == 1

    def _timeout(self, value: int, timeout: float | None) -> WaitTimeoutError:
        reached = self.timeline.value()
        return WaitTimeoutError(
            f"{self._info.name}: the {self.label} queue's timeline is at {reached}, not at {value}, after {timeout} s",
            {"device": self._info.name, "queue": self.label, "wanted": value, "reached": reached},
        )

    def passed(self, value: int, seconds: float = 0.1) -> bool:
        """Wait for ``value``, ``seconds`` at most; works after the gate was shut. A lost device has passed all.

        What was gathered and not submitted is not pending.
        """
        try:
            if not pump.wait([self.port], [min(value, self.port.submitted)], int(seconds * 1e9)):
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


def drain(queues: Sequence[Queue], values: Sequence[int], patience: float) -> list[int]:
    """Wait for each queue's timeline value; works after their gates were shut.

    Returns:
        the numbers of those that are late where none of them moved for ``patience`` seconds.
    """
    late, seen, since = list(range(len(queues))), [-1], time.monotonic()
    while late and time.monotonic() - since < patience:
        queues[late[0]].passed(values[late[0]])
        late = [index for index in late if not queues[index].passed(values[index], 0)]
        reached = [queues[index].timeline.value() for index in late]
        if reached != seen:
            seen, since = reached, time.monotonic()
    return late
