"""An opened device: queues, memory, pipelines and staging of one VkDevice."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from vkpar import env
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan import api, instance
from vkpar.vulkan.buffer import Buffer, BufferRange
from vkpar.vulkan.kernel import Pipeline, PipelineCache
from vkpar.vulkan.memory import Allocator
from vkpar.vulkan.physical import DeviceInfo, QueueFamily
from vkpar.vulkan.queue import Frame, Queue
from vkpar.vulkan.staging import Staging

_log = logging.getLogger("vkpar")
_EXTENSIONS = ("VK_EXT_external_memory_host", "VK_KHR_external_semaphore_fd", "VK_EXT_queue_family_foreign")
_DRAIN_SECONDS = 10.0


class LogicalDevice:
    """A VkDevice with what belongs to it.

    Attributes:
        info: the physical device.
        compute: the queue that kernels run on.
        transfer: the queue that uploads and downloads run on; the compute queue where there is no other.
    """

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self._vk = api.load()
        _require(info)
        compute, transfer = _choose_families(info)
        self.families = (compute, transfer)
        self.handle: Any = _create(info, sorted({compute, transfer}))
        self.compute = Queue(self.handle, info, compute, "compute")
        self.transfer = self.compute
        if transfer != compute:
            self.transfer = Queue(self.handle, info, transfer, "transfer")
            self.compute.port.pair(self.transfer.port)
        self.allocator = Allocator(self.handle, info, self.families)
        self.pipelines = PipelineCache(self.handle)
        self.staging = Staging(self.allocator, self.transfer, env.get().ring_bytes)
        self._retired: deque[tuple[int, int, Buffer]] = deque()
        self._reaping = threading.Lock()
        self.closed = False
        self.quarantined = False

    def check_open(self) -> None:
        """Refuse use after close, after a fork, and raise what the validation layer has reported.

        Raises:
            InvalidUsageError, ValidationError
        """
        if self.closed:
            raise InvalidUsageError(f"{self.info.name} is closed")
        instance.get()
        instance.raise_messages()

    def allocate(self, nbytes: int) -> Buffer:
        """Return a new buffer of device memory.

        Raises:
            OutOfMemoryError, UnsupportedError
        """
        self.reap()
        return self.allocator.allocate(nbytes)

    def retire(self, buffer: Buffer) -> None:
        """Release ``buffer`` once all work submitted so far is done; safe in a finalizer."""
        if not self.closed:
            self._retired.append((self.compute.last, self.transfer.last, buffer))

    def reap(self) -> None:
        """Release the retired buffers whose work is done."""
        if not self._retired or not self._reaping.acquire(blocking=False):
            return
        try:
            compute, transfer = self.compute.timeline.value(), self.transfer.timeline.value()
            while self._retired and self._retired[0][0] <= compute and self._retired[0][1] <= transfer:
                self.allocator.release(self._retired.popleft()[2])
        finally:
            self._reaping.release()

    def dispatch(
        self, pipeline: Pipeline, ranges: Sequence[BufferRange], push: bytes, groups: tuple[int, int, int]
    ) -> int:
        """Run a kernel after everything before it; return the compute timeline's value that marks its end."""
        self._check_ranges(ranges, groups)

        def record(frame: Frame) -> None:
            descriptors = frame.descriptors(pipeline.layout.set_layout, ranges)
            frame.commands.record_order()
            frame.commands.record_dispatch(pipeline, descriptors, push, groups)

        return self.compute.run(record)

    def _check_ranges(self, ranges: Sequence[BufferRange], groups: tuple[int, int, int]) -> None:
        limits = self.info.limits
        for item in ranges:
            if item.nbytes > limits.max_storage_buffer_range:
                raise UnsupportedError(
                    f"a kernel on {self.info.name} can bind {limits.max_storage_buffer_range} bytes "
                    f"(maxStorageBufferRange), not {item.nbytes}"
                )
            if item.offset % limits.min_storage_buffer_offset_alignment:
                raise InvalidUsageError(
                    f"an array that starts at byte {item.offset} of its buffer cannot be bound on {self.info.name}: "
                    f"the offset must be a multiple of {limits.min_storage_buffer_offset_alignment} "
                    "(minStorageBufferOffsetAlignment)"
                )
        if any(wanted > most for wanted, most in zip(groups, limits.max_workgroup_count, strict=True)):
            raise InvalidUsageError(f"{groups} work-groups; {self.info.name} allows {limits.max_workgroup_count}")

    def copy(self, source: BufferRange, target: BufferRange) -> int:
        """Copy bytes on the device, in program order."""

        def record(frame: Frame) -> None:
            frame.commands.record_order()
            frame.commands.record_copy(source, target)

        return self.compute.run(record)

    def zero(self, target: BufferRange) -> int:
        """Fill with zero bytes, in program order."""

        def record(frame: Frame) -> None:
            frame.commands.record_order()
            frame.commands.record_zeros(target)

        return self.compute.run(record)

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until everything submitted is done.

        Raises:
            WaitTimeoutError: ``timeout`` seconds were not enough.
        """
        self.compute.wait(self.compute.last, timeout)
        if self.transfer is not self.compute:
            self.transfer.wait(self.transfer.last, timeout)

    def close(self) -> None:
        """Wait for pending work, then free everything; a device that does not drain is left alone and counted."""
        if self.closed:
            return
        drained = self.compute.drained(_DRAIN_SECONDS) and self.transfer.drained(_DRAIN_SECONDS)
        self.closed = True
        self._retired.clear()
        if not drained:
            self.quarantined = True
            _log.error("%s did not finish its work in %s s; its handles are leaked", self.info.name, _DRAIN_SECONDS)
            return
        self.staging.close()
        self.pipelines.close()
        self.allocator.close()
        if self.transfer is not self.compute:
            self.transfer.close()
        self.compute.close()
        self._vk.destroy("Device", None, self.handle)
        self.handle = None


def _require(info: DeviceInfo) -> None:
    if info.api_version < (1, 2, 0):
        version = ".".join(str(part) for part in info.api_version)
        raise UnsupportedError(f"{info.name} offers Vulkan {version}; vkpar needs 1.2")
    if not info.features.timeline_semaphore:
        raise UnsupportedError(f"{info.name} lacks timelineSemaphore")
    if not any(family.compute for family in info.queue_families):
        raise UnsupportedError(f"{info.name} has no compute queue")


def _choose_families(info: DeviceInfo) -> tuple[int, int]:
    """Return the compute family, and the family of a copy engine where there is one."""
    compute = next(family for family in info.queue_families if family.compute)

    def is_copy_engine(family: QueueFamily) -> bool:
        return family.transfer and not family.compute and not family.graphics

    copy = next((family for family in info.queue_families if is_copy_engine(family)), compute)
    return compute.index, copy.index


def _create(info: DeviceInfo, families: list[int]) -> Any:
    vk = api.load()
    features = info.features
    priority = [1.0]
    queues = [
        vk.struct("VkDeviceQueueCreateInfo", queueFamilyIndex=family, queueCount=1, pQueuePriorities=priority)
        for family in families
    ]
    eleven = vk.struct("VkPhysicalDeviceVulkan11Features", storageBuffer16BitAccess=features.storage_16bit)
    twelve = vk.struct(
        "VkPhysicalDeviceVulkan12Features",
        pNext=eleven,
        timelineSemaphore=1,
        storageBuffer8BitAccess=features.storage_8bit,
        shaderFloat16=features.float16,
        shaderInt8=features.int8,
    )
    two = vk.struct("VkPhysicalDeviceFeatures2", pNext=twelve)
    two.features.shaderInt16 = features.int16
    two.features.shaderInt64 = features.int64
    extensions = [name for name in _EXTENSIONS if name in info.extensions]
    create = vk.struct(
        "VkDeviceCreateInfo",
        pNext=two,
        queueCreateInfoCount=len(queues),
        pQueueCreateInfos=queues,
        enabledExtensionCount=len(extensions),
        ppEnabledExtensionNames=extensions,
    )
    return vk.create("Device", info.handle, create, info.name)
