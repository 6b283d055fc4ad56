"""A schedule as command buffers: the one place where algorithms, wires and transports meet."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from vkpar.comm.record.checks import SlotChecks, WireReports
from vkpar.comm.record.kernels import Arithmetic, Recorder
from vkpar.comm.record.slot_copies import CopyRecorder
from vkpar.comm.record.timestamps import Collector, RankTimer, Stopwatch, timers_of
from vkpar.comm.requests.operands import Operands
from vkpar.comm.rig.arena import Region
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule import slot_copies as lanes
from vkpar.comm.schedule.steps import Step
from vkpar.vulkan.pump.ports import Batch, ProgramPort

# For tests: what a step waits for besides, a semaphore of its rank's device and a value.
Gates = Callable[[Step], "tuple[Any, int] | None"]


class Program:
    """A recorded collective, submitted as often as wanted.

    Attributes:
        batches: number of command buffers; ``phases[i]`` says what each of lane i's is for.
        values: each lane's timeline value of the last submission, 0 where it has no part.
        starts: the value that each lane's timeline has when nothing else keeps its first batch from running.
        watch: takes the steps' times; None outside profiles.
    """

    def __init__(
        self,
        recorders: Sequence[Recorder | CopyRecorder],
        steps: Sequence[Step],
        listed: Sequence[Batch],
        port: Any,
        watch: Stopwatch | None = None,
    ):
        self._recorders = recorders
        self.watch = watch
        self._port: ProgramPort = port
        self.listed = tuple(listed)
        nlanes = len(port.last())
        self.phases = tuple(tuple(step.phase for step in steps if step.rank == lane) for lane in range(nlanes))
        self._counts = [len(phases) for phases in self.phases]
        self._idle = 0 in self._counts
        self.batches = len(listed)
        self.values = [0] * nlanes
        self.starts = [0] * nlanes
        self._noted = True

    @property
    def uses_slots(self) -> list[bool]:
        """Say of every batch whether it reads or writes a slot."""
        return [bool(batch.reads or batch.writes) for batch in self.listed]

    def enqueue(self) -> None:
        """Submit every batch in one step that cannot be interrupted half-way."""
        self.expect()
        self.note(self._port.enqueue())

    def expect(self) -> None:
        """Count as pending until :meth:`note`: an interrupt can come right after the submits."""
        self._noted = False

    def note(self, values: Sequence[int]) -> None:
        """Remember what a submission will signal: ``values`` by lane, 0 or any value where it has no batch."""
        if self._idle:
            values = [value if number else 0 for value, number in zip(values, self._counts, strict=True)]
        self.values = list(values)
        self.starts = list(map(operator.sub, values, self._counts))
        self._noted = True

    def pending(self) -> list[int]:
        """Return, by lane, a timeline value at which no submission is pending any more."""
        return self.values if self._noted else self._port.last()

    def close(self, late: Collection[int] = ()) -> None:
        """Free the command buffers but for those of ``late`` ranks; the last submission must be done on the others."""
        if self.watch is not None:
            self.watch.close(late)
        self._port.close()
        for recorder in self._recorders:
            if recorder.rank not in late:
                recorder.close()


class StepRecorder:
    """Records steps into the programs of one communicator.

    Attributes:
        reports: where kernels write what the wire loses; None where that is not measured.
        checks: the generations of the slots; None where they are not checked.
        gates: for tests, what steps wait for besides.
        collector: takes the times of what is recorded; None outside profiles.
    """

    def __init__(self, rig: Rig, reports: WireReports | None = None, checks: SlotChecks | None = None) -> None:
        self._rig = rig
        self.reports = reports
        self.checks = checks
        self.gates: Gates | None = None
        self.collector: Collector | None = None

    def record(
        self,
        steps: Iterable[Step],
        doing: Arithmetic,
        region: Region,
        operands: Operands,
        *,
        copies: bool = False,
    ) -> Program:
        """Record ``steps``, whose slots lie in ``region``, over ``operands``.

        Args:
            steps: by rank, in one global order.
            doing: what the kernels do.
            region: the slots.
            operands: the arrays.
            copies: have copy queues move the slots around the kernels; the rig was opened for that.

        Raises:
            UnsupportedError: in a profile, a copy queue without timestamps.
        """
        listed = list(steps)
        busy = {step.rank for step in listed}
        listed += [Step(rank, "copy", ()) for rank in sorted(operands.copies.ranks - busy)]
        if copies:
            listed = list(lanes.through_copies(listed, self._rig.lanes, self._rig.arena.nslots))
        keys = [(step.rank, lanes.copies(step)) for step in listed]
        first: dict[tuple[int, bool], int] = {}
        last: dict[tuple[int, bool], int] = {}
        for index, key in enumerate(keys):
            first.setdefault(key, index)
            last[key] = index
        with ExitStack() as undo:
            recorders: dict[tuple[int, bool], Recorder | CopyRecorder] = {}
            timers = timers_of(listed, self._rig, undo) if self.collector else {}
            batches = []
            for index, (key, step) in enumerate(zip(keys, listed, strict=True)):
                lane, timer = step.rank, timers.get(step.rank)
                if key not in recorders:
                    recorders[key] = (
                        CopyRecorder(self._rig, lane, region, doing.plan, timer)
                        if lanes.copies(step)
                        else self._recorder(lane, region, doing, operands, timer, copies=copies)
                    )
                    undo.callback(recorders[key].close)
                commands = recorders[key].record(step, first=first[key] == index, last=last[key] == index)
                gate = self.gates(step) if self.gates else None
                batches.append(Batch(lane, commands.handle, step.reads, step.writes, gate))
            for recorder in recorders.values():
                recorder.seal()
            port = self._rig.group.program(batches)
            undo.pop_all()
            ranks = self._rig.lanes.ranks
            watch = self.collector.stopwatch(listed, doing.plan, timers, ranks) if self.collector else None
            return Program(list(recorders.values()), listed, batches, port, watch)

    def _recorder(
        self, rank: int, region: Region, doing: Arithmetic, operands: Operands, timer: RankTimer | None, *, copies: bool
    ) -> Recorder:
        return Recorder(
            self._rig, rank, region, doing, operands, timer, copies=copies, reports=self.reports, checks=self.checks
        )

    def joined(self, programs: Sequence[Program]) -> ProgramPort:
        """Return a program of the pump's that submits several at once; close it after use."""
        return self._rig.group.program([batch for program in programs for batch in program.listed])
