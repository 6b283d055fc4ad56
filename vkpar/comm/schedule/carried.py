"""Schedules whose slots are carried from card to card: steps of a rank become few submissions that wait by flags.

A slot then has a place in the memory of each card. Once a step has filled the slots of its rank, *transfers* carry them
to the ranks that read them, and each transfer raises a flag for which the reader's kernels wait. So a submission holds
many steps, where without carriers each step is one. What no flag tells is when a slot may be filled again: its readers'
submissions must be done. So all ranks cut their submissions at the same places of the global order, between two steps
of which the second fills a slot that the ones before have filled. Then every flag comes from earlier in the same round
of submissions or from a round before, and no two submissions wait for each other. No Vulkan here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vkpar.comm.schedule.steps import Action, Barrier, Forward, Reduce, Span, Step

Piece = tuple[int, int]  # where a part of a slot begins, and its bytes
PiecesOf = Callable[[int, Span, bool], Sequence[Piece]]  # of a slot that holds a span, finished or not


class Transfer(NamedTuple):
    """Parts of slots that go from the memory of ``src`` to the same places in the memory of ``dst``."""

    src: int
    dst: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Part:
    """One step within a submission.

    Attributes:
        actions: what its kernels do.
        arrivals: by source, how many more transfers must have come before.
        sends: the ranks to which a transfer goes after that.
    """

    actions: tuple[Action, ...]
    arrivals: dict[int, int] = field(default_factory=dict)
    sends: tuple[int, ...] = ()


@dataclass(frozen=True)
class CarriedStep(Step):
    """Several steps of one rank, in one submission; a round has one of each rank that does anything.

    Attributes:
        parts: the steps; ``actions`` has those of all.
        transfers: what they send, in order.
        opens: it is the first of its round.
    """

    opens: bool = False
    parts: tuple[Part, ...] = ()
    transfers: tuple[Transfer, ...] = ()


class _Submission:
    """What one rank does between two cuts."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.phases: list[str] = []
        self.transfers: list[Transfer] = []

    def step(self, rank: int, *, opens: bool) -> CarriedStep:
        actions = tuple(action for part in self.parts for action in part.actions)
        phase = "+".join(dict.fromkeys(self.phases))
        return CarriedStep(rank, phase, actions, opens, tuple(self.parts), tuple(self.transfers))


def carried(steps: Sequence[Step], per_rank: int, pieces_of: PiecesOf) -> Iterator[CarriedStep]:
    """Yield ``steps`` in few submissions a rank, with transfers between them.

    Args:
        steps: in one global order, by rank; no barriers, whose tokens are carried by nobody.
        per_rank: the slots of a rank; a rank fills half of them in a submission, while the others are read.
        pieces_of: the bytes of a slot that are in use.
    """
    readers = _readers(steps)
    sent: defaultdict[tuple[int, int], int] = defaultdict(int)  # transfers so far, by source and target
    awaited: defaultdict[tuple[int, int], int] = defaultdict(int)
    number: dict[tuple[int, int], tuple[int, int]] = {}  # by slot and reader, the source and the transfer's number
    for some in _rounds(steps, max(1, per_rank // 2)):
        made: defaultdict[int, _Submission] = defaultdict(_Submission)
        for index in some:
            step = steps[index]
            arrivals: dict[int, int] = {}
            for slot in step.reads:
                source, wanted = number[slot, step.rank]
                more = wanted - awaited[source, step.rank]
                if more > 0:
                    awaited[source, step.rank] = wanted
                    arrivals[source] = arrivals.get(source, 0) + more
            targets = sorted({reader for slot in step.writes for reader in readers[index, slot]})
            for target in targets:
                sent[step.rank, target] += 1
                for slot in step.writes:
                    if target in readers[index, slot]:
                        number[slot, target] = step.rank, sent[step.rank, target]
            submission = made[step.rank]
            submission.parts.append(Part(step.actions, arrivals, tuple(targets)))
            submission.phases.append(step.phase)
            submission.transfers += [_transfer(step, target, readers, index, pieces_of) for target in targets]
        for place, (rank, submission) in enumerate(made.items()):
            yield submission.step(rank, opens=place == 0)


def _readers(steps: Sequence[Step]) -> dict[tuple[int, int], set[int]]:
    """Return, by step and slot that it fills, which other ranks read that before it is filled again."""
    readers: dict[tuple[int, int], set[int]] = {}
    writer: dict[int, int] = {}
    for index, step in enumerate(steps):
        for slot in step.reads:
            readers[writer[slot], slot].add(step.rank)
        for slot in step.writes:
            writer[slot] = index
            readers[index, slot] = set()
    return readers


def _rounds(steps: Sequence[Step], most: int) -> Iterator[list[int]]:
    """Cut the steps where one fills a slot again, or a rank has filled ``most`` slots."""
    some: list[int] = []
    filled: defaultdict[int, set[int]] = defaultdict(set)
    for index, step in enumerate(steps):
        mine = filled[step.rank]
        if mine and (len(mine) + len(step.writes) > most or not mine.isdisjoint(step.writes)):
            yield some
            some = []
            filled.clear()
        filled[step.rank].update(step.writes)
        some.append(index)
    if some:
        yield some


def _transfer(
    step: Step, target: int, readers: dict[tuple[int, int], set[int]], index: int, pieces_of: PiecesOf
) -> Transfer:
    pieces: list[Piece] = []
    for action in step.actions:
        assert not isinstance(action, Barrier), "tokens are not carried"
        if isinstance(action, (Reduce, Forward)) and action.out_slot is not None:
            if target in readers[index, action.out_slot]:
                final = isinstance(action, Forward) or action.final
                pieces += pieces_of(action.out_slot, action.span, final)
    return Transfer(step.rank, target, tuple(pieces))
