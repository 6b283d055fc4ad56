"""Timestamps around all that a device's queues are given while a trace is open."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vkpar.errors import VkparError
from vkpar.vulkan import api
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.query import DeviceClock, QueryPool, Sample
from vkpar.vulkan.queue import Queue
from vkpar.vulkan.stream import name_of

OPERATIONS: Final = 1 << 17  # that a trace holds of a device
_SUBMISSIONS: Final = 1 << 16
_COPIES: Final = 1 << 13  # between the host and a device, of each queue
DRAIN_SECONDS: Final = 30.0


class Stamp(NamedTuple):
    """An operation: its queue and name, when the host asked for it, and the device's counter around it."""

    queue: str
    name: str
    asked: float
    begin: int
    end: int


class Sent(NamedTuple):
    """A submission of gathered operations: when the host made it, in seconds, and how many there were."""

    begin: float
    end: float
    operations: int


class DeviceStamps:
    """Takes the times of everything that goes to a device from now until :meth:`finish`.

    Attributes:
        clock: the device's counter; ``start`` and ``end`` are looks at it beside the host's clock.
        stamps, sent: what ran and what was submitted, once it is finished.
        dropped: operations for which there was no room.

    Raises:
        UnsupportedError: the device's compute queue writes no timestamps.
        VkparError: the device is closed, or lost.
    """

    def __init__(self, device: LogicalDevice) -> None:
        self.device, self.clock = device, DeviceClock(device)
        self.start: Sample = self.clock.sample()
        self.end: Sample | None = None
        self.stamps: list[Stamp] = []
        self.sent: list[Sent] = []
        self.dropped = 0
        self._pool = _pool(device.handle, OPERATIONS)
        function = api.load().device_function(device.handle, "vkCmdWriteTimestamp")
        address = api.load().address
        self._trace: tuple[Any, ...] | None = _filled(device, address(self._pool.handle), address(function))
        device.stream.trace(self._trace)
        families = {item.index: item.timestamp_bits for item in device.info.queue_families}
        self._copies = [_Copies(queue) for queue in device.queues if families[queue.family] == self.clock.bits]

    def finish(self) -> None:
        """Wait for what was traced and read its times; a second call does nothing.

        Raises:
            VkparError: the device is lost, or does not end its work.
        """
        trace, self._trace = self._trace, None
        if trace is None:
            return
        self.device.stream.trace(None)
        for copies in self._copies:
            copies.queue.stamps = None
        try:
            for queue in self.device.queues:
                queue.wait(queue.last, DRAIN_SECONDS)
            with suppress(VkparError):
                self.end = self.clock.sample(DRAIN_SECONDS)
            self._read(trace[0])
        finally:
            if all(
                queue.passed(queue.last, 0) for queue in self.device.queues
            ):  # else they are leaked, as the device is
                for pool in (self._pool, *(copies.pool for copies in self._copies)):
                    pool.close()

    def _read(self, trace: Any) -> None:
        ticks = self._pool.read_first(trace.queries)
        self.stamps = [
            Stamp("compute", name_of(row.name), 1e-9 * row.at, ticks[row.begin], ticks[row.end])
            for row in trace.stamps[0 : trace.used]
        ]
        self.sent = [Sent(1e-9 * r.begun, 1e-9 * r.ended, r.operations) for r in trace.sent[0 : trace.sent_used]]
        self.dropped = trace.dropped + sum(copies.dropped for copies in self._copies)
        for copies in self._copies:
            self.stamps += copies.read()


class _Copies:
    """The copies between the host and a device that one queue makes."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.dropped = queue, 0
        self.pool = _pool(queue.device, _COPIES)
        self._asked: list[float] = []
        queue.stamps = self

    def begin(self, commands: CommandBuffer) -> int | None:
        """Record a timestamp; None where there is no room for more."""
        row = len(self._asked)
        if row == _COPIES:
            self.dropped += 1
            return None
        self._asked.append(time.monotonic())
        commands.record_timestamp(self.pool.handle, 2 * row)
        return row

    def end(self, commands: CommandBuffer, row: int | None) -> None:
        """Record the timestamp behind the copy of that row."""
        if row is not None:
            commands.record_timestamp(self.pool.handle, 2 * row + 1)

    def read(self) -> list[Stamp]:
        """Return their times, which are all written."""
        ticks = self.pool.read_first(2 * len(self._asked))
        rows = zip(self._asked, ticks[::2], ticks[1::2], strict=True)
        return [Stamp(f"host copies on the {self.queue.label}", "host copy", *row) for row in rows]


def _filled(device: LogicalDevice, pool: int, write: int) -> tuple[Any, ...]:
    """Return a ``vkp_trace`` that the helper fills, two queries an operation, and the arrays that it points at."""
    ffi = device.compute.port._c.ffi
    made, stamps, sent = ffi.new("vkp_trace*"), ffi.new("vkp_stamp[]", OPERATIONS), ffi.new("vkp_sent[]", _SUBMISSIONS)
    made.pool, made.write, made.room, made.sent_room = pool, write, OPERATIONS, _SUBMISSIONS
    made.stamps, made.sent = stamps, sent
    return made, stamps, sent


def _pool(device: Any, rows: int) -> QueryPool:
    """Return two queries for each row, of a VkDevice, all empty."""
    pool = QueryPool(device, 2 * rows)
    pool.reset()
    return pool
