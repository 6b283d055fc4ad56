"""Runs schedules without a GPU: one in-order queue per rank, heads taken in random order, steps that overlap.

What a step waits for is worked out exactly as the pump does when it enqueues (``collect`` and ``build_waits`` in
``vkpar/vulkan/_pump.c``): the writers of the slots that it reads, and every reader and the writer of the contents
that it overwrites, as of the global order; a value that the queue has waited for before is left out. The state of the
slots lives on from one program to the next, as it does on devices.

A step begins when its waits are met and it is the head of its queue; it ends some time later, while steps of other
queues begin and end. It reads at both moments and must find the generation of each slot that the global order says.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vkpar.comm.schedule import BLOCK, Forward, Problem, Reduce, SlotSet, Span, Step

Numbers = npt.NDArray[Any]


class ScheduleError(AssertionError):
    """The schedule, or the rule of what waits for what, is wrong."""


class Codec(Protocol):
    """How sums are written into slots and read back."""

    def encode(self, values: Numbers, *, final: bool) -> Any:
        """Return what a slot holds for ``values``."""

    def decode(self, raw: Any) -> Numbers:
        """Return the values that a slot stands for."""


class Plain:
    """Slots hold the numbers as they are."""

    def encode(self, values: Numbers, *, final: bool) -> Any:
        return values.copy()

    def decode(self, raw: Any) -> Numbers:
        return raw


@dataclass
class Content:
    """What a slot holds.

    Attributes:
        generation: which step of the global order wrote it.
        owner: the rank that finished the sum; None for contributions and unfinished sums.
        hops: how many links its data crossed, on the longest way, before it was written.
    """

    generation: int
    span: Span
    owner: int | None
    hops: int
    raw: Any


@dataclass
class _Queued:
    step: Step
    generation: int
    waits: list[tuple[int, int]]  # (rank, number of its steps that must be done)
    expected: dict[int, int]  # slot that it reads -> generation
    running: bool = False


@dataclass
class Counts:
    """What a schedule did, by rank, and the longest chain of links that any data crossed."""

    steps: list[int]
    sent_blocks: list[int]
    hops: int = 0
    talked: set[tuple[int, int]] = field(default_factory=set)  # (reader, writer)
    finished: list[Numbers] = field(default_factory=list)  # per rank: how often it finished each element


class Simulator:
    """Queues and slots of one communicator.

    Args:
        slots: the slots.
        seed: of the random order.
        last_reader_only: wait for the last reader of a slot instead of all of them (wrong from three ranks on).
    """

    def __init__(self, slots: SlotSet, seed: int = 0, *, last_reader_only: bool = False) -> None:
        n = self.nranks = slots.nranks
        self.slots = slots
        self._random = random.Random(seed)
        self._last_reader_only = last_reader_only
        self._content: dict[int, Content] = {}
        self._being_written: dict[int, int] = {}
        self._writer: dict[int, tuple[int, int]] = {}
        self._written: dict[int, int] = {}  # slot -> generation of the last write in the global order
        self._readers: dict[int, dict[int, int]] = {}
        self._waited = [[0] * n for _ in range(n)]
        self._enqueued = [0] * n
        self._done = [0] * n
        self._generations = itertools.count(1)

    def owner_of(self, slot: int) -> int:
        """Return the rank that a slot belongs to."""
        return (slot - self.slots.base) // self.slots.per_rank

    def run(
        self, steps: Iterable[Step], arrays: Sequence[Numbers | None], targets: Sequence[Numbers], codec: Codec
    ) -> Counts:
        """Run one collective to its end: rank r adds ``arrays[r]`` and its result goes to ``targets[r]``."""
        return self.run_all([(steps, arrays, targets)], codec)[0]

    def run_all(
        self, calls: Sequence[tuple[Iterable[Step], Sequence[Numbers | None], Sequence[Numbers]]], codec: Codec
    ) -> list[Counts]:
        """Enqueue several collectives back to back, then run all of them to their end."""
        queues: list[list[tuple[_Queued, _Run]]] = [[] for _ in range(self.nranks)]
        runs = []
        for steps, arrays, targets in calls:
            run = _Run(self, arrays, targets, codec)
            runs.append(run)
            for step in steps:
                queues[step.rank].append((self._enqueue(step), run))
        self._drain(queues)
        return [run.counts for run in runs]

    # --- what the pump does when it enqueues ---

    def _enqueue(self, step: Step) -> _Queued:
        rank, generation = step.rank, next(self._generations)
        self._check_slots(step)
        value = self._enqueued[rank] = self._enqueued[rank] + 1
        expected = {slot: self._written.get(slot, 0) for slot in step.reads}
        if not all(expected.values()):
            raise ScheduleError(f"{step} reads a slot that nothing wrote")
        required = [0] * self.nranks

        def require(source: int, wanted: int) -> None:
            if source != rank:
                required[source] = max(required[source], wanted)

        for slot in step.reads:
            require(*self._writer[slot])
            readers = self._readers.setdefault(slot, {})
            if self._last_reader_only:
                readers.clear()
            readers[rank] = value
        for slot in step.writes:
            require(*self._writer.get(slot, (rank, 0)))
            for reader in self._readers.pop(slot, {}).items():
                require(*reader)
            self._writer[slot] = (rank, value)
            self._written[slot] = generation
        waits = []
        for source, wanted in enumerate(required):
            if wanted > self._waited[rank][source]:
                self._waited[rank][source] = wanted
                waits.append((source, wanted))
        return _Queued(step, generation, waits, expected)

    def _check_slots(self, step: Step) -> None:
        if len(set(step.writes)) != len(step.writes) or set(step.writes) & set(step.reads):
            raise ScheduleError(f"the actions of {step} share a slot")
        for slot in step.writes:
            if self.owner_of(slot) != step.rank:
                raise ScheduleError(f"rank {step.rank} writes a slot of rank {self.owner_of(slot)}")
        last = self.slots.base + self.slots.nranks * self.slots.per_rank
        if not all(self.slots.base <= slot < last for slot in (*step.reads, *step.writes)):
            raise ScheduleError(f"{step} uses slots that it was not given")

    # --- what the devices do ---

    def _drain(self, queues: list[list[tuple[_Queued, _Run]]]) -> None:
        heads = [0] * self.nranks
        while True:
            waiting = [rank for rank in range(self.nranks) if heads[rank] < len(queues[rank])]
            if not waiting:
                return
            ready = [rank for rank in waiting if self._ready(queues[rank][heads[rank]][0])]
            if not ready:
                stuck = (str(queues[rank][heads[rank]][0].step) for rank in waiting)
                raise ScheduleError("deadlock: " + "; ".join(stuck))
            rank = self._random.choice(ready)
            item, run = queues[rank][heads[rank]]
            if not item.running:
                self._begin(item, run)
            else:
                self._end(item, run)
                heads[rank] += 1

    def _ready(self, item: _Queued) -> bool:
        return item.running or all(self._done[rank] >= value for rank, value in item.waits)

    def _begin(self, item: _Queued, run: _Run) -> None:
        item.running = True
        self._check_reads(item)
        for slot in item.step.writes:
            if slot in self._being_written:
                raise ScheduleError(f"two steps write slot {slot} at the same time")
            self._being_written[slot] = item.generation

    def _check_reads(self, item: _Queued) -> None:
        for slot, generation in item.expected.items():
            if slot in self._being_written:
                raise ScheduleError(f"{item.step} reads slot {slot} while it is written")
            found = self._content.get(slot)
            if found is None or found.generation != generation:
                raise ScheduleError(f"{item.step} finds the wrong contents in slot {slot}")

    def _end(self, item: _Queued, run: _Run) -> None:
        self._check_reads(item)
        for slot, content in run.execute(item.step, item.generation, self._content).items():
            del self._being_written[slot]
            self._content[slot] = content
        self._done[item.step.rank] += 1


class _Run:
    """The arrays of one collective."""

    def __init__(
        self, simulator: Simulator, arrays: Sequence[Numbers | None], targets: Sequence[Numbers], codec: Codec
    ) -> None:
        self._simulator = simulator
        self._arrays = arrays
        self._targets = targets
        self._codec = codec
        n = simulator.nranks
        finished = [np.zeros(target.size, np.int64) for target in targets]
        self.counts = Counts([0] * n, [0] * n, finished=finished)

    def execute(self, step: Step, generation: int, content: dict[int, Content]) -> dict[int, Content]:
        """Do what ``step`` does; return what it writes into slots."""
        counts, written = self.counts, {}
        counts.steps[step.rank] += 1
        hops = max((content[slot].hops + 1 for slot in step.reads), default=0)
        counts.hops = max(counts.hops, hops)
        counts.talked |= {(step.rank, self._simulator.owner_of(slot)) for slot in step.reads}
        for action in step.actions:
            do = self._reduce if isinstance(action, Reduce) else self._forward
            raw, owner = do(step.rank, action, content)  # type: ignore[arg-type]
            if action.out_slot is not None:
                if action.span.blocks > self._simulator.slots.blocks:
                    raise ScheduleError(f"{action} does not fit a slot")
                counts.sent_blocks[step.rank] += action.span.blocks
                written[action.out_slot] = Content(generation, action.span, owner, hops, raw)
        return written

    def _reduce(self, rank: int, action: Reduce, content: dict[int, Content]) -> tuple[Any, int | None]:
        for slot in action.sources:
            if content[slot].span != action.span or content[slot].owner is not None:
                raise ScheduleError(f"{action} sums {content[slot]}")
        terms = [self._codec.decode(content[slot].raw) for slot in action.sources]
        if action.own_at is not None:
            array = self._arrays[rank]
            if array is None:
                raise ScheduleError(f"rank {rank} has nothing to add")
            terms.insert(action.own_at, array[_part(action.span)])
        total = terms[0].copy()
        for term in terms[1:]:
            total = total + term
        raw = None
        if action.out_slot is not None:
            raw = self._codec.encode(total, final=action.final)
            total = self._codec.decode(raw)
        if action.to_array:
            self._targets[rank][_part(action.span)] = total
        if action.final:
            self.counts.finished[rank][_part(action.span)] += 1
        return raw, rank if action.final else None

    def _forward(self, rank: int, action: Forward, content: dict[int, Content]) -> tuple[Any, int | None]:
        held = content[action.slot]
        if held.span != action.span or held.owner is None or held.owner == rank:
            raise ScheduleError(f"rank {rank} forwards {held}")
        self._targets[rank][_part(action.span)] = self._codec.decode(held.raw)
        return held.raw, held.owner


def _part(span: Span) -> slice:
    if span.start % BLOCK:
        raise ScheduleError(f"{span} does not start at a block")
    return slice(span.start, span.start + span.count)


def problem(
    nranks: int,
    count: int,
    slots: SlotSet,
    silent: Iterable[int] = (),
    generation: int = 0,
) -> Problem:
    """Return the problem in which all ranks but the ``silent`` ones contribute."""
    return Problem(nranks, count, slots, tuple(r for r in range(nranks) if r not in set(silent)), generation)
