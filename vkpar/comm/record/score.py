"""A program written down, of which programs are recorded over whichever memory the arrays lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from vkpar.comm.record.crossings import Errands, ErrandTake
from vkpar.comm.record.program import Program
from vkpar.comm.record.timestamps import Stopwatch, planned
from vkpar.comm.rig.arena import Slab
from vkpar.comm.schedule.carried import CarriedStep
from vkpar.comm.schedule.steps import Step
from vkpar.comm.wires import WirePlan
from vkpar.graph import protocol
from vkpar.vulkan.memory.buffer import Buffer
from vkpar.vulkan.pump.native import CGroup
from vkpar.vulkan.pump.ports import Batch, TransferPieces
from vkpar.vulkan.stamps import Marks
from vkpar.vulkan.tape import Take, Tape

AnyTake = Take | ErrandTake


class QueuePart(NamedTuple):
    """What one queue does in a program: its tape; ``timer`` takes its times, None outside profiles."""

    rank: int
    tape: Tape | Errands
    timer: Marks | None = None


class Score:
    """A program written down.

    Args:
        group: the pump's, which submits.
        parts: the queues' tapes.
        steps: all steps in one global order, and by step the number of its part.
        holds: by step, a semaphore and a value that it waits for besides; None for nothing.
        watch: takes the times of the one program that is recorded; None outside profiles.
        carried_in: its slots, where they are carried between the ranks' cards; None elsewhere.

    Attributes:
        batches: number of command buffers.
        uses_slots: by batch, whether it reads or writes a slot.
    """

    def __init__(
        self,
        group: CGroup,
        parts: Sequence[QueuePart],
        steps: Sequence[tuple[Step, int]],
        holds: Sequence[tuple[Any, int] | None] = (),
        watch: Stopwatch | None = None,
        *,
        carried_in: Slab | None = None,
    ) -> None:
        self._carried_in = carried_in
        self._parts = parts
        self._order = [part for _, part in steps]
        self._watch = watch
        self.batches = len(steps)
        self._listed = listed = [step for step, _ in steps]
        self.uses_slots = [bool(step.taken or step.filled) for step in listed]
        held = holds or [None] * len(listed)
        self._batches = [_batch(step, hold, step is listed[0]) for step, hold in zip(listed, held, strict=True)]
        self._shape = group.shape(self._batches)
        self._phases = tuple(
            tuple(step.phase for step in listed if step.rank == queue) for queue in range(self._shape.nqueues)
        )

    def program(self, memory: Sequence[Buffer]) -> Program:
        """Record a program whose arrays lie in ``memory``, in the order of the places that the tapes were given.

        Raises:
            OutOfMemoryError: no room for command buffers.
        """
        with ExitStack() as undo:
            takes: list[tuple[int, AnyTake]] = []
            for part in self._parts:
                if part.timer is not None:
                    undo.callback(part.timer.close)
                takes.append((part.rank, part.tape.take(memory)))
                undo.callback(takes[-1][1].close)
            rest: list[Iterator[Any]] = [iter(take.handles) for _, take in takes]
            commands = [next(rest[number]) for number in self._order]
            port = self._shape.program(commands)
            undo.pop_all()
        timers = [(part.rank, part.timer) for part in self._parts if part.timer is not None]
        return Program(takes, self._batches, commands, self._phases, port, timers, self._watch)

    def lay(self, name: str, memory: Sequence[Buffer], plan: WirePlan, keep: object = ()) -> LaidScore:
        """Lay it over ``memory`` for a graph, which records its steps into command buffers of its own.

        Args:
            name: of the collective.
            memory: what the places of the tapes stand for.
            plan: how elements are written into slots.
            keep: what lives as long; the memory is the graph's concern.

        Raises:
            OutOfMemoryError: no room for descriptor sets.
        """
        moved = [(step.received_nbytes, step.sent_nbytes) for step in planned(self._listed, plan)]
        order = list(zip(self._order, self._batches, self._listed, moved, strict=True))
        carried = None if self._carried_in is None else (self._carried_in, plan)
        return LaidScore(name, self._parts, order, memory, keep, carried)

    def record_over(self, program: Program, memory: Sequence[Buffer]) -> None:
        """Record ``program``, which is one of this score, anew over other memory; its last submission must be done.

        Raises:
            OutOfMemoryError: no room for what is recorded; the program can only be closed then.
        """
        for part, (_, take) in zip(self._parts, program.takes, strict=True):
            tape: Any = part.tape  # whose take it is
            take.record_over(tape, memory)


def _batch(step: Step, hold: tuple[Any, int] | None, begins: bool) -> Batch:
    if not isinstance(step, CarriedStep):
        return Batch(step.rank, None, step.reads, step.writes, hold, after=step.after, begins=begins)
    sent = tuple(TransferPieces(*transfer) for transfer in step.transfers)
    return Batch(step.rank, None, step.awaited, step.filled, hold, carried=step.reads, opens=step.opens, transfers=sent)


class LaidScore:
    """A score laid over memory: its steps are recorded one by one, into command buffers of others.

    Attributes:
        name: of the collective.
        steps: in one global order; ``parts``: what they hold on the ranks' devices, by rank.
        keep: as it was given.
        listed: the steps as they were scheduled.
        carried: the slots that are carried, and how elements are written into them; None where none are.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[QueuePart],
        order: Sequence[tuple[int, Batch, Step, tuple[int, int]]],
        memory: Sequence[Buffer],
        keep: object,
        carried: tuple[Slab, WirePlan] | None,
    ) -> None:
        self.name, self.keep, self.carried = name, keep, carried
        self.listed = [step for _, _, step, _ in order]
        with ExitStack() as undo:
            self.parts: list[tuple[int, AnyTake]] = []
            for part in parts:
                self.parts.append((part.rank, part.tape.lay(memory)))
                undo.callback(self.parts[-1][1].close)
            undo.pop_all()
        laid = [_laid(part.tape, take, memory) for part, (_, take) in zip(parts, self.parts, strict=True)]
        rest = [0] * len(parts)
        self.steps: list[protocol.Step] = []
        for number, batch, step, moved in order:
            named = batch.rank, step.phase, batch.reads, batch.writes
            self.steps.append(protocol.Step(*named, *laid[number].step(rest[number], moved)))
            rest[number] += 1


class _Laid:
    """What one queue does in a score that is laid over memory.

    The tape's commands name the memory of whoever placed them last. So the steps are recorded in order, and no other
    take of the tape is recorded between two of them. They may be recorded several times.
    """

    def __init__(self, tape: Tape, take: Take, memory: Sequence[Buffer]) -> None:
        self._tape, self._take, self._memory = tape, take, list(memory)
        self._placed = False

    def step(self, number: int, moved: tuple[int, int]) -> tuple[Any, ...]:
        """Return how step ``number`` is recorded, see :class:`vkpar.graph.protocol.Step`."""
        kernels = self._tape.noted(number, self._memory)
        return partial(self.record, number), kernels, partial(self.around, number), *moved

    def record(self, number: int, handle: Any) -> None:
        """Record step ``number`` into an open command buffer."""
        self._place(number)
        self._tape.replay(number, handle)

    def around(self, number: int, handle: Any, *, after: bool) -> None:
        """Record what comes before, or ``after``, the kernels of step ``number``, which others stand for."""
        self._place(number)
        self._tape.replay_around(number, handle, after=after)

    def _place(self, number: int) -> None:
        if number == 0:
            self._tape.place(self._take, self._memory, again=self._placed)
            self._placed = True


class _LaidErrands:
    """What one queue to or from another process does in a score that is laid over memory: nothing is recorded."""

    def __init__(self, take: ErrandTake) -> None:
        self._take = take

    def step(self, number: int, moved: tuple[int, int]) -> tuple[Any, ...]:
        """Return step ``number``, see :class:`vkpar.graph.protocol.Step`."""
        return _nothing, None, _nothing, *moved, self._take.handles[number]


def _nothing(_handle: Any, *, after: bool = False) -> None:
    """Record nothing."""


def _laid(tape: Tape | Errands, take: AnyTake, memory: Sequence[Buffer]) -> _Laid | _LaidErrands:
    if isinstance(take, ErrandTake):
        return _LaidErrands(take)
    assert isinstance(tape, Tape), "takes are of their own kind of tape"
    return _Laid(tape, take, memory)
