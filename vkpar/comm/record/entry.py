"""Recorded collectives: programs that take turns over certain memory, and what calls of one form have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from vkpar.arrays.array import Array
from vkpar.comm.record.program import Program
from vkpar.comm.record.score import Score
from vkpar.device import Device
from vkpar.vulkan.memory.buffer import Buffer
from vkpar.vulkan.memory.pool import Block
from vkpar.vulkan.stamps import Allowance

Draft = Callable[[int], Score]  # by generation


class Entry:
    """One collective over certain memory.

    Args:
        programs: the programs by turn; none where there is nothing to do.
        bounce_buffers: aligned arrays that the programs use in place of arrays that wide accesses cannot reach.
        label: the collective's entry in the flight recorder.
        alternates: how many programs take turns; programs missing from ``programs`` are added when they are needed.
        template: records the programs over other memory; None where they cannot be.

    Attributes:
        programs: the programs recorded so far, by turn, over different slots; none where there is nothing to do.
        spares: programs that were recorded over other memory, by turn: :meth:`Template.program` records them anew.
        blocks: the blocks of memory that the programs name: once one is gone, no call can ask for the entry.
        nbytes: bytes of the bounce buffers, on the device that has most of them.
        counted: the command buffers that its cache has counted.
    """

    def __init__(
        self,
        programs: dict[int, Program],
        bounce_buffers: Sequence[Array] = (),
        label: dict[str, Any] | None = None,
        alternates: int = 1,
        template: Template | None = None,
    ) -> None:
        self.programs = programs
        self.spares: dict[int, Program] = {}
        self.blocks: frozenset[Block] = frozenset()
        self.template = template
        self.counted = 0
        self.bounce_buffers = tuple(bounce_buffers)
        self.nbytes = _most_on_a_device(self.bounce_buffers)
        self.label = label or {}
        self.alternates = alternates

    @property
    def batches(self) -> int:
        """Number of command buffers."""
        return sum(program.batches for program in self.all())

    def all(self) -> list[Program]:
        """Return every program, the spare ones too."""
        return [*self.programs.values(), *self.spares.values()]

    def program(self, turn: int, taken: Collection[Program | None] = ()) -> Program | None:
        """Return the program for the communicator's collective number ``turn``; the next collective uses other slots.

        Return None where the program was not recorded yet; :meth:`add` takes it.
        """
        return self.programs.get(turn % self.alternates)

    def add(self, turn: int, program: Program) -> None:
        """Take the program of a turn."""
        self.programs[turn % self.alternates] = program

    def used_up(self, taken: Collection[Program | None]) -> bool:
        """Say whether no program is left beside those ``taken`` for a submission; here one may run in it twice."""
        return False

    def done(self, reached: Sequence[int]) -> bool:
        """Say whether every submission is done, from the queues' timeline values."""
        return all(now >= value for p in self.all() for now, value in zip(reached, p.pending(), strict=True))

    def is_gone(self) -> bool:
        """Say whether memory that the programs name went back to the driver."""
        return any(block.dropped for block in self.blocks)

    def spare(self) -> None:
        """Make spares of all programs; they are done."""
        self.spares = {**self.spares, **self.programs}
        self.programs = {}

    def close(self, late: Collection[int] = ()) -> None:
        """Free the programs, but for the command buffers of ``late`` ranks; all others must be done."""
        programs, self.programs, self.spares, self.bounce_buffers = self.all(), {}, {}, ()
        for program in programs:
            program.close(late)


class Template:
    """The programs of one form of call, written down: calls of one form differ in where their arrays lie alone.

    Args:
        label: what the flight recorder says of the collective.
        alternates: how many programs take turns.
        scores: the programs by turn; those that it lacks are added when they are needed.
        draft: writes the program of a generation down; it holds no array. None where that takes a call.
    """

    def __init__(
        self, label: dict[str, Any], alternates: int, scores: dict[int, Score], draft: Draft | None = None
    ) -> None:
        self.label = label
        self.draft = draft
        self.alternates = alternates
        self.scores = scores

    @property
    def batches(self) -> int:
        """Number of command buffers written down."""
        return sum(score.batches for score in self.scores.values())

    def has(self, turn: int) -> bool:
        """Say whether the program of the communicator's collective number ``turn`` is written down."""
        return turn % self.alternates in self.scores

    def add(self, turn: int, score: Score) -> None:
        """Take the program of a turn."""
        self.scores[turn % self.alternates] = score

    def entry(self, turn: int, memory: Sequence[Buffer]) -> Entry:
        """Return an entry with the program of ``turn``, whose arrays lie in ``memory``.

        Raises:
            OutOfMemoryError: no room for command buffers.
        """
        number = turn % self.alternates
        programs = {number: self.scores[number].program(memory)}
        return Entry(programs, (), self.label, self.alternates, self)

    def program(self, entry: Entry, turn: int, memory: Sequence[Buffer]) -> Program:
        """Return the program of ``turn`` that ``entry``, of this template, lacks: a spare one where it has that.

        Raises:
            OutOfMemoryError: no room for command buffers.
        """
        number = turn % self.alternates
        spare = entry.spares.get(number)
        if spare is None:
            made = self.scores[number].program(memory)
        else:
            self.scores[number].record_over(spare, memory)
            made = spare
        entry.add(turn, made)
        entry.spares.pop(number, None)
        return made


def _most_on_a_device(arrays: Sequence[Array]) -> int:
    by_device: Counter[Device] = Counter()
    for array in arrays:
        by_device[array.device] += array.nbytes
    return max(by_device.values(), default=0)


class TimedEntry(Entry):
    """One collective under a profile: a program is free for its next run once the times of the last one were read.

    Args:
        generations: how many sets of slots the programs use in turn, the first program the first set.
        allowance: which runs are timed, where the last programs, one for each set of slots, are not; None for all.
    """

    def __init__(
        self,
        programs: list[Program],
        bounce_buffers: Sequence[Array],
        label: dict[str, Any],
        generations: int,
        allowance: Allowance | None = None,
    ) -> None:
        super().__init__(dict(enumerate(programs)), bounce_buffers, label)
        timed = [(program, number % generations) for number, program in enumerate(programs) if program.watch]
        self._waiting = timed  # longest first
        self._plain, self._allowance = programs[len(timed) :], allowance
        self._generations = generations

    def program(self, turn: int, taken: Collection[Program | None] = ()) -> Program:
        """Return a program without times where these would cost too much, else the one that ran longest ago.

        If possible that is one over the slots that ``turn`` is to use.

        Raises:
            CommunicatorError: the communicator failed while this waited for the program's last run.
            InvalidUsageError: the communicator was closed while this waited.
        """
        allowance = self._allowance
        if allowance is not None and not allowance.pays(2 * self._waiting[0][0].batches):
            return self._plain[turn % self._generations]
        free = [pair for pair in self._waiting if pair[0] not in taken]
        pair = next((pair for pair in free if pair[1] == turn % self._generations), free[0])
        if pair[0].watch is not None:
            pair[0].watch.clear()
        self._waiting = [other for other in self._waiting if other is not pair] + [pair]
        return pair[0]

    def used_up(self, taken: Collection[Program | None]) -> bool:
        """Say whether no program is left beside those ``taken`` for a submission; each can run in it once."""
        return all(program in taken for program, _ in self._waiting)
