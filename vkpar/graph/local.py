"""Graphs without a communicator: each device runs its part by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkpar import timeouts
from vkpar.device import Device
from vkpar.graph.protocol import Record, Recorded
from vkpar.timeouts import Deadline, Waitable
from vkpar.vulkan.machine import instance
from vkpar.vulkan.pump.native import CGroup, CProgram
from vkpar.vulkan.queue import Queue, drain


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


class Local:
    """Submits a graph's part on each of its devices in one call."""

    def __init__(self, devices: Sequence[Device], record: Record) -> None:
        self._logical = [device.logical for device in devices]
        self._queues = [logical.compute for logical in self._logical]
        self._recorded: Recorded | None = None
        self._program: CProgram | None = None
        self._counts: list[int] = []
        self._values = [0] * len(devices)
        self._marked = True  # else an interrupt came right after the submits
        self._group = CGroup([queue.port for queue in self._queues], 0)
        try:
            for logical in self._logical:
                logical.users.add(self)
            self._recorded = record({})
            self._program = self._group.program(self._recorded.batches)
            self._program.touch(self._recorded.touches)
        except BaseException:
            self.close()
            raise
        self._counts = [len(phases) for phases in self._recorded.phases]

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
        assert self._program is not None, "the graph was closed"
        assert self._recorded is not None, "the graph was closed"
        refusal = self._logical[0].ledger.refusal(self._recorded.touches)
        if refusal is not None:
            raise refusal
        self._program.set_preludes(preludes)
        self._marked = False
        last = self._program.enqueue()
        self._values = [value if count else 0 for value, count in zip(last, self._counts, strict=True)]
        self._marked = True
        return Launched(self._queues, self._values, keep)

    def starts(self) -> list[int]:
        """Return, by device, the timeline value that the first batch of the last launch signals."""
        return [value and value - count + 1 for value, count in zip(self._values, self._counts, strict=True)]

    def close(self) -> None:
        """Wait for the launches under way, then free the command buffers; a second call does nothing.

        A device that does not finish is given up, and its command buffers are left alone.
        """
        if self._program is not None:
            pending = self._values if self._marked else self._program.last()
            for late in drain(self._queues, pending, timeouts.DRAIN_SECONDS):
                self._logical[late].quarantine()
            self._program.close()
        if self._recorded is not None:
            for number, part in self._recorded.parts:
                if not self._logical[number].quarantined:
                    part.close()
            self._recorded = None
        self._group.close()
        for logical in self._logical:
            logical.users.discard(self)
