"""Graphs without a communicator: each device runs its part by itself."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

from vkpar import timeouts
from vkpar.device import Device
from vkpar.graph.protocol import TIMED, Record
from vkpar.timeouts import Deadline, Waitable
from vkpar.vulkan.machine import instance
from vkpar.vulkan.pump.native import CGroup
from vkpar.vulkan.queue import Queue, drain
from vkpar.vulkan.stamps import Marks, QueueStamps


class Launched(Waitable):
    """A launch of a graph; it holds the graph until it is done.

    ``await work`` waits in a thread of the event loop's executor.
    """

    def __init__(self, queues: Sequence[Queue], values: Sequence[int], keep: object) -> None:
        self._queues, self._values = queues, values
        self._keep: object | None = keep

    def wait(self, timeout: float | None = None) -> None:
        """Block until the launch is done on all devices; Ctrl-C is answered within 100 ms.

        Args:
            timeout: seconds from 0 up; None and infinity wait for ever.

        Raises:
            WaitTimeoutError: ``timeout`` ran out; nothing changed, the work goes on.
            DeviceLostError: a device is gone.
            InvalidUsageError: a device is closed; or ``timeout`` is no number, NaN or negative.
        """
        deadline = Deadline(timeout)
        if self._keep is None:
            return
        for queue, value in zip(self._queues, self._values, strict=True):
            queue.wait(value, deadline)
        self._keep = None
        instance.raise_messages()

    def done(self) -> bool:
        """Say, without waiting, whether the launch is done on all devices; raises as :meth:`wait` does."""
        if self._keep is None:
            return True
        if any(queue.reached < value for queue, value in zip(self._queues, self._values, strict=True)):
            return False
        self.wait()
        return True

    def __repr__(self) -> str:
        return "<vkpar.Work graph>"


class _Take:
    """One recording of a graph, and the timeline values at which its last launch is done, by device."""

    def __init__(self, group: CGroup, record: Record, marks: dict[int, Marks]) -> None:
        self.marks = marks
        self.values: list[int] = []
        self.recorded = record(marks)
        self.program = group.program(self.recorded.batches)
        self.program.touch(self.recorded.touches)

    def close(self, spared: Collection[int]) -> None:
        """Free it, but for what is on the ``spared`` devices; it is not pending on the others."""
        self.program.close()
        for rank, part in (*self.recorded.parts, *self.marks.items()):
            if rank not in spared:
                part.close()


class Local:
    """Submits a graph's part on each of its devices in one call; in a trace, recordings that take times."""

    def __init__(self, devices: Sequence[Device], record: Record) -> None:
        self._logical = [device.logical for device in devices]
        self._queues = [logical.compute for logical in self._logical]
        self._record = record
        self._takes: list[_Take] = []  # the first one takes no times
        self._counts: list[int] = []
        self._values = [0] * len(devices)
        self._marked = True  # else an interrupt came right after the submits
        self._group = CGroup([queue.port for queue in self._queues], 0)
        try:
            for logical in self._logical:
                logical.users.add(self)
            self._takes.append(_Take(self._group, record, {}))
        except BaseException:
            self.close()
            raise
        self._counts = [len(phases) for phases in self._takes[0].recorded.phases]

    def launch(self, preludes: Sequence[Any] | None, keep: object) -> Launched:
        """Submit it once; see :meth:`vkpar.graph.protocol.Launcher.launch`.

        Raises:
            InvalidUsageError: a device is closed.
            CommunicatorError: it reads what a failed collective has spoiled.
            VulkanError: what a driver said.
        """
        for logical in self._logical:
            with logical.gate.lock():
                logical.check_open()
        assert self._takes, "the graph was closed"
        refusal = self._logical[0].ledger.refusal(self._takes[0].recorded.touches)
        if refusal is not None:
            raise refusal
        stamps = {rank: queue.stamps for rank, queue in enumerate(self._queues) if queue.stamps and self._counts[rank]}
        take = self._timed(stamps) if stamps or len(self._takes) > 1 else self._takes[0]
        take.program.set_preludes(preludes)
        self._marked = False
        last = take.program.enqueue()
        self._values = [value if count else 0 for value, count in zip(last, self._counts, strict=True)]
        take.values = self._values
        self._marked = True
        return Launched(self._queues, self._values, keep)

    def _timed(self, stamps: dict[int, QueueStamps]) -> _Take:
        """Return the recording that is to run now, whose last times were read; those of earlier traces are freed."""
        plain, *timed = self._takes
        mine = [take for take in timed if {rank: marks.stamps for rank, marks in take.marks.items()} == stamps]
        for take in timed:
            if take not in mine and not self._late(take):
                self._takes.remove(take)
                take.close(())
        recorded = plain.recorded
        if not stamps or not next(iter(stamps.values())).allowance.pays(sum(recorded.marks)):
            return plain
        chosen = next((take for take in mine if not self._late(take)), None)
        if chosen is None and len(mine) < TIMED:
            marks = {
                rank: Marks(self._logical[rank].handle, recorded.marks[rank], each) for rank, each in stamps.items()
            }
            with ExitStack() as undo:
                for each in marks.values():
                    undo.callback(each.close)
                chosen = _Take(self._group, self._record, marks)
                undo.pop_all()
        elif chosen is None:
            chosen = mine[0]
            for queue, value in zip(self._queues, chosen.values, strict=False):
                queue.wait(value)
        if chosen in mine:
            self._takes.remove(chosen)
        self._takes.append(chosen)  # the last one to run
        for each in chosen.marks.values():
            each.read()
            each.start(time.monotonic())
        return chosen

    def _late(self, take: _Take) -> bool:
        return any(queue.reached < value for queue, value in zip(self._queues, take.values, strict=False))

    def starts(self) -> list[int]:
        """Return, by device, the timeline value that the first batch of the last launch signals."""
        return [value and value - count + 1 for value, count in zip(self._values, self._counts, strict=True)]

    def close(self) -> None:
        """Wait for the launches under way, then free the command buffers; a second call does nothing.

        A device that does not finish is given up, and its command buffers are left alone.
        """
        if self._takes:
            pending = self._values if self._marked else self._takes[0].program.last()
            for late in drain(self._queues, pending, timeouts.DRAIN_SECONDS):
                self._logical[late].quarantine()
        spared = [rank for rank, logical in enumerate(self._logical) if logical.quarantined]
        for take in self._takes:
            for rank, marks in take.marks.items():
                if rank not in spared:
                    marks.read()
            take.close(spared)
        self._takes = []
        self._group.close()
        for logical in self._logical:
            logical.users.discard(self)
