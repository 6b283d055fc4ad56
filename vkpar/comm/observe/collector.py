"""Gathers when the steps of collectives ran, from the timestamps that a profile has recorded around them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vkpar.comm.engine.flights import Flight
from vkpar.comm.engine.health import Health
from vkpar.comm.record.timestamps import Planned, RankTimer, Span, planned
from vkpar.comm.schedule.steps import Step
from vkpar.comm.wires import WirePlan
from vkpar.errors import VulkanError


@dataclass(frozen=True)
class Run:
    """One collective that ran.

    Attributes:
        enqueued: seconds of ``time.monotonic``.
        ticks: by lane, each step's counter values.
    """

    sequence: int
    op: str
    enqueued: float
    steps: tuple[Planned, ...]
    ticks: dict[int, list[Span]]


class Stopwatch:
    """Of one program: its timers by lane, and the run whose times were not read yet.

    The queries hold one run, so that they are read before the next one; several alternates of a program let calls be
    queued meanwhile.
    """

    def __init__(self, collector: Collector, steps: tuple[Planned, ...], timers: dict[int, RankTimer]) -> None:
        self._collector = collector
        self._steps = steps
        self._timers = timers
        self.flight: Flight | None = None

    def start(self, flight: Flight) -> None:
        """Take down that the program is about to be enqueued; its times before were read."""
        self.flight = flight
        self._collector.watch(self)

    def clear(self) -> None:
        """Make it ready for the next run: wait for the one before, if there is any, and read its times.

        Raises:
            CommunicatorError, InvalidUsageError: the communicator failed or was closed meanwhile.
        """
        if self.flight is not None:
            self._collector.wait_for(self.flight)
            self._collector.read_done()

    def read(self) -> Run | None:
        """Return the run that is done; None where it never ran: an interrupt came before it was submitted."""
        flight, self.flight = self.flight, None
        if flight is None or not self._was_submitted(flight):
            return None
        ticks = {rank: timer.read() for rank, timer in self._timers.items()}
        whole = {rank: spans for rank, spans in ticks.items() if spans is not None}
        if len(whole) < len(ticks):
            return None
        return Run(flight.sequence, flight.op, flight.enqueued, self._steps, whole)

    def _was_submitted(self, flight: Flight) -> bool:
        """Say whether each of its ranks was given one batch a step; an interrupted one does not know."""
        starts = flight.starts
        return starts is not None and all(
            flight.values[rank] - starts[rank] == len(flight.phases[rank]) for rank in self._timers
        )

    def close(self, late: Collection[int]) -> None:
        """Read what can still be read: the program is about to be freed, done but for its part on ``late`` ranks."""
        self._collector.drop(self, read=not late)


class Collector:
    """Gathers what ran while a profile is open.

    Attributes:
        runs: in the order in which they were read.
    """

    def __init__(self, health: Health) -> None:
        self._health: Health | None = health
        self._pending: dict[Stopwatch, None] = {}  # in the order of enqueueing
        self.runs: list[Run] = []

    def stopwatch(
        self, steps: Sequence[Step], plan: WirePlan, timers: dict[int, RankTimer], ranks: Sequence[int] = ()
    ) -> Stopwatch:
        """Return the stopwatch of a program that was recorded with ``timers``, by lane; ``ranks`` says whose lanes."""
        return Stopwatch(self, planned(steps, plan, ranks), timers)

    def watch(self, watch: Stopwatch) -> None:
        """Count ``watch`` among those that run."""
        self._pending[watch] = None

    def wait(self) -> None:
        """Block until all that runs is done.

        Raises:
            CommunicatorError, InvalidUsageError: the communicator failed or was closed meanwhile.
        """
        for flight in [watch.flight for watch in list(self._pending) if watch.flight is not None]:
            self.wait_for(flight)

    def wait_for(self, flight: Flight) -> None:
        """Block until ``flight`` is done. The caller may hold the communicator's gate: a close waits for it.

        Raises:
            CommunicatorError, InvalidUsageError: the communicator failed or was closed meanwhile.
        """
        health = self._health
        assert health is not None
        health.check_failure()
        while not health.wait_slice(flight):
            health.check_failure()
        health.check_failure()

    def read_done(self) -> None:
        """Read the times of all that is done, not only of what is wanted now: lavapipe waits at each look.

        Who calls holds the communicator's gate, or closes it: the devices' may be shut by then.

        Raises:
            VulkanError: a device is lost.
        """
        health = self._health
        if health is None or health.failed:
            return
        reached = [queue.timeline.value() for queue in health.rig.queues]
        done = [watch for watch in self._pending if watch.flight is None or watch.flight.done(reached)]
        if done:
            health.rig.confirm()
        for watch in done:
            self._take(watch)

    def _take(self, watch: Stopwatch) -> None:
        self._pending.pop(watch, None)
        run = watch.read()
        if run is not None:
            self.runs.append(run)

    def drop(self, watch: Stopwatch, *, read: bool) -> None:
        """Forget ``watch``, with its times where they cannot be read any more."""
        health = self._health
        if watch in self._pending and read and health is not None and not health.failed:
            try:
                self._take(watch)
            except VulkanError as error:
                health.fail(error)  # the device is lost: whoever frees goes on freeing
        self._pending.pop(watch, None)
        watch.flight = None

    def close(self) -> None:
        """Take nothing more down."""
        self._health = None
        self._pending.clear()
