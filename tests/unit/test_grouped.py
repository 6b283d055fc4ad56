"""Schedules of ranks in groups, within which slots are carried, run in any order that flags and waits allow."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from vkpar.comm.schedule.algorithms import p2p
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.carried import CarriedPart, CarriedStep, apart, carried
from vkpar.comm.schedule.grouped import Grouping, LoneStep
from vkpar.comm.schedule.steps import BLOCK, Move, Problem, SlotSet, Span, Step

NBYTES = 16  # of a block in these slots
SLOT_NBYTES = 1 << 20
Way = tuple[int, int, int]


def extents(slot: int, span: Span, final: bool) -> list[tuple[int, int]]:
    return [(slot * SLOT_NBYTES, span.blocks * NBYTES)]


class Waits:
    """What each submission waits for, by the rule of the C helper: slots' writers, and their readers before."""

    def __init__(self, listed: Sequence[Step]) -> None:
        self.writer: dict[int, int] = {}
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        self.late: list[tuple[int, int]] = []
        self.of = [self._of(number, step) for number, step in enumerate(listed)]

    def _of(self, number: int, step: Step) -> set[int]:
        is_carried = isinstance(step, CarriedStep)
        if isinstance(step, CarriedStep) and step.opens:
            for slot, reader in self.late:
                self.readers[slot].append(reader)
            self.late = []
        waits: set[int] = set()
        for slot in step.fetches if isinstance(step, CarriedStep) else step.reads:
            waits.add(self.writer[slot])
            self.readers[slot].append(number)
        if is_carried:
            self.late += [(slot, number) for slot in step.reads]
        published = step.publishes if isinstance(step, CarriedStep) else ()
        for slot in (*step.writes, *published):
            waits.update(self.readers.pop(slot, ()))
            waits.update({self.writer[slot]} if slot in self.writer else ())
            self.writer[slot] = number
        return waits - {number}


class Run:
    """Ranks that do their submissions in order, and lanes that carry: each goes on whenever it may."""

    def __init__(
        self, steps: Sequence[Step], listed: Sequence[Step], grouping: Grouping, chance: random.Random
    ) -> None:
        self.chance, self.grouping, self.listed = chance, grouping, listed
        self.waits = Waits(listed).of
        self.parts: defaultdict[int, deque[tuple[int, CarriedPart, int]]] = defaultdict(deque)  # by rank
        order: defaultdict[int, deque[int]] = defaultdict(deque)
        for index, step in enumerate(steps):
            order[step.rank].append(index)
        for number, step in enumerate(listed):
            for part in step.parts if isinstance(step, CarriedStep) else (CarriedPart(step.actions),):
                self.parts[step.rank].append((number, part, order[step.rank].popleft()))
        self.left = Counter(number for each in self.parts.values() for number, _, _ in each)
        self._contents(steps)
        self.shared: dict[int, int] = {}
        self.memory: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by rank and slot, the content
        self.raised: Counter[Way] = Counter()
        self.came: Counter[Way] = Counter()
        self.awaited: Counter[Way] = Counter()
        self.lanes: defaultdict[Way, deque[list[int]]] = defaultdict(deque)
        for step in listed:
            for transfer in step.transfers if isinstance(step, CarriedStep) else ():
                found = itertools.chain.from_iterable(
                    range(start // SLOT_NBYTES, (start + nbytes - 1) // SLOT_NBYTES + 1)
                    for start, nbytes in transfer.extents
                )
                self.lanes[transfer[:3]].append(sorted(set(found)))
        self.carried: Counter[Way] = Counter()

    def _contents(self, steps: Sequence[Step]) -> None:
        """Number contents; note which one each step writes into a slot, and which one it is to read."""
        self.written: dict[tuple[int, int], int] = {}
        self.read: dict[tuple[int, int], int] = {}
        now: dict[int, int] = {}
        for index, step in enumerate(steps):
            self.read.update({(index, slot): now[slot] for slot in step.reads})
            for slot in step.writes:
                now[slot] = self.written[index, slot] = len(self.written)

    def _bare(self, slot: int) -> int:
        return slot % self.grouping.nslots

    def step(self, rank: int) -> bool:
        if not self.parts[rank]:
            return False
        number, part, index = self.parts[rank][0]
        if any(self.left[other] for other in self.waits[number]):
            return False
        wanted = {(src, rank, lane): n for (src, lane), n in part.arrivals.items()}
        if any(self.came[way] < self.awaited[way] + n for way, n in wanted.items()):
            return False
        self.awaited.update(wanted)
        is_lone = isinstance(self.listed[number], LoneStep)
        memory = self.shared if is_lone else self.memory[rank]
        for copy in part.fetched:
            memory[copy.out_slot] = self.shared[copy.slot]
        for slot in {slot for action in part.actions for slot in action.reads}:
            assert memory.get(slot) == self.read[index, self._bare(slot)], (
                f"rank {rank} reads slot {slot} too early or late"
            )
        for action in part.actions:
            if action.out_slot is not None:
                memory[action.out_slot] = self.written[index, self._bare(action.out_slot)]
        for copy in part.published:
            self.shared[copy.out_slot] = memory[copy.slot]
        for target, lane in part.sends:
            self.raised[rank, target, lane] += 1
        self.parts[rank].popleft()
        self.left[number] -= 1
        return True

    def carry(self, way: Way) -> bool:
        if not self.lanes[way] or self.raised[way] <= self.carried[way]:
            return False
        src, dst, _ = way
        for slot in self.lanes[way].popleft():
            self.memory[dst][slot] = self.memory[src][slot]
        self.carried[way] += 1
        self.came[way] += 1
        return True

    def run(self) -> None:
        moves = [*((self.step, rank) for rank in self.parts), *((self.carry, way) for way in list(self.lanes))]
        while True:
            self.chance.shuffle(moves)
            if not any(move(what) for move, what in moves):
                break
        assert not any(self.parts.values()), "ranks wait for each other"
        assert not any(self.lanes.values())


def check(steps: Sequence[Step], grouping: Grouping, seed: int) -> list[Step]:
    listed = list(carried(steps, extents, grouping))
    parts = [part for step in steps for part in ([step] if grouping.groups[step.rank] is None else apart([step]))]
    for turn in range(3):
        Run(parts, listed, grouping, random.Random(seed + turn)).run()
    return listed


def test_nothing_is_carried_between_groups() -> None:
    grouping = Grouping((0, 0, None, 1, 1), 100)
    problem = Problem(5, 50 * BLOCK, SlotSet(5, 20, 2), tuple(range(5)), groups=(0, 0, 2, 1, 1))
    listed = check(list(TABLE["two_level"].steps(problem)), grouping, 0)
    transfers = {(t.src, t.dst) for step in listed if isinstance(step, CarriedStep) for t in step.transfers}
    assert transfers == {(0, 1), (1, 0), (3, 4), (4, 3)}
    assert {step.rank for step in listed if isinstance(step, LoneStep)} == {2}


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int | None, ...]:
    """Draw groups of two ranks or more, and at least one rank outside the largest."""
    n = draw(st.integers(3, 8))
    names = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    groups = [name if names.count(name) > 1 else None for name in names]
    if len(set(groups)) == 1:
        groups[-1] = None
    return tuple(groups)


@settings(max_examples=100, deadline=None)
@given(
    groups=partitions(),
    name=st.sampled_from([name for name, each in TABLE.items() if name != "naive"]),
    blocks=st.integers(1, 4),
    count=st.integers(1, 120 * BLOCK),
    generation=st.integers(0, 1),
    hands_on=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_reductions_read_what_was_meant(
    groups: tuple[int | None, ...], name: str, blocks: int, count: int, generation: int, hands_on: bool, seed: int
) -> None:
    n = len(groups)
    slots = SlotSet(n, 2 * n, blocks)
    named = tuple(n + rank if group is None else group for rank, group in enumerate(groups))
    problem = Problem(n, count, slots, tuple(range(n)), generation, groups=named, hands_on=hands_on)
    check(list(TABLE[name].steps(problem)), Grouping(groups, n * slots.per_rank), seed)


def moves_of(n: int, sizes: Sequence[tuple[int, int, int]]) -> Iterator[Move]:
    start = 0
    for source, target, count in sizes:
        if source % n != target % n:
            yield Move(Span(start, count), source % n, (target % n,))
            start += -(-count // BLOCK) * BLOCK


@settings(max_examples=100, deadline=None)
@given(
    groups=partitions(),
    sizes=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 60 * BLOCK)), min_size=1, max_size=8),
    seed=st.integers(0, 1 << 20),
)
def test_movements_read_what_was_meant(
    groups: tuple[int | None, ...], sizes: list[tuple[int, int, int]], seed: int
) -> None:
    n = len(groups)
    slots = SlotSet(n, 4, 2)
    check(list(p2p.steps(list(moves_of(n, sizes)), slots)), Grouping(groups, n * slots.per_rank), seed)
