"""Schedules whose slots are carried from card to card: steps of a rank become few submissions that wait by flags.

A slot then has a place in the memory of each card. Once a step has filled the slots of its rank, *transfers* carry them
to the ranks that read them, and each transfer raises a flag for which the reader's kernels wait. So a submission holds
many steps, where without carriers each step is one. What no flag tells is when a slot may be filled again: its readers'
kernels must be done. A rank knows that of a reader from which something has come that was sent later. Where it does
not, all ranks cut their submissions at the same place of the global order, and the new ones wait for the readers' old
ones. Then every flag comes from earlier in the same round of submissions or from a round before, and no two submissions
wait for each other. No Vulkan here.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vkpar.comm.schedule.grouped import Grouping, GroupStep, LoneStep, placed
from vkpar.comm.schedule.steps import BLOCK, Action, Forward, Reduce, SlotCopy, Span, Step

# Elements that are worth a flag: what comes with them takes longer than the flag's kernel does, measured on H100s.
_GROUP_BLOCKS = (4 << 20) // BLOCK
_LANE_BLOCKS = (1 << 18) // BLOCK
_MOST_PARTS = 256  # of a submission
LANES = 2  # of a road: while one waits for its next flag, the other carries
Lane = tuple[int, int]  # a rank, and the lane from or to it
Extent = tuple[int, int]  # where a part of a slot begins, and its bytes
ExtentsOf = Callable[[int, Span, bool], Sequence[Extent]]  # of a slot that holds a span, finished or not


class Transfer(NamedTuple):
    """Parts of slots that go from the memory of ``src`` to the same places in the memory of ``dst``, on a lane."""

    src: int
    dst: int
    lane: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True)
class CarriedPart:
    """One step within a submission.

    Attributes:
        actions: what its kernels do.
        arrivals: by source and lane, how many more transfers must have come before.
        sends: the ranks and lanes on which a transfer goes after that.
        reads: the slots that transfers have brought.
        fetched: what is copied from shared slots before the kernels; ``published``: into them, after these.
    """

    actions: tuple[Action, ...]
    arrivals: dict[Lane, int] = field(default_factory=dict)
    sends: tuple[Lane, ...] = ()
    reads: tuple[int, ...] = ()
    fetched: tuple[SlotCopy, ...] = ()
    published: tuple[SlotCopy, ...] = ()

    @property
    def hurries(self) -> bool:
        """True where what it sends should go at once, as nothing was waited for; else the next wait is early enough."""
        return bool(self.sends) and not any(action.reads for action in self.actions)


@dataclass(frozen=True)
class CarriedStep(Step):
    """Several steps of one rank, in one submission; a round has one of each rank that does anything.

    Attributes:
        parts: the steps; ``actions`` has those of all.
        transfers: what all steps of its round send, in the global order of these, where it is the first of the round.
        opens: it is the first of its round.
        awaited: the shared slots that steps of its round read: it begins no earlier than these, and waits for none.
    """

    opens: bool = False
    parts: tuple[CarriedPart, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    awaited: tuple[int, ...] = ()

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        """The slots that transfers bring."""
        return tuple(slot for part in self.parts for slot in part.reads)

    @functools.cached_property
    def fetches(self) -> tuple[int, ...]:
        """The shared slots that it reads."""
        return tuple(copy.slot for part in self.parts for copy in part.fetched)

    @functools.cached_property
    def publishes(self) -> tuple[int, ...]:
        """The shared slots that it fills."""
        return tuple(copy.out_slot for part in self.parts for copy in part.published)

    @property
    def taken(self) -> tuple[int, ...]:
        """All slots that it reads."""
        return (*self.reads, *self.fetches)

    @property
    def filled(self) -> tuple[int, ...]:
        """All slots that it fills."""
        return (*self.writes, *self.publishes)


class _Submission:
    """What one rank does between two cuts."""

    def __init__(self) -> None:
        self.parts: list[CarriedPart] = []
        self.phases: list[str] = []

    def step(self, rank: int, transfers: Sequence[Transfer], awaited: tuple[int, ...], *, opens: bool) -> CarriedStep:
        actions = tuple(action for part in self.parts for action in part.actions)
        phase = "+".join(dict.fromkeys(self.phases))
        return CarriedStep(rank, phase, actions, opens, tuple(self.parts), tuple(transfers), awaited)


def carried(steps: Sequence[Step], extents_of: ExtentsOf, grouping: Grouping | None = None) -> Iterator[Step]:
    """Yield ``steps`` in few submissions a rank, with transfers between them.

    Steps of ranks for which nothing is carried stay as they are; nothing in a round waits for those that come after
    its beginning, so that they follow it.

    Args:
        steps: in one global order, by rank; no barriers, whose tokens are carried by nobody.
        extents_of: the bytes of a slot that are in use.
        grouping: which ranks are carried for; None where all are.
    """
    rounds = Rounds()
    made: defaultdict[int, _Submission] = defaultdict(_Submission)
    transfers: list[Transfer] = []
    lone: list[Step] = []
    for taken in rounds.take(apart(steps) if grouping is None else _placed(steps, grouping), extents_of):
        if taken.opens:
            yield from _submissions(made, transfers)
            yield from lone
            made.clear()
            transfers.clear()
            lone.clear()
        if taken.part is None:
            lone.append(taken.step)
            continue
        submission = made[taken.step.rank]
        submission.parts.append(taken.part)
        submission.phases.append(taken.step.phase)
        transfers += taken.transfers
    yield from _submissions(made, transfers)
    yield from lone


def _placed(steps: Sequence[Step], grouping: Grouping) -> list[Step]:
    whole = ([step] if grouping.groups[step.rank] is None else apart([step]) for step in steps)
    return list(placed(list(itertools.chain.from_iterable(whole)), grouping))


def _submissions(made: Mapping[int, _Submission], transfers: Sequence[Transfer]) -> Iterator[CarriedStep]:
    parts = [part for submission in made.values() for part in submission.parts]
    awaited = tuple(dict.fromkeys(copy.slot for part in parts for copy in part.fetched))
    for place, (rank, submission) in enumerate(made.items()):
        yield submission.step(rank, () if place else transfers, awaited, opens=place == 0)


class Taken(NamedTuple):
    """A step that has its place.

    Attributes:
        part: what it is within a submission, None for a submission by itself; ``transfers``: what it sends.
        opens: it begins a round: all ranks begin new submissions.
    """

    step: Step
    part: CarriedPart | None
    transfers: list[Transfer]
    opens: bool


class Rounds:
    """Puts steps into rounds of submissions, those of one schedule after those of another.

    It counts each rank's steps. A rank that has waited for a transfer knows how far its sender was then, and what the
    sender knew: so it knows which of its slots were read, without any flag for that.
    """

    def __init__(self) -> None:
        self._at: Counter[int] = Counter()  # by rank, its steps so far
        self._began: Counter[int] = Counter()  # the same when the round began
        self._known: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by rank, how many steps of others are done
        self._sent: Counter[tuple[int, int, int]] = Counter()  # by source, target and lane, transfers so far
        self._turns: Counter[tuple[int, int]] = Counter()  # the same of those that take the lanes in turn, by road
        self._awaited: Counter[tuple[Lane, int]] = Counter()  # by source and lane, and target
        self._told: dict[tuple[Lane, int, int], Counter[int]] = {}  # by the same and the transfer: what the source knew
        self._reads: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by slot, when each rank read it last
        self._content: dict[tuple[int, int], tuple[Lane, int]] = {}  # by slot and reader: whence, and the transfer
        self._fetched: set[int] = set()  # shared slots that were read since the round began
        self._filled: set[int] = set()  # and those that were filled
        self._cut = False

    def cut(self) -> None:
        """Have the next step begin a round."""
        self._cut = True

    def take(self, steps: Sequence[Step], extents_of: ExtentsOf) -> Iterator[Taken]:
        """Yield the steps of a schedule, all that read what they send among them."""
        readers = _readers(steps)
        for index, step in enumerate(steps):
            if isinstance(step, LoneStep):
                self._share(step.reads, step.writes)
                yield Taken(step, None, [], opens=False)
                continue
            opens = self._cut or not self._fits(step)
            if opens:
                self._cut, self._began = False, self._at.copy()
                self._fetched.clear()
                self._filled.clear()
            arrivals = self._arrivals(step)
            self._at[step.rank] += 1
            for slot in step.reads:
                self._reads[slot][step.rank] = self._at[step.rank]
            wanted = {slot: readers[index, slot] for slot in step.writes}
            targets = sorted(set().union(*wanted.values()))
            transfers = [self._send(step, target, wanted, extents_of) for target in targets]
            for slot in step.writes:
                self._reads[slot].clear()
            part = CarriedPart(step.actions, arrivals, _lanes(transfers), step.reads)
            if isinstance(step, GroupStep):
                part = replace(part, fetched=step.fetched, published=step.published)
                self._share([copy.slot for copy in step.fetched], [copy.out_slot for copy in step.published])
            yield Taken(step, part, transfers, opens)

    def _share(self, fetched: Iterable[int], filled: Iterable[int]) -> None:
        """Note what was read and filled of the shared slots."""
        self._fetched.update(fetched)
        self._filled.update(filled)

    def _waits_inside(self, step: Step) -> bool:
        """Say whether the step waits, by shared slots, for what comes after the round's beginning."""
        return isinstance(step, GroupStep) and (
            any(copy.slot in self._filled for copy in step.fetched)
            or any(copy.out_slot in self._filled | self._fetched for copy in step.published)
        )

    def _fits(self, step: Step) -> bool:
        """Say whether the step may belong to the round: who read its slots in this round is known to have done so."""
        known, rank = self._known[step.rank], step.rank
        return (
            not self._waits_inside(step)
            and self._at[rank] - self._began[rank] < _MOST_PARTS
            and all(
                reader == rank or number <= max(known[reader], self._began[reader])
                for slot in step.writes
                for reader, number in self._reads[slot].items()
            )
        )

    def _arrivals(self, step: Step) -> dict[Lane, int]:
        """Return the transfers to wait for, after which the rank knows what their senders knew."""
        arrivals: Counter[Lane] = Counter()
        for slot in step.reads:
            source, number = self._content[slot, step.rank]
            more = number - self._awaited[source, step.rank]
            if more > 0:
                self._awaited[source, step.rank] = number
                arrivals[source] += more
                self._known[step.rank] |= self._told[source, step.rank, number]
        return dict(arrivals)

    def _send(self, step: Step, target: int, wanted: Mapping[int, set[int]], extents_of: ExtentsOf) -> Transfer:
        rank = step.rank
        carried = [action for action in step.actions if isinstance(action, (Reduce, Forward))]
        sent = [
            (action, slot) for action in carried if (slot := action.out_slot) is not None and target in wanted[slot]
        ]
        lane = self._lane(rank, target, sum(action.span.blocks for action, _ in sent))
        self._sent[rank, target, lane] += 1
        number = self._sent[rank, target, lane]
        self._told[(rank, lane), target, number] = self._known[rank] | Counter({rank: self._at[rank]})
        pieces: list[Extent] = []
        for action, slot in sent:
            self._content[slot, target] = (rank, lane), number
            pieces += extents_of(slot, action.span, isinstance(action, Forward) or action.final)
        return Transfer(rank, target, lane, tuple(_joined(pieces)))

    def _lane(self, rank: int, target: int, blocks: int) -> int:
        """Return the lane for so much: lanes in turn where copies take longer than flags, else the first one."""
        if blocks < _LANE_BLOCKS:
            return 0
        self._turns[rank, target] += 1
        return self._turns[rank, target] % LANES


def _lanes(transfers: Sequence[Transfer]) -> tuple[Lane, ...]:
    return tuple((transfer.dst, transfer.lane) for transfer in transfers)


def _joined(pieces: Sequence[Extent]) -> Iterator[Extent]:
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


def apart(steps: Iterable[Step]) -> list[Step]:
    """Return what ``steps`` do in steps that take a copy engine some time: at first what waits for nothing."""
    made: list[Step] = []
    for step in steps:
        sends = [action for action in step.actions if not action.reads]
        rest = [action for action in step.actions if action.reads]
        groups = [*_groups(sends), *_groups(rest)] or [[]]
        made += [Step(step.rank, step.phase, tuple(group)) for group in groups]
    return made


def _groups(actions: Sequence[Action]) -> Iterator[list[Action]]:
    """Cut actions into groups that take a copy engine some time."""
    group: list[Action] = []
    blocks = 0
    for action in actions:
        group.append(action)
        blocks += action.span.blocks if isinstance(action, (Reduce, Forward)) else 0
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
        if isinstance(step, LoneStep):
            continue
        for slot in step.reads:
            readers[writer[slot], slot].add(step.rank)
        for slot in step.writes:
            writer[slot] = index
            readers[index, slot] = set()
    return readers
