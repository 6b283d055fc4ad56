"""Whether a communicator can be used: its gate, its first failure, and the words for both.

A timeout becomes an error here, in :meth:`Health.fail_stalled`; the watchdog calls it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from vkpar.comm.engine.flights import Flight, FlightRecorder
from vkpar.comm.record.checks import SlotChecks
from vkpar.comm.rig.rig import Rig
from vkpar.errors import CommunicatorError, InvalidUsageError, VulkanError
from vkpar.timeouts import SLICE_NS
from vkpar.vulkan.gate import Gate
from vkpar.vulkan.pump import native
from vkpar.vulkan.pump.ledger import explain

_log = logging.getLogger("vkpar")


class Health:
    """The state of a communicator that works, watchdogs and collectors look at.

    Args:
        rig: what the ranks share.
        timeout: seconds without progress after which a pending collective fails.

    Attributes:
        gate: every call passes it; a close shuts it.
        flights: the collectives under way.
        failure: the error that made the communicator unusable; None while it is usable.
        checks: the generations of the slots; None where they are not checked.
        closing: a lock that a thread holds while it waits for pending work in order to free or to abandon it.
        freed: True once everything is freed or abandoned.
        told: True once the failure was raised.
    """

    def __init__(self, rig: Rig, timeout: float) -> None:
        self.rig = rig
        self.timeout = timeout
        self.gate = Gate("the communicator")
        self.flights = FlightRecorder()
        self.failure: BaseException | None = None
        self.checks: SlotChecks | None = None
        self.closing = threading.RLock()
        self.freed = self.told = False
        self._details: dict[str, Any] = {}

    @property
    def closed(self) -> bool:
        """True once the communicator was closed."""
        return self.gate.is_shut

    @property
    def failed(self) -> bool:
        """True once something has made the communicator unusable."""
        return self.failure is not None

    # ---- waiting ----

    def wait_slice(self, flight: Flight, timeout_ns: int = SLICE_NS) -> bool:
        """Wait for ``flight``, at most ``timeout_ns`` and one slice; say whether it is done.

        Raises:
            CommunicatorError: the wait itself failed, for example because a device is lost; the communicator is
                poisoned then.
            InvalidUsageError: a device is closed.
        """
        values = flight.values
        active = [queue for queue in flight.order() if values[queue]]
        wanted = [values[queue] for queue in active]
        rig = self.rig
        try:
            with self.gate.lock():
                self.gate.check()
                ports = [rig.ports[queue] for queue in active]
                left = max(0, min(timeout_ns, SLICE_NS))
                return native.wait(ports, wanted, left, rig.spin_ns) == len(active)
        except InvalidUsageError:
            if not self.closed:
                raise
            return self._passed(active, wanted)
        except VulkanError as error:
            self.notice()  # it may be what the wait fails of
            self.fail(error)
            self.check_failure()
            raise

    def _passed(self, numbers: Sequence[int], values: Sequence[int]) -> bool:
        """After a close, say whether these queues reached ``values``; a close that has finished waited for all."""
        with nullcontext() if self.gate.is_inside() else self.closing:  # a close inside waits for this thread
            queues = self.rig.queues
            return self.freed or all(
                queues[number].passed(value) for number, value in zip(numbers, values, strict=True)
            )

    def look(self) -> list[int] | None:
        """Return each queue's timeline value; None once the communicator has failed, which this call may find out.

        Raises:
            InvalidUsageError: the communicator is closed.
        """
        with self.gate.lock():
            self.gate.check()
            try:
                reached = self.rig.reached()
                self.notice()  # after that look: what is parked runs once it has come
                return None if self.failed else reached
            except VulkanError as error:
                self.fail(error)
                return None

    # ---- failure ----

    def fail(self, cause: BaseException, flight: Flight | None = None) -> None:
        """Poison the communicator with ``cause``, unless it has failed before, and let parked batches run out."""
        if self.failure is None:
            self._details = self._details_of(cause, flight)
            self.failure = cause
            _log.error("the communicator failed: %s", cause)
            explain(self.rig.group.number, _Telling(self, cause, self._details))
            self.rig.abort(cause)
            for device in self.rig.devices:
                device.recycler.excuse()

    def fail_enqueue(self, cause: BaseException, flight: Flight) -> None:
        """Poison the communicator because the submission of ``flight`` failed; an error of the bridge comes first."""
        self.notice()
        self.fail(cause, flight)

    def fail_stalled(self, flight: Flight) -> None:
        """Poison the communicator because ``flight`` made no progress for the timeout.

        Raises:
            InvalidUsageError: the communicator is closed.
        """
        with self.gate.lock():
            self.gate.check()
            text, details = self.describe(flight)
        self.fail(CommunicatorError(f"{text}; no timeline advanced for {self.timeout} s", details))

    def notice(self) -> None:
        """Fail where the bridge between ranks has, or what carries slots between processes."""
        result = 0 if self.failed or self.freed else self.rig.group.error()
        if result:
            self.fail(self.rig.bridge_error(result))
        progress = self.rig.progress
        if progress is not None and progress.error is not None and not self.freed:
            self.fail(progress.error)

    def check_failure(self) -> None:
        """Raise the failure that made the communicator unusable, if there is one.

        Raises:
            CommunicatorError: the communicator has failed; ``__cause__`` is the first failure.
        """
        self.notice()
        if self.failure is not None:
            raise _Telling(self, self.failure, self._details)()

    def check_slots(self) -> None:
        """With ``VKPAR_DEBUG=slots``: fail where a rank has read a slot of the wrong generation.

        Raises:
            CommunicatorError: a rank has read such a slot.
        """
        if self.checks is None or self.closed:
            return
        try:
            self.checks.check()
        except CommunicatorError as error:
            self.rig.group.doubt()  # what is done is wrong
            self.fail(error)
            self.told = True
            raise

    # ---- descriptions ----

    def describe(self, flight: Flight) -> tuple[str, dict[str, Any]]:
        """Return which step of ``flight`` each rank is at, in words and as the details of an error."""
        places = self.rig.places
        with self.gate.lock():  # a close in another thread waits
            reached = list(flight.values) if self.closed else self.rig.values()
            counters = {} if self.closed else self.rig.bridge_counters()
        pending = counters.get("bridges_pending", 0)
        details = {
            "op": flight.op,
            "sequence": flight.sequence,
            **flight.label,
            "ranks": flight.ranks(places, reached),
            "bridges_pending": pending,
            "bridges_pending_by_rank": counters.get("bridges_pending_by_rank", []),
        }
        return f"{flight.describe(places, reached)}; {pending} bridged waits pending", details

    def _details_of(self, cause: BaseException, flight: Flight | None) -> dict[str, Any]:
        """Return the details of ``cause``; where it has none, those of ``flight`` or of the oldest pending flight."""
        own: dict[str, Any] = getattr(cause, "details", {})
        flight = flight or self.flights.oldest(self.rig.values())
        if own or flight is None:
            return own
        queue = getattr(cause, "rank", None)
        rank = {} if queue is None else {"rank": self.rig.places[queue][0]}
        return {**self.describe(flight)[1], **rank}


class _Telling:
    """Makes the error for whoever is told of a failure; it keeps nothing of the communicator."""

    def __init__(self, health: Health, cause: BaseException, details: dict[str, Any]) -> None:
        self._health, self._cause, self._details = weakref.ref(health), cause, details

    def __call__(self) -> CommunicatorError:
        health = self._health()
        if health is not None:
            health.told = True
        error = CommunicatorError(f"the communicator failed: {self._cause}", self._details)
        error.__cause__ = self._cause
        return error
