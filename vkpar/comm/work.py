"""A collective under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from vkpar.errors import CommunicatorError, InvalidUsageError, VkparError, VulkanError, WaitTimeoutError
from vkpar.vulkan import instance, pump

if TYPE_CHECKING:
    from vkpar.comm.communicator import Communicator
    from vkpar.comm.executor import Program

_SLICE_NS = 100_000_000


class Work:
    """A collective that was enqueued; it holds the arrays until it is done.

    ``await work`` waits in a thread of the event loop's executor.
    """

    def __init__(
        self, communicator: Communicator, op: str, sequence: int, program: Program | None, keep: tuple[Any, ...]
    ) -> None:
        self._communicator = communicator
        self._op = op
        self._sequence = sequence
        # Without a program the result is what earlier work on the devices leaves.
        earlier = [device.compute.last for device in communicator.rig.devices] if program is None else []
        self._values = earlier if program is None else list(program.values)
        self._starts = earlier if program is None else list(program.starts)
        self._keep: tuple[Any, ...] | None = keep

    def wait(self, timeout: float | None = None) -> None:
        """Block until every rank has its result; Ctrl-C is answered within 100 ms.

        Args:
            timeout: seconds; None waits as long as the work makes progress (see ``Communicator(timeout=)``).

        Raises:
            WaitTimeoutError: ``timeout`` ran out; nothing changed, the work goes on.
            CommunicatorError: the communicator failed; the result is undefined.
        """
        if self._keep is None:
            return
        self._communicator.check_failure()
        deadline = None if timeout is None else time.monotonic() + timeout
        progress = _Progress(self._starts, self._communicator.timeout)
        while not self._poll(deadline):
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(f"{self._describe()} not done after {timeout} s", self.details())
            self._communicator.check_failure()
            if progress.stalled(self._reached()):
                self._communicator.fail(self._stalled())
                self._communicator.check_failure()
        self._communicator.check_failure()
        self._finish()

    def _poll(self, deadline: float | None) -> bool:
        """Wait for one slice at most; True when all is done."""
        left = _SLICE_NS if deadline is None else int((deadline - time.monotonic()) * 1e9)
        active = [rank for rank, value in enumerate(self._values) if value]
        rig = self._communicator.rig
        try:
            with self._communicator.gate:
                ports, values = [rig.ports[rank] for rank in active], [self._values[rank] for rank in active]
                return pump.wait(ports, values, max(0, min(left, _SLICE_NS)), rig.spin_ns) == len(active)
        except InvalidUsageError:
            if not self._communicator.closed:
                raise
            self._communicator.join()  # a close waits for all pending work
            return True
        except VulkanError as error:
            self._communicator.fail(error)
            self._communicator.check_failure()
            raise

    def _finish(self) -> None:
        self._keep = None
        instance.raise_messages()

    def done(self) -> bool:
        """Say, without waiting, whether every rank has its result.

        Raises:
            CommunicatorError: the communicator failed.
        """
        if self._keep is None:
            return True
        self._communicator.check_failure()
        if not self._poll(time.monotonic()):
            return False
        self._communicator.check_failure()
        self._finish()
        return True

    def exception(self) -> VkparError | None:
        """Return what :meth:`wait` would raise now, None where the work is done or still under way."""
        try:
            self.done()
        except VkparError as error:
            return error
        return None

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()

    def details(self) -> dict[str, Any]:
        """Return the operation and, per rank, the device and the wanted and reached timeline values."""
        return {
            "op": self._op,
            "sequence": self._sequence,
            "ranks": [
                {"rank": rank, "device": device.name, "wanted": wanted, "reached": reached}
                for rank, (device, wanted, reached) in enumerate(
                    zip(self._communicator.devices, self._values, self._reached(), strict=True)
                )
            ],
            "bridges_pending": self._bridges_pending(),
        }

    def _bridges_pending(self) -> int:
        return 0 if self._communicator.closed else int(self._communicator.stats()["bridges_pending"])

    def _reached(self) -> list[int]:
        """Return each rank's timeline value; after a close all pending work is done, or will never be."""
        return list(self._values) if self._communicator.closed else self._communicator.reached()

    def _describe(self) -> str:
        waiting = [
            f"rank {rank} ({device.name}) at {reached} of {wanted}"
            for rank, (device, wanted, reached) in enumerate(
                zip(self._communicator.devices, self._values, self._reached(), strict=True)
            )
            if reached < wanted
        ]
        return f"{self._op} #{self._sequence}: {', '.join(waiting) or 'all ranks done'};"

    def _stalled(self) -> CommunicatorError:
        message = f"{self._describe()} no timeline advanced for {self._communicator.timeout} s"
        return CommunicatorError(message, self.details())


class _Progress:
    """Watches timelines for standing still, from when the work could start."""

    def __init__(self, starts: list[int], patience: float) -> None:
        self._starts = starts
        self._patience = patience
        self._seen: list[int] = []
        self._since = time.monotonic()

    def stalled(self, reached: list[int]) -> bool:
        now = time.monotonic()
        waits = any(value < start for value, start in zip(reached, self._starts, strict=True))
        if waits or reached != self._seen:
            self._seen, self._since = reached, now
        return now - self._since >= self._patience
