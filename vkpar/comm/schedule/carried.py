"""Schedules whose slots are carried from card to card: steps of a rank become few submissions that wait by flags.

A slot then has a place in the memory of each card. Once a step has filled the slots of its rank, *transfers* carry them
to the ranks that read them, and each transfer raises a flag for which the reader's kernels wait. So a submission holds
many steps, where without carriers each step is one. What no flag tells is when a slot may be filled again: its readers'
kernels must be done. A rank knows that of a reader from which something has come that was sent later. Where it does not,
all ranks cut their submissions at the same place of the global order, and the new ones wait for the readers' old ones.
Then every flag comes from earlier in the same round of submissions or from a round before, and no two submissions wait
for each other. No Vulkan here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vkpar.comm.schedule.steps import BLOCK, Action, Barrier, Forward, Reduce, Span, Step

# Elements that are worth a flag: what comes with them takes longer than the flag's kernel does, measured on H100s.
_GROUP_BLOCKS = (4 << 20) // BLOCK
_MOST_PARTS = 256  # of a submission
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

    @property
    def hurries(self) -> bool:
        """True where what it sends should go at once, as nothing was waited for; else the next wait is early enough."""
        return bool(self.sends) and not any(action.reads for action in self.actions)


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


def carried(steps: Sequence[Step], pieces_of: PiecesOf) -> Iterator[CarriedStep]:
    """Yield ``steps`` in few submissions a rank, with transfers between them.

    Args:
        steps: in one global order, by rank; no barriers, whose tokens are carried by nobody.
        pieces_of: the bytes of a slot that are in use.
    """
    parts = [part for step in steps for part in _apart(step)]
    writing = _Writing(parts, pieces_of)
    for step in parts:
        if not writing.takes(step):
            yield from writing.submissions()
        writing.add(step)
    yield from writing.submissions()


class _Writing:
    """What is known while steps are put together.

    It counts each rank's steps. A rank that has waited for a transfer knows how far its sender was then, and what the
    sender knew: so it knows which of its slots were read, without any flag for that.
    """

    def __init__(self, steps: Sequence[Step], pieces_of: PiecesOf) -> None:
        self._wanted, self._pieces_of = _readers(steps), pieces_of
        self._index = 0
        self._at: Counter[int] = Counter()  # by rank, its steps so far
        self._known: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by rank, how many steps of others are done
        self._sent: Counter[tuple[int, int]] = Counter()  # by source and target, transfers so far
        self._awaited: Counter[tuple[int, int]] = Counter()
        self._told: dict[tuple[int, int, int], Counter[int]] = {}  # by source, target and transfer: what the source knew
        self._content: dict[tuple[int, int], tuple[int, int]] = {}  # by slot and reader: the source, and the transfer
        self._reads: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by slot, when each rank read it last
        self._made: defaultdict[int, _Submission] = defaultdict(_Submission)
        self._began: Counter[int] = Counter()  # by rank, its steps before this round

    def takes(self, step: Step) -> bool:
        """Say whether the step may belong to the round: who read its slots in this round is known to have done so."""
        known = self._known[step.rank]
        here = len(self._made[step.rank].parts) if step.rank in self._made else 0
        return here < _MOST_PARTS and all(
            reader == step.rank or number <= max(known[reader], self._began[reader])
            for slot in step.writes
            for reader, number in self._reads[slot].items()
        )

    def add(self, step: Step) -> None:
        """Take the step into the round."""
        index, rank = self._index, step.rank
        self._index += 1
        arrivals = self._arrivals(step)
        self._at[rank] += 1
        for slot in step.reads:
            self._reads[slot][rank] = self._at[rank]
        targets = sorted({reader for slot in step.writes for reader in self._wanted[index, slot]})
        transfers = [self._send(step, index, target) for target in targets]
        for slot in step.writes:
            self._reads[slot].clear()
        made = self._made[rank]
        made.parts.append(Part(step.actions, arrivals, tuple(targets)))
        made.phases.append(step.phase)
        made.transfers += transfers

    def submissions(self) -> Iterator[CarriedStep]:
        """Yield the round, and begin a new one."""
        for place, (rank, made) in enumerate(self._made.items()):
            yield made.step(rank, opens=place == 0)
        self._made.clear()
        self._began = self._at.copy()

    def _arrivals(self, step: Step) -> dict[int, int]:
        """Return the transfers to wait for, after which the rank knows what their senders knew."""
        arrivals: Counter[int] = Counter()
        for slot in step.reads:
            source, number = self._content[slot, step.rank]
            more = number - self._awaited[source, step.rank]
            if more > 0:
                self._awaited[source, step.rank] = number
                arrivals[source] += more
                self._known[step.rank] |= self._told[source, step.rank, number]
        return dict(arrivals)

    def _send(self, step: Step, index: int, target: int) -> Transfer:
        rank = step.rank
        self._sent[rank, target] += 1
        number = self._sent[rank, target]
        self._told[rank, target, number] = self._known[rank] | Counter({rank: self._at[rank]})
        pieces: list[Piece] = []
        for action in step.actions:
            assert not isinstance(action, Barrier), "tokens are not carried"
            slot = action.out_slot
            if slot is not None and target in self._wanted[index, slot]:
                self._content[slot, target] = rank, number
                final = isinstance(action, Forward) or (isinstance(action, Reduce) and action.final)
                pieces += self._pieces_of(slot, action.span, final)
        return Transfer(rank, target, tuple(_joined(pieces)))


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yield the pieces, those that lie side by side as one."""
    whole: list[int] = []
    for start, nbytes in sorted(pieces):
        if whole and sum(whole) == start:
            whole[1] += nbytes
            continue
        if whole:
            yield whole[0], whole[1]
        whole = [start, nbytes]
    if whole:
        yield whole[0], whole[1]


def _apart(step: Step) -> Iterator[Step]:
    """Yield what ``step`` does in parts that take a copy engine some time: at first what waits for nothing."""
    sends = [action for action in step.actions if not action.reads]
    rest = [action for action in step.actions if action.reads]
    groups = [*_groups(sends), *_groups(rest)] or [[]]
    yield from (Step(step.rank, step.phase, tuple(group)) for group in groups)


def _groups(actions: Sequence[Action]) -> Iterator[list[Action]]:
    """Cut actions into groups that take a copy engine some time."""
    group: list[Action] = []
    blocks = 0
    for action in actions:
        group.append(action)
        blocks += action.span.blocks
        if blocks >= _GROUP_BLOCKS:
            yield group
            group, blocks = [], 0
    if group:
        yield group


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
