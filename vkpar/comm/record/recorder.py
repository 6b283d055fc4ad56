"""Writes schedules down: the one place where algorithms, wires and transports meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from vkpar.comm.record import crossings
from vkpar.comm.record.carried import CarriedRecorder
from vkpar.comm.record.checks import SlotChecks
from vkpar.comm.record.crossings import CrossingRecorder
from vkpar.comm.record.kernels import Recorder, ReduceSpec
from vkpar.comm.record.program import Program
from vkpar.comm.record.score import QueuePart, Score
from vkpar.comm.record.slot_copies import CopyRecorder, extents_of
from vkpar.comm.record.timestamps import Collector, planned, timers_of
from vkpar.comm.requests.operands import Operands
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule import carried as scheduled
from vkpar.comm.schedule import slot_copies
from vkpar.comm.schedule.steps import Step
from vkpar.vulkan.pump.native import CProgram
from vkpar.vulkan.stamps import Marks
from vkpar.vulkan.tape import Places

# For tests: holds a step up until a semaphore of its rank's device has a value; None lets it go.
Holds = Callable[[Step], "tuple[Any, int] | None"]


class StepRecorder:
    """Records steps into the programs of one communicator.

    Attributes:
        checks: the generations of the slots; None where they are not checked.
        holds: for tests, a semaphore and a value that a step waits for besides; None outside tests.
        collector: takes the times of what is recorded; None outside profiles.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.checks: SlotChecks | None = None
        self.holds: Holds | None = None
        self.collector: Collector | None = None

    @property
    def is_plain(self) -> bool:
        """Whether what is written down holds for other calls too: it is neither timed, checked nor held up."""
        return self.collector is None and self.checks is None and self.holds is None

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Write down without timestamps inside."""
        collector, self.collector = self.collector, None
        try:
            yield
        finally:
            self.collector = collector

    def record(self, steps: Iterable[Step], spec: ReduceSpec, slab: Slab, operands: Operands) -> Program:
        """Record ``steps``, whose slots lie in ``slab``, over ``operands``."""
        return self.kept(spec, slab, operands).write(steps).program(())

    def kept(
        self,
        spec: ReduceSpec,
        slab: Slab,
        operands: Operands,
        places: Places | None = None,
        *,
        copies: bool = False,
        flags: bool = True,
        near: Slab | None = None,
        straight: bool = True,
    ) -> StepWriter:
        """Return what writes schedules of one collective down.

        Args:
            spec: what the reduction does.
            slab: the slots.
            operands: the arrays.
            places: numbers the memory that the arrays lie in; memory without a number stays the same.
            copies: have copy queues move the slots around the kernels; the rig was opened for that.
            flags: of slots that are carried, write the flags down, too; else each step is by itself.
            near: the same slots in the memory of cards, where they are carried within groups of ranks.
            straight: have other processes' messages go past the slots where they can; no graph takes that.
        """
        numbered, words = places or Places(), {"copies": copies, "flags": flags, "straight": straight}
        return StepWriter(self, self._rig, spec, slab, operands, numbered, near=near, **words)

    def joined(self, programs: Sequence[Program]) -> CProgram:
        """Return a program of the pump's that submits several at once; close it after use."""
        return self._rig.group.program([batch for program in programs for batch in program.listed])


class StepWriter:
    """Writes schedules of one collective down, which differ in their slots: what they have in common is done once.

    Args:
        owner: says what is timed, checked and held up.
        rig: what ranks share.
        spec: what the reduction does; the rest as :meth:`StepRecorder.kept` says.
    """

    def __init__(
        self,
        owner: StepRecorder,
        rig: Rig,
        spec: ReduceSpec,
        slab: Slab,
        operands: Operands,
        places: Places,
        *,
        copies: bool,
        flags: bool = True,
        near: Slab | None = None,
        straight: bool = True,
    ) -> None:
        self._owner, self._rig, self._spec, self._slab = owner, rig, spec, slab
        self._operands, self._places, self._copies = operands, places, copies
        self._flags, self._near = flags, near
        goes = straight and owner.is_plain and not copies and rig.world is not None
        self._straight = crossings.HostArrays(rig, operands, spec.plan) if goes else None
        self._carries = rig.carriers is not None and slab in (rig.carriers.small, rig.carriers.large)
        self._recorders: dict[tuple[int, bool], Recorder | CopyRecorder | CrossingRecorder] = {}  # of untimed kernels

    def write(self, steps: Iterable[Step]) -> Score:
        """Write ``steps`` down, by rank in one global order.

        In a profile one program is recorded of what is returned; it closes the timers.

        Raises:
            UnsupportedError: in a profile, a copy queue without timestamps.
        """
        owner, rig = self._owner, self._rig
        listed = crossings.mine(list(steps), rig, self._straight)
        idle = self._operands.copies.ranks - {step.rank for step in listed}
        listed += [Step(rank, "copy", ()) for rank in sorted(idle)]
        if self._near is not None and rig.carriers is not None:
            extents = extents_of(self._near, self._spec.plan)
            listed = list(scheduled.carried(listed, extents, rig.carriers.grouping))
        elif self._carries:
            extents = extents_of(self._slab, self._spec.plan)
            listed = list(scheduled.carried(listed, extents)) if self._flags else scheduled.apart(listed)
        if self._copies:
            listed = list(slot_copies.through_copies(listed, rig.queue_map, rig.arena.nslots))
        keys = [(step.rank, slot_copies.copies(step)) for step in listed]
        last = {key: index for index, key in enumerate(keys)}
        with ExitStack() as undo:
            timers = timers_of(listed, rig, undo) if owner.collector else {}
            used: dict[tuple[int, bool], Recorder | CopyRecorder | CrossingRecorder] = {}
            for index, (key, step) in enumerate(zip(keys, listed, strict=True)):
                first = key not in used
                if first:
                    used[key] = self._recorder(key, timers.get(step.rank))
                used[key].record(step, first=first, last=last[key] == index)
            for recorder in used.values():
                recorder.tape.seal()
            numbers = {key: number for number, key in enumerate(used)}
            parts = [QueuePart(recorder.rank, recorder.tape, recorder.timer) for recorder in used.values()]
            watch = None
            if owner.collector:
                watch = owner.collector.stopwatch(planned(listed, self._spec.plan, rig.queue_map.ranks), timers)
            held = [owner.holds(step) for step in listed] if owner.holds else ()
            numbered = [(step, numbers[key]) for step, key in zip(listed, keys, strict=True)]
            carried_in = self._slab if self._carries else None
            score = Score(rig.group, parts, numbered, held, watch, carried_in=carried_in)
            undo.pop_all()
            return score

    def _recorder(self, key: tuple[int, bool], timer: Marks | None) -> Recorder | CopyRecorder | CrossingRecorder:
        """Return what writes one queue's steps down, with an empty tape."""
        owner = self._owner
        known = self._recorders.get(key) if owner.is_plain else None
        if known is not None:
            known.tape = known.tape.another()
            return known
        (queue, copies), rig, slab, spec = key, self._rig, self._slab, self._spec
        made: Recorder | CopyRecorder | CrossingRecorder
        if rig.queue_map.ranks[queue] < 0:
            made = CrossingRecorder(rig, queue, slab, spec.plan, self._operands, self._places)
        elif copies:
            made = CopyRecorder(rig, queue, slab, spec.plan, timer)
        else:
            near = self._near if rig.carriers is not None and rig.carriers.serves(queue) else None
            made = (CarriedRecorder if self._carries or near else Recorder)(
                rig,
                queue,
                near or slab,
                spec,
                self._operands,
                timer,
                copies=self._copies,
                checks=owner.checks,
                places=self._places,
            )
        if owner.is_plain:
            self._recorders[key] = made
        return made
