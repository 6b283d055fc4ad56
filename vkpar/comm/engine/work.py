"""A collective under way."""

from __future__ import annotations

import time

from vkpar.comm.engine.flights import Flight
from vkpar.comm.engine.health import Health
from vkpar.errors import InvalidUsageError, WaitTimeoutError
from vkpar.timeouts import Deadline, Waitable
from vkpar.unpickled import Unpickled
from vkpar.vulkan import tracing
from vkpar.vulkan.machine import instance

_FOR_EVER_NS = 1 << 62


class Work(Unpickled, Waitable):
    """A collective that was enqueued; it holds the arrays until it is done.

    ``await work`` waits in a thread of the event loop's executor. Inside a ``group`` it is not enqueued yet: it cannot
    be waited for until the group is left.

    Attributes:
        flight: what the flight recorder knows of it; None while it is not enqueued.
    """

    def __init__(self, health: Health, keep: object, flight: Flight | None = None) -> None:
        self._health = health
        self._keep: object | None = keep  # until the work is done
        self.flight = flight
        self._dropped = self._captured = False

    def capture(self) -> None:
        """Make it the work of a collective that a graph has captured: the graph's launches have works of their own."""
        self._captured = True
        self._keep = None

    def drop(self) -> None:
        """Give up a collective that was never enqueued, because an exception ended its group."""
        if self.flight is None and not self._captured:
            self._dropped = True
            self._keep = None

    def wait(self, timeout: float | None = None) -> None:
        """Block until every rank has its result; Ctrl-C is answered within 100 ms, where it is not ignored.

        Args:
            timeout: seconds from 0 up; None and infinity wait as long as the work makes progress (see
                ``Communicator(timeout=)``).

        Raises:
            WaitTimeoutError: ``timeout`` ran out; nothing changed, the work goes on.
            CommunicatorError: the communicator failed; the result is undefined.
            InvalidUsageError: the work belongs to a group that was not left yet, or was left by an exception; or
                ``timeout`` is no number, NaN or negative.
        """
        deadline = Deadline(timeout)
        flight = self._submitted()
        if self._keep is None:
            return
        health = self._health
        begun = 0.0 if tracing.watcher is None else time.monotonic()
        health.check_failure()
        while not health.wait_slice(flight, deadline.left_ns(_FOR_EVER_NS)):
            health.check_failure()
            if deadline.passed:
                text, details = health.describe(flight)
                raise WaitTimeoutError(f"{text}; not done after {timeout} s", details)
        if tracing.watcher is not None:
            tracing.watcher.host(f"wait for {flight.op}", begun, sequence=flight.sequence)
        self._finish()

    def _submitted(self) -> Flight:
        if self._captured:
            raise InvalidUsageError("this collective was captured into a graph: wait for what graph.launch() returns")
        if self.flight is None:
            why = "was left by an exception: nothing was submitted" if self._dropped else "was not left yet"
            raise InvalidUsageError(f"this collective belongs to a group that {why}")
        return self.flight

    def _finish(self) -> None:
        self._health.check_failure()
        self._health.check_slots()
        self._keep = None
        instance.raise_messages()

    def done(self) -> bool:
        """Say, without waiting, whether every rank has its result.

        Raises:
            CommunicatorError: the communicator failed.
            InvalidUsageError: the work belongs to a group that was not left yet, or was left by an exception.
        """
        flight = self._submitted()
        if self._keep is None:
            return True
        self._health.check_failure()
        if not self._health.wait_slice(flight, 0):
            return False
        self._finish()
        return True

    def __repr__(self) -> str:
        if self.flight is None:
            return "<vkpar.Work captured>" if self._captured else "<vkpar.Work not enqueued>"
        return f"<vkpar.Work {self.flight.op} #{self.flight.sequence}>"
