"""A collective under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from vkpar.comm.engine.flights import Flight
from vkpar.errors import InvalidUsageError, VkparError, VulkanError, WaitTimeoutError
from vkpar.vulkan import instance
from vkpar.vulkan.pump import native

if TYPE_CHECKING:
    from vkpar.comm.engine.lifecycle import Lifecycle

_SLICE_NS = 100_000_000


class Work:
    """A collective that was enqueued; it holds the arrays until it is done.

    ``await work`` waits in a thread of the event loop's executor. Inside a ``group`` it is not enqueued yet: it cannot
    be waited for until the group is left.
    """

    def __init__(self, communicator: Lifecycle, keep: tuple[Any, ...]) -> None:
        self._communicator = communicator
        self._keep: tuple[Any, ...] | None = keep  # until the work is done
        self._flight: Flight | None = None
        self._dropped = False

    def launch(self, flight: Flight) -> Work:
        """Follow ``flight``: the collective was enqueued."""
        self._flight = flight
        return self

    def drop(self) -> None:
        """Never enqueue what was not: the group that it belonged to was left by an exception."""
        if self._flight is None:
            self._dropped = True
            self._keep = None

    def recall(self) -> None:
        """Take :meth:`launch` back: nothing was submitted after all."""
        self._flight = None

    def wait(self, timeout: float | None = None) -> None:
        """Block until every rank has its result; Ctrl-C is answered within 100 ms.

        Args:
            timeout: seconds; None waits as long as the work makes progress (see ``Communicator(timeout=)``).

        Raises:
            WaitTimeoutError: ``timeout`` ran out; nothing changed, the work goes on.
            CommunicatorError: the communicator failed; the result is undefined.
            InvalidUsageError: the work belongs to a group that was not left, or left by an exception.
        """
        flight = self._launched()
        if self._keep is None:
            return
        self._communicator.check_failure()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._poll(flight, deadline):
            self._communicator.check_failure()
            if deadline is not None and time.monotonic() >= deadline:
                text, details = self._communicator.describe(flight)
                raise WaitTimeoutError(f"{text}; not done after {timeout} s", details)
        self._finish()

    def _launched(self) -> Flight:
        if self._flight is None:
            why = "was left by an exception: nothing was submitted" if self._dropped else "was not left yet"
            raise InvalidUsageError(f"this collective belongs to a group that {why}")
        return self._flight

    def _poll(self, flight: Flight, deadline: float | None) -> bool:
        """Wait for one slice at most; True when all is done."""
        left = _SLICE_NS if deadline is None else int((deadline - time.monotonic()) * 1e9)
        active = [rank for rank, value in enumerate(flight.values) if value]
        rig = self._communicator.rig
        try:
            with self._communicator.gate.lock():
                self._communicator.gate.check()
                ports, values = [rig.ports[rank] for rank in active], [flight.values[rank] for rank in active]
                return native.wait(ports, values, max(0, min(left, _SLICE_NS)), rig.spin_ns) == len(active)
        except InvalidUsageError:
            if not self._communicator.closed:
                raise
            return self._communicator.passed(active, flight.values)
        except VulkanError as error:
            self._communicator.fail(error)
            self._communicator.check_failure()
            raise

    def _finish(self) -> None:
        self._communicator.check_failure()
        self._communicator.check_slots()
        self._keep = None
        instance.raise_messages()

    def done(self) -> bool:
        """Say, without waiting, whether every rank has its result.

        Raises:
            CommunicatorError: the communicator failed.
            InvalidUsageError: as :meth:`wait` does.
        """
        flight = self._launched()
        if self._keep is None:
            return True
        self._communicator.check_failure()
        if not self._poll(flight, time.monotonic()):
            return False
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

    def __repr__(self) -> str:
        if self._flight is None:
            return "<vkpar.Work not enqueued>"
        return f"<vkpar.Work {self._flight.op} #{self._flight.sequence}>"
