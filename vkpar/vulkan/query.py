"""Timestamps: the queries that a queue writes them to, and what a device's counter says in the host's seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from vkpar.errors import UnsupportedError
from vkpar.timeouts import QUERY_SECONDS
from vkpar.vulkan import api
from vkpar.vulkan.command import check_dispatch
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.machine import instance
from vkpar.vulkan.machine.create import CLOCK_EXTENSIONS
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.pipelines.kernel import Pipeline
from vkpar.vulkan.pump import native
from vkpar.vulkan.queue import Frame

MEASURED = "measured"
_DEVICE, _CLOCK_MONOTONIC = 0, 1  # VkTimeDomainKHR
_INFO = 1000184000  # VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT and _KHR; the package has another number
_LOOKS = 8  # of which the tightest is taken
_SPIN_NS = 2_000_000  # a lone timestamp is there sooner; waking up from a blocked wait would widen its bracket


class QueryPool:
    """Timestamp queries of one device; :meth:`CommandBuffer.record_timestamp` fills them."""

    def __init__(self, device: Any, number: int) -> None:
        vk = self._vk = api.load()
        self._device = device
        self._number = number
        kind = vk.vk.VK_QUERY_TYPE_TIMESTAMP
        info = vk.struct("VkQueryPoolCreateInfo", queryType=kind, queryCount=number)
        self.handle = vk.create("QueryPool", device, info)

    def read(self) -> list[int] | None:
        """Return the counter's value of every query; None where not all were written.

        The batches that write them are done; lavapipe waits for everything else on the device, too.

        Raises:
            VulkanError: the device is lost.
        """
        return self._read(self._number)

    def read_first(self, number: int) -> list[int]:
        """Return the counter's value of the first queries, zeros where not all were written; as :meth:`read` does."""
        return (self._read(number) if number else None) or [0] * number

    def _read(self, number: int) -> list[int] | None:
        vk, flags = self._vk, self._vk.vk.VK_QUERY_RESULT_64_BIT
        found = vk.ffi.new("uint64_t[]", number)
        size = vk.ffi.sizeof(found)
        result = vk.lib.vkGetQueryPoolResults(self._device, self.handle, 0, number, size, found, 8, flags)
        vk.check(result, "vkGetQueryPoolResults")
        return vk.ffi.unpack(found, number) if result == vk.vk.VK_SUCCESS else None

    def reset(self) -> None:
        """Empty all queries, as queues that only copy cannot; no batch that uses them may be pending."""
        self._vk.device_function(self._device, "vkResetQueryPool")(self._device, self.handle, 0, self._number)

    def close(self) -> None:
        """Destroy the pool; no batch that uses it may be pending."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._vk.destroy("QueryPool", self._device, handle)


@dataclass(frozen=True)
class Sample:
    """One moment on both clocks.

    Attributes:
        ticks: the device's counter.
        seconds: of ``time.monotonic``; off by ``uncertainty`` seconds at most.
    """

    ticks: int
    seconds: float
    uncertainty: float


class DeviceClock:
    """A device's timestamp counter, and what it says beside the host's clock.

    Attributes:
        device: whose counter it is.
        bits: valid bits of the counter.
        period: seconds of a tick, as the driver says.
        method: the extension that reads both clocks at once, or ``"measured"``: the host's clock before and after a
            lone timestamp.

    Raises:
        UnsupportedError: the device's compute queue writes no timestamps.
    """

    def __init__(self, device: LogicalDevice) -> None:
        self.device = self._device = device
        info = device.info
        self.bits = next(item.timestamp_bits for item in info.queue_families if item.index == device.compute.family)
        self.period = 1e-9 * info.limits.timestamp_period_ns
        if not self.bits or not self.period:
            raise UnsupportedError(f"{info.name} has no timestamps on its compute queue (timestampValidBits is 0)")
        extension = _extension(device)
        with device.gate.lock():  # a close in another thread waits
            device.gate.check()
            self._function = None if extension is None else _function(device, extension)
        self.method = extension if extension and self._function else MEASURED

    @property
    def mask(self) -> int:
        """The counter's valid bits."""
        return (1 << self.bits) - 1

    def sample(self, timeout: float | None = None) -> Sample:
        """Return the most certain of several looks; a measured one waits for what is pending on the device.

        Args:
            timeout: seconds for that wait.

        Raises:
            WaitTimeoutError: they were not enough.
            InvalidUsageError: the device is closed.
            VulkanError: it is lost.
        """
        look: Callable[[], Sample] = self._calibrated
        with ExitStack() as stack:
            stack.enter_context(self._device.gate.lock())
            self._device.gate.check()
            if self._function is None:
                self._device.compute.wait(self._device.compute.last, timeout)
                lone = _Lone(self._device)
                stack.callback(lone.close)
                look = lone.look
            samples = [look() for _ in range(_LOOKS)]
        best = min(samples, key=lambda sample: sample.uncertainty)
        return Sample(best.ticks & self.mask, best.seconds, best.uncertainty)

    def _calibrated(self) -> Sample:
        vk = api.load()
        infos = vk.ffi.new("VkCalibratedTimestampInfoKHR[2]")
        for info, domain in zip(infos, (_DEVICE, _CLOCK_MONOTONIC), strict=True):
            info.sType = _INFO
            info.timeDomain = domain
        found, deviation = vk.ffi.new("uint64_t[2]"), vk.ffi.new("uint64_t*")
        assert self._function is not None
        result = self._function(self._device.handle, 2, infos, found, deviation)
        vk.check(result, "vkGetCalibratedTimestamps", self._device.info.name)
        return Sample(int(found[0]), 1e-9 * int(found[1]), 1e-9 * int(deviation[0]))


class _Lone:
    """Has a device write a timestamp on its own, between two looks at the host's clock; its gate is held meanwhile."""

    def __init__(self, device: LogicalDevice) -> None:
        self._device = device
        self._pool = QueryPool(device.handle, 1)

    def look(self) -> Sample:
        queue = self._device.compute
        stamps, queue.stamps = queue.stamps, None  # a look at the clock is no work to trace
        try:
            before = time.monotonic()
            value = queue.run(self._record)
            native.wait([queue.port], [value], _SPIN_NS, _SPIN_NS)
            after = time.monotonic()
        finally:
            queue.stamps = stamps
        queue.wait(value)
        ticks = self._pool.read()
        return Sample(ticks[0] if ticks else 0, (before + after) / 2, (after - before) / 2)

    def close(self) -> None:
        """Free the query; it is leaked where an interrupt left it with a device that does not go on."""
        if self._device.compute.passed(self._device.compute.last, QUERY_SECONDS):
            self._pool.close()

    def _record(self, frame: Frame) -> None:
        frame.commands.record_reset(self._pool.handle, 0, 1)
        frame.commands.record_timestamp(self._pool.handle, 0)


def timed_runs(
    clock: DeviceClock,
    pipeline: Pipeline,
    ranges: Sequence[BufferRange],
    push: bytes,
    groups: tuple[int, int, int],
    number: int,
) -> list[float]:
    """Return the seconds that each of ``number`` runs of a kernel takes, after one more and all earlier work.

    Raises:
        InvalidUsageError, UnsupportedError: as :func:`~vkpar.vulkan.command.check_dispatch` does.
        InvalidUsageError: the device is closed, meanwhile too.
        DeviceLostError: the device is gone.
    """
    device = clock.device
    check_dispatch(device.info.limits, device.label, ranges, groups)
    with device.gate.lock():  # a close in another thread waits, until the next look at the gate
        device.gate.check()
        ticks = _timed(device, pipeline, ranges, push, groups, number)
    return [clock.period * (end - start & clock.mask) for start, end in zip(ticks[::2], ticks[1::2], strict=True)]


def _timed(
    device: LogicalDevice,
    pipeline: Pipeline,
    ranges: Sequence[BufferRange],
    push: bytes,
    groups: tuple[int, int, int],
    number: int,
) -> list[int]:
    """Return the counter's values around each run; the caller is inside the device's gate."""
    pool = QueryPool(device.handle, 2 * number)

    def record(frame: Frame) -> None:
        commands = frame.commands
        commands.record_reset(pool.handle, 0, 2 * number)
        sets = frame.descriptors(pipeline.layout.set_layout, ranges)
        for run in range(-1, number):
            commands.record_order()
            if run >= 0:
                commands.record_timestamp(pool.handle, 2 * run)
            commands.record_dispatch(pipeline, sets, push, groups)
            if run >= 0:
                commands.record_timestamp(pool.handle, 2 * run + 1)

    try:
        device.compute.wait(device.compute.run(record))
        return pool.read() or [0] * (2 * number)
    finally:
        if device.compute.passed(device.compute.last, QUERY_SECONDS):
            pool.close()


def _extension(device: LogicalDevice) -> str | None:
    """Return the enabled extension that reads a device's and the host's clock at once."""
    return next((name for name in CLOCK_EXTENSIONS if name in device.info.extensions), None)


def _function(device: LogicalDevice, extension: str) -> Any:
    """Return the extension's function; None where it does not know both clocks."""
    vk, suffix = api.load(), extension[3:6]
    name = f"vkGetPhysicalDeviceCalibrateableTimeDomains{suffix}"
    listing = vk.instance_function(instance.get().handle, name)
    if listing is None:
        return None
    domains = set(vk.enumerate("VkTimeDomainKHR", name, device.info.handle, function=listing))
    known = {_DEVICE, _CLOCK_MONOTONIC} <= domains
    return vk.device_function(device.handle, f"vkGetCalibratedTimestamps{suffix}") if known else None
