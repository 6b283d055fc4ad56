"""A recorded collective: its command buffers, and when they were last submitted."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from vkpar.comm.record.crossings import ErrandTake
from vkpar.comm.record.timestamps import Stopwatch
from vkpar.vulkan.pump.native import CProgram
from vkpar.vulkan.pump.ports import Batch
from vkpar.vulkan.stamps import Marks
from vkpar.vulkan.tape import Take


class Program:
    """A recorded collective, submitted as often as wanted.

    Args:
        takes: by part of the score, its rank and what was recorded.
        listed: the batches in one global order, without their command buffers; ``commands``: these.
        phases: by queue, what each of its batches is for.
        port: submits all of them.
        timers: of a profile, with their ranks; they are closed with the program.
        watch: takes the steps' times; None outside profiles.

    Attributes:
        takes: as they were given.
        batches: number of command buffers; ``counts[i]`` is that of queue i, ``phases[i]`` says what each is for.
        values: each queue's timeline value of the last submission, 0 where it has no part.
        starts: the value that each queue's timeline has when nothing else keeps its first batch from running.
        watch: as it was given.
    """

    def __init__(
        self,
        takes: Sequence[tuple[int, Take | ErrandTake]],
        listed: Sequence[Batch],
        commands: Sequence[Any],
        phases: Sequence[Sequence[str]],
        port: CProgram,
        timers: Sequence[tuple[int, Marks]] = (),
        watch: Stopwatch | None = None,
    ) -> None:
        self.takes = takes
        self._parts: list[tuple[int, Take | ErrandTake | Marks]] = [*takes, *timers]
        self._listed, self._commands = listed, commands
        self.phases = phases
        self.watch = watch
        self._port = port
        self.counts = list(map(len, phases))
        self._idle = 0 in self.counts
        self.batches = len(listed)
        self.values = [0] * len(phases)
        self.starts = [0] * len(phases)
        self._marked = True
        self.touches: list[tuple[int, ...]] = []

    @property
    def listed(self) -> list[Batch]:
        """The batches in one global order."""
        pairs = zip(self._listed, self._commands, strict=True)
        return [replace(batch, command=command) for batch, command in pairs]

    @property
    def uses_slots(self) -> list[bool]:
        """Say of every batch whether it reads or writes a slot."""
        return [bool(batch.taken or batch.writes) for batch in self._listed]

    def set_preludes(self, commands: Sequence[Any] | None) -> None:
        """Have later submissions begin with these command buffers, by queue; with none from ``None`` on."""
        self._port.set_preludes(commands)

    def touch(self, touches: list[tuple[int, ...]]) -> None:
        """Say what it does to arrays, as the ledger of failures takes it; an array's failure is the program's then."""
        self.touches = touches
        self._port.touch(touches)

    def enqueue(self) -> None:
        """Submit every batch in one step that cannot be interrupted half-way."""
        self.mark_submitting()
        self.mark_submitted(self._port.enqueue())

    def mark_submitting(self) -> None:
        """Count as pending until :meth:`mark_submitted`, because an interrupt can come right after the submits."""
        self._marked = False

    def mark_submitted(self, values: Sequence[int]) -> None:
        """Remember the values that a submission will signal, by queue; any value where it has no batch."""
        if self._idle:
            values = [value if number else 0 for value, number in zip(values, self.counts, strict=True)]
        self.values = list(values)
        self.starts = list(map(operator.sub, values, self.counts))
        self._marked = True

    def pending(self) -> list[int]:
        """Return, by queue, a timeline value at which no submission is pending any more."""
        return self.values if self._marked else self._port.last()

    def close(self, late: Collection[int] = ()) -> None:
        """Free the command buffers but for those of ``late`` ranks; the last submission must be done on the others."""
        if self.watch is not None:
            self.watch.close(late)
        self._port.close()
        for part in [part for rank, part in self._parts if rank not in late]:
            part.close()
