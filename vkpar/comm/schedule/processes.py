"""Schedules of ranks that several processes hold: what one process does of them, and what crosses between processes.

Every process makes the same schedule of all ranks, and so the same list of crossings. It does the steps of its own
ranks, over slots of its own: those of other processes' ranks stand for theirs. What a rank writes into a slot crosses,
right after that step, to every process of which some rank reads it. Crossings take their turn in the one global order,
on two queues for each other process, so that a schedule that cannot deadlock in one process cannot in several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vkpar.comm.schedule.steps import Action, Barrier, Carry, Forward, Reduce, Step

SEND, RECEIVE = "send", "receive"  # the phases of crossings


@dataclass(frozen=True)
class Division:
    """Which process has which ranks.

    Attributes:
        counts: by process, how many ranks it has; they follow each other.
        me: this process.
    """

    counts: tuple[int, ...]
    me: int

    @property
    def nranks(self) -> int:
        """Ranks in all."""
        return sum(self.counts)

    def ranks(self, process: int | None = None) -> range:
        """Return the ranks of a process, this one by default."""
        number = self.me if process is None else process
        first = sum(self.counts[:number])
        return range(first, first + self.counts[number])

    @property
    def processes(self) -> list[int]:
        """By rank, the process that has it."""
        return [process for process, count in enumerate(self.counts) for _ in range(count)]

    @property
    def others(self) -> list[int]:
        """The other processes."""
        return [process for process in range(len(self.counts)) if process != self.me]

    def queue(self, process: int, *, sends: bool) -> int:
        """Return the number of the queue to or from another process: they come after those of the own ranks."""
        return self.counts[self.me] + 2 * self.others.index(process) + (not sends)


def crossings(steps: Sequence[Step], division: Division) -> list[list[tuple[int, tuple[Action, ...]]]]:
    """Return by step what crosses right after it: who reads it, and the actions that filled it."""
    processes = division.processes
    filled: dict[int, tuple[int, int]] = {}  # by slot, the step that filled it last, and the number of the action there
    found: list[dict[int, set[int]]] = [{} for _ in steps]
    for number, step in enumerate(steps):
        reader = processes[step.rank]
        for slot in step.reads:
            writer, action = filled[slot]
            if processes[steps[writer].rank] != reader:
                found[writer].setdefault(reader, set()).add(action)
        for index, done in enumerate(step.actions):
            if done.out_slot is not None:
                filled[done.out_slot] = number, index
    made = []
    for step, readers in zip(steps, found, strict=True):  # in the order of actions, whichever slots a process takes
        listed = [(process, sorted(readers[process])) for process in sorted(readers)]
        made.append([(process, tuple(step.actions[index] for index in filling)) for process, filling in listed])
    return made


def divided(steps: Sequence[Step], division: Division) -> Iterator[Step]:
    """Yield what this process does of ``steps``, given in one global order: by queue.

    The steps of its own ranks are on queues 0, 1, ...; :class:`Division` numbers the others.
    """
    mine = division.ranks()
    processes = division.processes
    for step, crossing in zip(steps, crossings(steps, division), strict=True):
        if step.rank in mine:
            yield replace(step, rank=step.rank - mine.start)
        writer = processes[step.rank]
        for reader, actions in crossing:
            if division.me == writer:
                queue = division.queue(reader, sends=True)
                yield Step(queue, SEND, tuple(_carry(action, sends=True) for action in actions))
            elif division.me == reader:
                queue = division.queue(writer, sends=False)
                yield Step(queue, RECEIVE, tuple(_carry(action, sends=False) for action in actions))


def _carry(action: Action, *, sends: bool) -> Carry:
    assert isinstance(action, (Reduce, Forward, Barrier)), "whole schedules have these alone"
    assert action.out_slot is not None, "it filled a slot"
    span = None if isinstance(action, Barrier) else action.span
    final = isinstance(action, Forward) or (isinstance(action, Reduce) and action.final)
    return Carry(span, action.out_slot, final, sends)
