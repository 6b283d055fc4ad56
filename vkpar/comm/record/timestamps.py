"""Timestamps around the steps of a program: recording them in a profile, and reading the device's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from vkpar.abi.formats import Format
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.steps import Action, Barrier, Forward, Reduce, SlotCopy, Step
from vkpar.comm.wires import WirePlan
from vkpar.errors import UnsupportedError
from vkpar.vulkan.stamps import Allowance, Marks

Ticks = tuple[int, int]  # a device's counter when a step began, and when it ended


@dataclass(frozen=True)
class Planned:
    """A step as it was recorded.

    Attributes:
        index: its number among its rank's steps.
        received_nbytes: bytes that it reads from slots, scales included; ``sent_nbytes``: bytes that it writes to them.
        sources: the steps, as rank and index, that wrote the slots that it reads.
        place: its queue and its number among that queue's steps, where the rank has several queues.
    """

    rank: int
    phase: str
    index: int
    received_nbytes: int = 0
    sent_nbytes: int = 0
    sources: tuple[tuple[int, int], ...] = ()
    place: tuple[int, int] | None = None

    @property
    def queue(self) -> int:
        """The number of its queue."""
        return self.place[0] if self.place else self.rank


class Stage(NamedTuple):
    """One submission of a program: its queue, what it is for, the slots and the bytes that it reads and writes."""

    queue: int
    phase: str
    reads: Sequence[int]
    writes: Sequence[int]
    received_nbytes: int
    sent_nbytes: int


def planned(steps: Sequence[Step], plan: WirePlan, ranks: Sequence[int] = ()) -> tuple[Planned, ...]:
    """Return what is known of ``steps``, given in one global order, before they run; ``ranks`` as in :func:`linked`."""
    stages = (
        Stage(step.rank, step.phase, step.taken, step.filled, _received(step, plan), _sent(step, plan))
        for step in steps
    )
    return linked(stages, ranks)


def linked(stages: Iterable[Stage], ranks: Sequence[int] = ()) -> tuple[Planned, ...]:
    """Return what is known of ``stages``, given in one global order: their numbers, and which wrote what they read.

    ``ranks`` has the rank of each queue; without it every rank has one queue, of its own number.
    """
    number: Counter[int] = Counter()
    places: Counter[int] = Counter()
    writers: dict[int, tuple[int, int]] = {}  # by slot
    made = []
    for stage in stages:
        rank = ranks[stage.queue] if ranks else stage.queue
        index, place = number[rank], (stage.queue, places[stage.queue])
        number[rank] += 1
        places[stage.queue] += 1
        sources = tuple(dict.fromkeys(writers[slot] for slot in stage.reads if slot in writers))
        elsewhere = None if place == (rank, index) else place
        made.append(Planned(rank, stage.phase, index, stage.received_nbytes, stage.sent_nbytes, sources, elsewhere))
        writers.update(dict.fromkeys(stage.writes, (rank, index)))
    return tuple(made)


def _received(step: Step, plan: WirePlan) -> int:
    reading = [action for action in step.actions if not (isinstance(action, SlotCopy) and action.sends)]
    formats = [(action, plan.contribution if _unfinished(action) else plan.final) for action in reading]
    return sum(_nbytes(action, form) * len(action.reads) for action, form in formats)


def _unfinished(action: Action) -> bool:
    """Say whether ``action`` reads contributions or unfinished sums."""
    return isinstance(action, Reduce) or (isinstance(action, SlotCopy) and not action.final)


def _sent(step: Step, plan: WirePlan) -> int:
    sending = [action for action in step.actions if action.out_slot is not None]
    sending = [action for action in sending if not isinstance(action, SlotCopy) or action.sends]
    final = [
        isinstance(action, Forward) or (isinstance(action, (Reduce, SlotCopy)) and action.final) for action in sending
    ]
    formats = [plan.final if last else plan.contribution for last in final]
    return sum(_nbytes(action, form) for action, form in zip(sending, formats, strict=True))


def _nbytes(action: Action, form: Format) -> int:
    """Return the bytes of one slot that ``action`` fills or reads: whole blocks, the last one's too."""
    return 0 if isinstance(action, Barrier) or action.span is None else action.span.blocks * (form.payload + form.tail)


def timers_of(steps: Iterable[Step], rig: Rig, undo: ExitStack) -> dict[int, Marks]:
    """Return what takes the times of ``steps``, by queue; ``undo`` closes it.

    Raises:
        UnsupportedError: a queue's timestamps differ from those of the kernels' queue, or it has none.
    """
    timers: dict[int, Marks] = {}
    for queue, number in Counter(step.rank for step in steps).items():
        device = rig.devices[rig.queue_map.ranks[queue]]
        bits = {item.index: item.timestamp_bits for item in device.info.queue_families}
        if bits[rig.queues[queue].family] != bits[device.compute.family]:
            raise UnsupportedError(f"{device.info.name} has other timestamps, or none, on its copy queues")
        timers[queue] = Marks(device.handle, 2 * number)
        undo.callback(timers[queue].close)
    return timers


class Stopwatch(Protocol):
    """Takes the times of one program's runs; its queries hold one run, which is read before the next one begins."""

    @property
    def is_running(self) -> bool:
        """True from the begin of a run until its times were read, or can be read at once."""

    def start(self, flight: Any) -> None:
        """Note that the program is about to be enqueued as ``flight``."""

    def clear(self) -> None:
        """Wait for the run before, if there is any, and read its times."""

    def close(self, late: Collection[int]) -> None:
        """Read the times if all ranks are done; the program is about to be freed, and ``late`` ranks never finish."""


class Collector(Protocol):
    """Gathers the times of what is recorded while a profile is open."""

    def stopwatch(self, steps: tuple[Planned, ...], timers: dict[int, Marks]) -> Stopwatch:
        """Return the stopwatch of a program of ``steps`` that was recorded with ``timers``, by queue."""

    @property
    def allowance(self) -> Allowance | None:
        """Which runs are timed; None for all."""

    def read_done(self) -> None:
        """Read the times of all that is done."""
