"""What the calls of one form have in common, written down: each is recorded from it over its own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkpar.comm.record.entry import Entry
from vkpar.comm.record.program import Program
from vkpar.comm.record.score import Score
from vkpar.vulkan.memory.buffer import Buffer

Draft = Callable[[int], Score]  # by generation


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
