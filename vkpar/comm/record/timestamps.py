"""When the steps of collectives ran: the timestamps that a profile has recorded around them, and their reading.

A program that is recorded for a profile has a :class:`Stopwatch`. Its queries hold one run, so that before the next
run they are read; several alternates of a program let calls be queued meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkpar.comm.engine.flights import Flight
from vkpar.comm.schedule.steps import Action, Barrier, Copy, Forward, Reduce, Step
from vkpar.comm.wires import Format, WirePlan
from vkpar.errors import UnsupportedError, VulkanError
from vkpar.vulkan import pump
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.query import QueryPool

if TYPE_CHECKING:
    from vkpar.comm.engine.lifecycle import Lifecycle
    from vkpar.comm.rig.rig import Rig

_SLICE_NS = 100_000_000

Span = tuple[int, int]  # a device's counter when a step began, and when it ended


@dataclass(frozen=True)
class Planned:
    """A step as it was recorded.

    Attributes:
        index: its number among its rank's steps.
        received_nbytes: what it reads from slots, scales included; ``sent_nbytes`` what it writes to them.
        sources: the steps, as rank and index, that wrote what it reads.
        place: its lane and its number among that lane's steps, where the rank has several.
    """

    rank: int
    phase: str
    index: int
    received_nbytes: int = 0
    sent_nbytes: int = 0
    sources: tuple[tuple[int, int], ...] = ()
    place: tuple[int, int] | None = None

    @property
    def lane(self) -> int:
        """The number of its queue."""
        return self.place[0] if self.place else self.rank


def planned(steps: Sequence[Step], plan: WirePlan, ranks: Sequence[int] = ()) -> tuple[Planned, ...]:
    """Return what is known of ``steps``, given in one global order, before they run.

    ``ranks`` says, by lane, whose lane it is; without it every rank has one of its number.
    """
    number: Counter[int] = Counter()
    places: Counter[int] = Counter()
    writers: dict[int, tuple[int, int]] = {}  # by slot
    made = []
    for step in steps:
        rank = ranks[step.rank] if ranks else step.rank
        index, place = number[rank], (step.rank, places[step.rank])
        number[rank] += 1
        places[step.rank] += 1
        sources = tuple(dict.fromkeys(writers[slot] for slot in step.reads if slot in writers))
        received, sent = _received(step, plan), _sent(step, plan)
        elsewhere = None if place == (rank, index) else place
        made.append(Planned(rank, step.phase, index, received, sent, sources, elsewhere))
        writers.update(dict.fromkeys(step.writes, (rank, index)))
    return tuple(made)


def _received(step: Step, plan: WirePlan) -> int:
    reading = [action for action in step.actions if not (isinstance(action, Copy) and action.sends)]
    formats = [(action, plan.contribution if _unfinished(action) else plan.final) for action in reading]
    return sum(_nbytes(action, form) * len(action.reads) for action, form in formats)


def _unfinished(action: Action) -> bool:
    """Say whether ``action`` reads contributions or unfinished sums."""
    return isinstance(action, Reduce) or (isinstance(action, Copy) and not action.final)


def _sent(step: Step, plan: WirePlan) -> int:
    sending = [action for action in step.actions if action.out_slot is not None]
    sending = [action for action in sending if not isinstance(action, Copy) or action.sends]
    final = [isinstance(action, Forward) or (isinstance(action, (Reduce, Copy)) and action.final) for action in sending]
    formats = [plan.final if last else plan.contribution for last in final]
    return sum(_nbytes(action, form) for action, form in zip(sending, formats, strict=True))


def _nbytes(action: Action, form: Format) -> int:
    """Return the bytes of one slot that ``action`` fills or reads: whole blocks, the last one's too."""
    return 0 if isinstance(action, Barrier) else action.span.blocks * (form.payload + form.tail)


class RankTimer:
    """The timestamps of one lane's steps in one program.

    Args:
        device: the rank's device.
        steps: how many there are.
        family: the queue family that writes them; None for that of the kernels.

    Raises:
        UnsupportedError: it does not write what the kernels' family writes.
    """

    def __init__(self, device: LogicalDevice, steps: int, family: int | None = None) -> None:
        family = device.compute.family if family is None else family
        bits = {item.index: item.timestamp_bits for item in device.info.queue_families}
        if bits[family] != bits[device.compute.family]:
            raise UnsupportedError(f"{device.info.name} has other timestamps, or none, on its copy queues")
        self._pool = QueryPool(device.handle, 2 * steps)
        self._by_host = family != device.compute.family  # queues that only copy cannot empty queries
        if self._by_host:
            self._pool.reset()
        self._next = 0

    def record_begin(self, commands: CommandBuffer) -> None:
        """Record the begin of the next step, before anything else: its own barriers belong to it.

        The barrier that comes next makes lavapipe write it now.
        """
        if not self._by_host:
            commands.record_reset(self._pool.handle, self._next, 2)
        commands.record_timestamp(self._pool.handle, self._next)

    def record_end(self, commands: CommandBuffer) -> None:
        """Record its end, after everything else."""
        commands.record_timestamp(self._pool.handle, self._next + 1)
        self._next += 2

    def read(self) -> list[Span] | None:
        """Return each step's begin and end; None where they were not all written. The lane's part is done."""
        values = self._pool.read()
        if self._by_host:
            self._pool.reset()
        return None if values is None else list(zip(values[::2], values[1::2], strict=True))

    def close(self) -> None:
        """Destroy the queries; they are not in use."""
        self._pool.close()


def timers_of(steps: Iterable[Step], rig: Rig, undo: ExitStack) -> dict[int, RankTimer]:
    """Return a timer for each lane that has ``steps``; ``undo`` closes them.

    Raises:
        UnsupportedError: as :class:`RankTimer` does.
    """
    timers = {}
    for lane, number in Counter(step.rank for step in steps).items():
        timers[lane] = RankTimer(rig.devices[rig.lanes.ranks[lane]], number, rig.queues[lane].family)
        undo.callback(timers[lane].close)
    return timers


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
    """Of one program: its timers by lane, and the run whose times were not read yet."""

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
            self._collector.wait(self.flight)
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

    def __init__(self, communicator: Lifecycle) -> None:
        self._communicator: Lifecycle | None = communicator
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

    def flights(self) -> list[Flight]:
        """Return the collectives that were not read yet."""
        return [watch.flight for watch in list(self._pending) if watch.flight is not None]

    def wait(self, flight: Flight) -> None:
        """Block until ``flight`` is done. The caller may hold the communicator's gate: a close waits for it.

        Raises:
            CommunicatorError, InvalidUsageError: the communicator failed or was closed meanwhile.
        """
        communicator = self._communicator
        assert communicator is not None
        ports = communicator.rig.ports
        active = [lane for lane, value in enumerate(flight.values) if value]
        wanted = [flight.values[lane] for lane in active]
        done = 0
        while done < len(active):
            communicator.check_failure()
            with communicator.gate.lock():
                communicator.gate.check()
                done = pump.wait([ports[lane] for lane in active], wanted, _SLICE_NS, communicator.rig.spin_ns)
        communicator.check_failure()

    def read_done(self) -> None:
        """Read the times of all that is done, not only of what is wanted now: lavapipe waits at each look.

        Who calls holds the communicator's gate, or closes it: the devices' may be shut by then.

        Raises:
            VulkanError: a device is lost.
        """
        communicator = self._communicator
        if communicator is None or communicator.failed:
            return
        reached = [queue.timeline.value() for queue in communicator.rig.queues]
        done = [watch for watch in self._pending if watch.flight is None or watch.flight.done(reached)]
        if done:
            communicator.rig.confirm()
        for watch in done:
            self._take(watch)

    def _take(self, watch: Stopwatch) -> None:
        self._pending.pop(watch, None)
        run = watch.read()
        if run is not None:
            self.runs.append(run)

    def drop(self, watch: Stopwatch, *, read: bool) -> None:
        """Forget ``watch``, with its times where they cannot be read any more."""
        communicator = self._communicator
        if watch in self._pending and read and communicator is not None and not communicator.failed:
            try:
                self._take(watch)
            except VulkanError as error:
                communicator.fail(error)  # the device is lost: whoever frees goes on freeing
        self._pending.pop(watch, None)
        watch.flight = None

    def close(self) -> None:
        """Take nothing more down."""
        self._communicator = None
        self._pending.clear()
