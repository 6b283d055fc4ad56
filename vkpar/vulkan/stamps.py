"""Timestamps around what a device's queues are given while a trace is open, as many as a trace may cost."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vkpar.errors import VkparError
from vkpar.timeouts import DRAIN_SECONDS
from vkpar.vulkan import api
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.query import DeviceClock, QueryPool, Sample
from vkpar.vulkan.queue import Frame, Queue
from vkpar.vulkan.stream import name_of

OPERATIONS: Final = 1 << 17  # that a trace holds of a device
_SUBMISSIONS: Final = 1 << 16
_COPIES: Final = 1 << 13  # between the host and a device, of each queue
_TRIED: Final = 16  # timestamps that tell what one costs
_LEAST: Final = 2e-7  # seconds that one costs, whatever was measured
_FIRST: Final = 0.002  # seconds that timestamps may cost at first, so that short traces have all of them
_SURE: Final = 128  # timestamps, and a sixteenth as many runs, that there are at first, whatever they cost
_PART: Final = 32  # the part of the time that passes which they may cost then; the helper has the same
_PYTHON: Final = 1e-4  # what it takes the host to read the times of a run and note it
_NO_QUERY: Final = (1 << 32) - 1


class Stamp(NamedTuple):
    """An operation: its queue and name, when the host asked for it, and the device's counter around it.

    The counter is None where the operation had no timestamps of its own, since those cost time.
    """

    queue: str
    name: str
    asked: float
    begin: int | None
    end: int | None


class Sent(NamedTuple):
    """A submission of gathered operations: when the host made it, in seconds, and how many there were."""

    begin: float
    end: float
    operations: int


class Allowance:
    """What may be timed: the first runs, then as many as take a part of the time that passes.

    Args:
        price: seconds that a timestamp costs.
        each: seconds that a run costs besides.

    Attributes:
        refused: how many runs were not to be timed.
    """

    def __init__(self, price: float, each: float = _PYTHON) -> None:
        self._price, self._each = price, each
        self._sure, self.refused = _SURE // 16, 0
        self._purse, self._looked = _FIRST, time.monotonic()

    def pays(self, stamps: int) -> bool:
        """Say whether a run with so many timestamps may be timed, which is paid for then."""
        cost, now = self._each + stamps * self._price, time.monotonic()
        self._purse = max(self._purse, min(self._purse + (now - self._looked) / _PART, 4 * cost))
        self._looked = now
        if self._sure:
            self._sure -= 1
            return True
        if self._purse < cost:
            self.refused += 1
            return False
        self._purse -= cost
        return True


class DeviceStamps:
    """Takes the times of what goes to a device from now until :meth:`finish`.

    Attributes:
        clock: the device's counter; ``start`` and ``end`` are looks at it beside the host's clock.
        price: seconds that a timestamp costs the device.
        stamps, sent: what ran and what was submitted, once it is finished.
        dropped: operations for which there was no room.

    Raises:
        UnsupportedError: the device's compute queue writes no timestamps.
        VkparError: the device is closed, or lost.
    """

    def __init__(self, device: LogicalDevice) -> None:
        self.device, self.clock = device, DeviceClock(device)
        self.price = _price(device, self.clock)
        self.start: Sample = self.clock.sample()
        self.end: Sample | None = None
        self.stamps: list[Stamp] = []
        self.sent: list[Sent] = []
        self.dropped = 0
        self._pool = _pool(device.handle, 2 * OPERATIONS)
        function = api.load().device_function(device.handle, "vkCmdWriteTimestamp")
        address = api.load().address
        trace = _filled(device, address(self._pool.handle), address(function), self.price)
        self._trace: tuple[Any, ...] | None = trace
        device.stream.trace(trace)
        families = {item.index: item.timestamp_bits for item in device.info.queue_families}
        of = [queue for queue in device.queues if families[queue.family] == self.clock.bits]
        self._queues = [QueueStamps(queue, self.price) for queue in of]

    def finish(self) -> None:
        """Wait for what was traced and read its times; a second call does nothing.

        Raises:
            VkparError: the device is lost, or does not end its work.
        """
        trace, self._trace = self._trace, None
        if trace is None:
            return
        self.device.stream.trace(None)
        for each in self._queues:
            each.queue.stamps = None
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
                for pool in (self._pool, *(each.pool for each in self._queues)):
                    pool.close()

    def _read(self, trace: Any) -> None:
        ticks = self._pool.read_first(trace.queries)
        self.stamps = [
            Stamp("operations", name_of(row.name), 1e-9 * row.at, *(_tick(ticks, at) for at in (row.begin, row.end)))
            for row in trace.stamps[0 : trace.used]
        ]
        self.sent = [Sent(1e-9 * r.begun, 1e-9 * r.ended, r.operations) for r in trace.sent[0 : trace.sent_used]]
        self.dropped = trace.dropped + sum(each.dropped for each in self._queues)
        for each in self._queues:
            self.stamps += each.read()


class QueueStamps:
    """The copies between the host and a device that one queue makes, and the launches of graphs on it.

    Attributes:
        graphs: the operations of launches, read so far; ``allowance``: which launches are timed.
    """

    def __init__(self, queue: Queue, price: float) -> None:
        self.queue, self.dropped = queue, 0
        self.pool = _pool(queue.device, 2 * _COPIES)
        self.graphs: list[Stamp] = []
        self.pending: dict[Marks, float] = {}
        self.allowance = Allowance(price)
        self._copying = Allowance(price, 0.0)
        self._asked: list[tuple[float, int | None]] = []
        self._used = 0
        queue.stamps = self

    def begin(self, commands: CommandBuffer) -> int | None:
        """Record a timestamp; None where the copy is not timed."""
        if self._used == _COPIES:
            self.dropped += 1
            return None
        row = self._used if self._copying.pays(2) else None
        self._asked.append((time.monotonic(), row))
        if row is not None:
            self._used += 1
            commands.record_timestamp(self.pool.handle, 2 * row)
        return row

    def end(self, commands: CommandBuffer, row: int | None) -> None:
        """Record the timestamp behind the copy of that row."""
        if row is not None:
            commands.record_timestamp(self.pool.handle, 2 * row + 1)

    def read(self) -> list[Stamp]:
        """Return the times of all, which were written."""
        for marks in list(self.pending):
            marks.read()
        ticks, name = self.pool.read_first(2 * self._used), f"host copies ({self.queue.label})"
        spans = [(None, None) if row is None else (ticks[2 * row], ticks[2 * row + 1]) for _, row in self._asked]
        copies = [Stamp(name, "host copy", at, *span) for (at, _), span in zip(self._asked, spans, strict=True)]
        return copies + self.graphs


class Marks:
    """Timestamps that a recording writes on one queue: around each of its parts, or behind each operation of these.

    Args:
        device: the VkDevice.
        number: how many there are.
        stamps: takes the times of operations; None where only parts have times.
    """

    def __init__(self, device: Any, number: int, stamps: QueueStamps | None = None) -> None:
        self.stamps = stamps
        self._pool = _pool(device, number)
        self._names: list[str | None] = []  # of the operation that ends there; None where a part begins

    def _record(self, commands: CommandBuffer, name: str | None) -> None:
        commands.record_timestamp(self._pool.handle, len(self._names))
        self._names.append(name)

    def record_begin(self, commands: CommandBuffer) -> None:
        """Record the begin of a part, before its own barriers: the next one makes lavapipe write it at once."""
        self._record(commands, None)

    def record_mark(self, commands: CommandBuffer, name: str) -> None:
        """Record the end of an operation, where operations have times."""
        if self.stamps is not None:
            self._record(commands, name)

    def record_end(self, commands: CommandBuffer) -> None:
        """Record the end of a part, where that is not its last operation's."""
        if self.stamps is None:
            self._record(commands, "")

    def start(self, asked: float) -> None:
        """Note that a run is about to be submitted; the times of the one before were read."""
        if self.stamps is not None:
            self.stamps.pending[self] = asked

    def read(self) -> list[tuple[int, int]] | None:
        """Return when each part of the last run, which is done, began and ended; None where not all was written.

        Operations' times go where they are taken, unless they were read before.
        """
        asked = 0.0 if self.stamps is None else self.stamps.pending.pop(self, None)
        if asked is None:
            return None
        ticks = self._pool.read()
        self._pool.reset()
        parts: list[tuple[int, int]] = []
        for index, (name, tick) in enumerate(zip(self._names, ticks or (), strict=False)):
            if name is None:
                parts.append((tick, tick))
                continue
            parts[-1] = parts[-1][0], tick
            if name and ticks and self.stamps is not None:
                self.stamps.graphs.append(Stamp("operations of graphs", name, asked, ticks[index - 1], tick))
        return parts or None

    def close(self) -> None:
        """Free the queries; no recording that writes them may be pending."""
        if self.stamps is not None:
            self.stamps.pending.pop(self, None)
        self._pool.close()


def _tick(ticks: list[int], index: int) -> int | None:
    return None if index == _NO_QUERY else ticks[index]


def _price(device: LogicalDevice, clock: DeviceClock) -> float:
    """Return the seconds that a timestamp between two barriers costs."""
    pool = QueryPool(device.handle, _TRIED + 2)

    def record(frame: Frame) -> None:
        frame.commands.record_reset(pool.handle, 0, _TRIED + 2)
        frame.commands.record_timestamp(pool.handle, 0)
        for index in range(1, _TRIED + 2):
            for _ in range(_TRIED if index == 1 else 1):
                frame.commands.record_order()
            frame.commands.record_timestamp(pool.handle, index)

    try:
        found = []
        for _ in range(3):
            device.compute.wait(device.compute.run(record), DRAIN_SECONDS)
            ticks = pool.read() or [0] * (_TRIED + 2)
            alone, stamped = (end - begin & clock.mask for begin, end in (ticks[:2], ticks[1::_TRIED]))
            found.append(clock.period * (stamped - alone) / _TRIED)
        return max(_LEAST, sorted(found)[1])
    finally:
        if device.compute.passed(device.compute.last, 0):
            pool.close()


def _filled(device: LogicalDevice, pool: int, write: int, price: float) -> tuple[Any, ...]:
    """Return a ``vkp_trace`` that the helper fills, and the arrays that it points at.

    Args:
        device: whose operations it is for.
        pool: queries, two for each operation.
        write: the address of vkCmdWriteTimestamp.
        price: seconds that a timestamp costs.
    """
    ffi = device.compute.port._c.ffi
    made, stamps, sent = ffi.new("vkp_trace*"), ffi.new("vkp_stamp[]", OPERATIONS), ffi.new("vkp_sent[]", _SUBMISSIONS)
    made.pool, made.write, made.room, made.sent_room = pool, write, OPERATIONS, _SUBMISSIONS
    made.price, made.purse = int(1e9 * price), int(1e9 * max(_FIRST, _SURE * price))
    made.looked = time.monotonic_ns()
    made.stamps, made.sent = stamps, sent
    return made, stamps, sent


def _pool(device: Any, number: int) -> QueryPool:
    """Return so many queries of a VkDevice, all empty."""
    pool = QueryPool(device, number)
    pool.reset()
    return pool
