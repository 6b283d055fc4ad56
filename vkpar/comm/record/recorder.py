"""Writes schedules down: the one place where algorithms, wires and transports meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from vkpar.comm.record.checks import SlotChecks
from vkpar.comm.record.kernels import Recorder, ReduceSpec
from vkpar.comm.record.program import Program
from vkpar.comm.record.score import Part, Score
from vkpar.comm.record.slot_copies import CopyRecorder
from vkpar.comm.record.timestamps import Collector, planned, timers_of
from vkpar.comm.requests.operands import Operands
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule import slot_copies
from vkpar.comm.schedule.steps import Step
from vkpar.vulkan.pump.native import CProgram
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

    def record(self, steps: Iterable[Step], spec: ReduceSpec, slab: Slab, operands: Operands) -> Program:
        """Record ``steps``, whose slots lie in ``slab``, over ``operands``."""
        return self.write(steps, spec, slab, operands).program(())

    def write(
        self,
        steps: Iterable[Step],
        spec: ReduceSpec,
        slab: Slab,
        operands: Operands,
        places: Places | None = None,
        *,
        copies: bool = False,
    ) -> Score:
        """Write ``steps`` down, whose slots lie in ``slab``, over ``operands``.

        In a profile one program is recorded of what is returned; it closes the timers.

        Args:
            steps: by rank, in one global order.
            spec: what the reduction does.
            slab: the slots.
            operands: the arrays.
            places: numbers the memory that the arrays lie in; memory without a number stays the same.
            copies: have copy queues move the slots around the kernels; the rig was opened for that.

        Raises:
            UnsupportedError: in a profile, a copy queue without timestamps.
        """
        listed = list(steps)
        busy = {step.rank for step in listed}
        listed += [Step(rank, "copy", ()) for rank in sorted(operands.copies.ranks - busy)]
        if copies:
            listed = list(slot_copies.through_copies(listed, self._rig.queue_map, self._rig.arena.nslots))
        keys = [(step.rank, slot_copies.copies(step)) for step in listed]
        first: dict[tuple[int, bool], int] = {}
        last: dict[tuple[int, bool], int] = {}
        for index, key in enumerate(keys):
            first.setdefault(key, index)
            last[key] = index
        kernels = partial(Recorder, copies=copies, checks=self.checks, places=places)
        with ExitStack() as undo:
            recorders: dict[tuple[int, bool], Recorder | CopyRecorder] = {}
            timers = timers_of(listed, self._rig, undo) if self.collector else {}
            for index, (key, step) in enumerate(zip(keys, listed, strict=True)):
                queue, timer = step.rank, timers.get(step.rank)
                if key not in recorders:
                    recorders[key] = (
                        CopyRecorder(self._rig, queue, slab, spec.plan, timer)
                        if key[1]
                        else kernels(self._rig, queue, slab, spec, operands, timer)
                    )
                recorders[key].record(step, first=first[key] == index, last=last[key] == index)
            for recorder in recorders.values():
                recorder.seal()
            numbers = {key: number for number, key in enumerate(recorders)}
            parts = [Part(recorder.rank, recorder.tape, recorder.timer) for recorder in recorders.values()]
            ranks = self._rig.queue_map.ranks
            watch = self.collector.stopwatch(planned(listed, spec.plan, ranks), timers) if self.collector else None
            held = [self.holds(step) for step in listed] if self.holds else ()
            numbered = [(step, numbers[key]) for step, key in zip(listed, keys, strict=True)]
            score = Score(self._rig.group, parts, numbered, held, watch)
            undo.pop_all()
            return score

    def joined(self, programs: Sequence[Program]) -> CProgram:
        """Return a program of the pump's that submits several at once; close it after use."""
        return self._rig.group.program([batch for program in programs for batch in program.listed])
