"""Gathers the times of collectives' steps from the timestamps that are recorded around them in a profile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from vkpar.comm.engine.flights import Flight
from vkpar.comm.engine.health import Health
from vkpar.comm.record.timestamps import Planned, Ticks
from vkpar.errors import VulkanError
from vkpar.vulkan.stamps import Allowance, Marks


@dataclass(frozen=True)
class Run:
    """One collective that ran.

    Attributes:
        enqueued: when it was enqueued, in seconds of ``time.monotonic``.
        ticks: by queue, each step's counter values.
    """

    sequence: int
    op: str
    enqueued: float
    steps: tuple[Planned, ...]
    ticks: dict[int, list[Ticks]]


class Stopwatch:
    """The timers of one program, by queue, and the run whose times were not read yet.

    The timers' queries hold one run and are read before the next one; an entry has several programs, so that calls are
    queued meanwhile.
    """

    def __init__(self, collector: Collector, steps: tuple[Planned, ...], timers: dict[int, Marks]) -> None:
        self._collector = collector
        self._steps = steps
        self._timers = timers
        self.flight: Flight | None = None

    def start(self, flight: Flight) -> None:
        """Note that the program is about to be enqueued as ``flight``; the times of its last run were read."""
        self.flight = flight
        for timer in self._timers.values():
            timer.start(flight.enqueued)
        self._collector.watch(self)

    @property
    def is_running(self) -> bool:
        """True from the begin of a run until its times were read, or can be read at once."""
        return self.flight is not None and not self._collector.is_done(self.flight)

    def clear(self) -> None:
        """Wait for the last run, if its times were not read yet, and read them: the program is free again.

        Raises:
            CommunicatorError: the communicator failed meanwhile.
            InvalidUsageError: the communicator was closed meanwhile.
        """
        if self.flight is not None:
            self._collector.wait_for(self.flight)
            self._collector.read_done()

    def read(self) -> Run | None:
        """Return the run, which is done; None where an interrupt came before its submission."""
        flight, self.flight = self.flight, None
        if flight is None:
            return None
        ticks = {rank: timer.read() for rank, timer in self._timers.items()}
        whole = {rank: spans for rank, spans in ticks.items() if spans is not None}
        if len(whole) < len(ticks) or not self._was_submitted(flight):
            return None
        return Run(flight.sequence, flight.op, flight.enqueued, self._steps, whole)

    def _was_submitted(self, flight: Flight) -> bool:
        """Say whether each of its ranks was given one batch a step; after an interrupt a flight does not know."""
        starts = flight.starts
        return starts is not None and all(
            flight.values[rank] - starts[rank] == len(flight.phases[rank]) for rank in self._timers
        )

    def close(self, late: Collection[int]) -> None:
        """Read the times if all ranks are done; the program is about to be freed, and ``late`` ranks never finish."""
        self._collector.drop(self, read=not late)


class Collector:
    """Gathers what ran while a profile is open.

    Attributes:
        allowance: which runs are timed; None for all.
        runs: the collectives whose times were read, in the order of reading.
    """

    def __init__(self, health: Health, allowance: Allowance | None = None) -> None:
        self._health: Health | None = health
        self.allowance = allowance
        self._pending: dict[Stopwatch, None] = {}  # in the order of enqueueing
        self.runs: list[Run] = []

    def stopwatch(self, steps: tuple[Planned, ...], timers: dict[int, Marks]) -> Stopwatch:
        """Return the stopwatch of a program of ``steps`` that was recorded with ``timers``, by queue."""
        return Stopwatch(self, steps, timers)

    def watch(self, watch: Stopwatch) -> None:
        """Remember that the program of ``watch`` is under way."""
        self._pending[watch] = None

    def wait(self) -> None:
        """Block until all programs under way are done; raises as :meth:`wait_for` does."""
        for flight in [watch.flight for watch in list(self._pending) if watch.flight is not None]:
            self.wait_for(flight)

    def wait_for(self, flight: Flight) -> None:
        """Block until ``flight`` is done. The caller may hold the communicator's gate; a close waits for it.

        Raises:
            CommunicatorError: the communicator failed meanwhile.
            InvalidUsageError: the communicator was closed meanwhile.
        """
        health = self._health
        assert health is not None
        health.check_failure()
        while not health.wait_slice(flight):
            health.check_failure()
        health.check_failure()

    def is_done(self, flight: Flight) -> bool:
        """Say whether ``flight`` is done now."""
        health = self._health
        return health is not None and not health.failed and flight.done(health.rig.reached())

    def read_done(self) -> None:
        """Read the times of all programs that are done at once, because lavapipe waits at each look.

        The caller holds the communicator's gate or closes the communicator; the devices' gates may be shut by then.

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
        """Forget ``watch``, after reading its times where ``read`` says that they can be read."""
        health = self._health
        if watch in self._pending and read and health is not None and not health.failed:
            try:
                self._take(watch)
            except VulkanError as error:
                health.fail(error)  # the device is lost; the caller goes on freeing
        self._pending.pop(watch, None)
        watch.flight = None

    def close(self) -> None:
        """Forget what is under way; nothing is read any more."""
        self._health = None
        self._pending.clear()
