"""A queue with its one timeline, and the reusable frames in which one-shot work is recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from vkpar.errors import DeviceLostError, WaitTimeoutError
from vkpar.vulkan import api, pump
from vkpar.vulkan.buffer import BufferRange
from vkpar.vulkan.command import CommandBuffer, CommandPool, DescriptorPool
from vkpar.vulkan.physical import DeviceInfo
from vkpar.vulkan.semaphore import TimelineSemaphore

_MAX_FRAMES = 128
_SETS_PER_FRAME = 4
_DESCRIPTORS_PER_FRAME = 64
_SLICE_NS = 100_000_000


class Frame:
    """A command buffer and descriptor pool for one submission, used again once that is done."""

    def __init__(self, device: Any, family: int) -> None:
        self._pool = CommandPool(device, family)
        self._descriptors = DescriptorPool(device, _SETS_PER_FRAME, _DESCRIPTORS_PER_FRAME)
        self.commands: CommandBuffer = self._pool.allocate()
        self.value = 0

    def begin(self) -> None:
        """Forget what was recorded and start over."""
        self._descriptors.reset()
        self.commands.begin()

    def descriptors(self, layout: Any, ranges: Sequence[BufferRange]) -> Any:
        """Return a descriptor set that lives as long as this frame's submission."""
        return self._descriptors.allocate(layout, ranges)

    def close(self) -> None:
        """Destroy the frame; it must not be pending."""
        self._descriptors.close()
        self._pool.close()


class Queue:
    """A VkQueue; every submission signals the next value of :attr:`timeline`.

    Attributes:
        family: its queue family index.
        port: the pump's view of the queue.
    """

    def __init__(self, device: Any, info: DeviceInfo, family: int, label: str) -> None:
        vk = self._vk = api.load()
        self._device = device
        self._info = info
        self.family = family
        self.label = label
        made = vk.ffi.new("VkQueue*")
        vk.lib.vkGetDeviceQueue(device, family, 0, made)
        self.handle = made[0]
        self.timeline = TimelineSemaphore(device, exportable=info.features.timeline_export)
        self.port = pump.make_queue(
            pump.QueueHandles(
                device=device,
                queue=self.handle,
                timeline=self.timeline.handle,
                submit=vk.device_function(device, "vkQueueSubmit"),
                wait=vk.device_function(device, "vkWaitSemaphores"),
                signal=vk.device_function(device, "vkSignalSemaphore"),
                counter=vk.device_function(device, "vkGetSemaphoreCounterValue"),
            )
        )
        self._frames: deque[Frame] = deque()  # oldest submission first

    @property
    def last(self) -> int:
        """The value that the newest submission will signal."""
        return self.port.last

    def run(self, record: Callable[[Frame], None]) -> int:
        """Record into a free frame, submit it, return its timeline value."""
        while True:
            with pump.enqueue_lock:
                frame = self._free_frame()
                if frame is not None:
                    return self._run_in(frame, record)
                oldest = self._frames[0].value
            self.wait(oldest)

    def _free_frame(self) -> Frame | None:
        """Return a frame that is not pending; None where as many as allowed are."""
        if self._frames and self._frames[0].value <= self.timeline.value():
            return self._frames.popleft()
        return Frame(self._device, self.family) if len(self._frames) < _MAX_FRAMES else None

    def _run_in(self, frame: Frame, record: Callable[[Frame], None]) -> int:
        try:
            frame.begin()
            record(frame)
            frame.commands.end()
            frame.value = self.port.submit(frame.commands.handle)
        except BaseException:
            frame.value = self.last  # it may have been submitted: an interrupt can come right after
            raise
        finally:
            self._frames.append(frame)
        return frame.value

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Block until the timeline has ``value``; Ctrl-C is answered within 100 ms.

        Raises:
            WaitTimeoutError: ``timeout`` seconds were not enough.
            DeviceLostError: the device is gone.
        """
        left = None if timeout is None else int(timeout * 1e9)
        while not pump.wait([self.port], [value], _SLICE_NS if left is None else max(0, min(left, _SLICE_NS))):
            if left is not None:
                left -= _SLICE_NS
                if left <= 0:
                    raise self._timeout(value, timeout)

    def _timeout(self, value: int, timeout: float | None) -> WaitTimeoutError:
        reached = self.timeline.value()
        return WaitTimeoutError(
            f"{self._info.name}: the {self.label} queue's timeline is at {reached}, not at {value}, after {timeout} s",
            {"device": self._info.name, "queue": self.label, "wanted": value, "reached": reached},
        )

    def drained(self, timeout: float) -> bool:
        """Wait until everything submitted is done; False when that took longer or the device was lost."""
        try:
            self.wait(self.last, timeout)
        except WaitTimeoutError:
            return False
        except DeviceLostError:
            return True  # VK_ERROR_DEVICE_LOST: nothing runs any more, objects may be destroyed
        return True

    def close(self) -> None:
        """Destroy frames and timeline; nothing may be pending."""
        for frame in self._frames:
            frame.close()
        self._frames.clear()
        self.port.close()
        self.timeline.close()
