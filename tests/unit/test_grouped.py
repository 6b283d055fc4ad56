"""Schedules of ranks in groups, within which slots are carried, run in any order that flags and waits allow."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence

from hypothesis import given
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
    """What each submission waits for, as the C helper works it out (``collect``, ``note_late``, ``build_waits``)."""

    def __init__(self, listed: Sequence[Step], programs: Collection[int]) -> None:
        self.writer: dict[int, tuple[int, int]] = {}  # by slot, a rank and which of its submissions
        self.readers: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.waited: Counter[tuple[int, int]] = Counter()
        self.late: list[tuple[int, int, int]] = []
        self.given: Counter[int] = Counter()
        self.numbers: dict[tuple[int, int], int] = {}
        self.of: list[set[int]] = []
        for number, step in enumerate(listed):
            if number in programs or (isinstance(step, CarriedStep) and step.opens):
                self._note()
            self.given[step.rank] += 1
            self.numbers[step.rank, self.given[step.rank]] = number
            self.of.append(self._of(step, self.given[step.rank]))

    def _of(self, step: Step, value: int) -> set[int]:
        rank, required = step.rank, Counter[int]()
        for slot in step.awaited if isinstance(step, CarriedStep) else step.reads:
            required |= Counter(dict([self.writer[slot]]))
            self.readers[slot][rank] = value
        if isinstance(step, CarriedStep):
            self.late += [(slot, rank, value) for slot in step.reads]
        for slot in step.filled:
            required |= Counter(dict([self.writer[slot]] if slot in self.writer else []))
            required |= Counter(self.readers.pop(slot, {}))
            self.writer[slot] = rank, value
        found = set()
        for source, least in required.items():
            if source != rank and least > self.waited[rank, source]:
                self.waited[rank, source] = least
                found.add(self.numbers[source, least])
        return found

    def _note(self) -> None:
        for slot, rank, value in self.late:
            self.readers[slot][rank] = value
            source, written = self.writer[slot]
            self.waited[rank, source] = max(self.waited[rank, source], written - 1)
        self.late = []


class Run:
    """Ranks that do their submissions in order, and lanes that carry: each goes on whenever it may."""

    def __init__(
        self,
        steps: Sequence[Step],
        listed: Sequence[Step],
        grouping: Grouping,
        chance: random.Random,
        programs: Collection[int] = (),
    ) -> None:
        self.chance, self.grouping, self.listed = chance, grouping, listed
        self.waits = Waits(listed, programs).of
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
        self.given: defaultdict[int, deque[Way]] = defaultdict(deque)  # by card: its lanes share the hardware's queues
        for step in listed:
            for transfer in step.transfers if isinstance(step, CarriedStep) else ():
                found = itertools.chain.from_iterable(
                    range(start // SLOT_NBYTES, (start + nbytes - 1) // SLOT_NBYTES + 1)
                    for start, nbytes in transfer.extents
                )
                self.lanes[transfer[:3]].append(sorted(set(found)))
                self.given[transfer.src].append(transfer[:3])
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

    def _place(self, slot: int) -> int:
        """Return where a slot lies: a copy of a foreign one, where the rank's own group would have it."""
        return slot if slot < self.grouping.nslots else slot % (2 * self.grouping.nslots)

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
            memory[self._place(copy.out_slot)] = self.shared[copy.slot]
        for slot in {slot for action in part.actions for slot in action.reads}:
            assert memory.get(self._place(slot)) == self.read[index, self._bare(slot)], (
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
        src, dst, _ = way
        if not self.given[src] or self.given[src][0] != way or self.raised[way] <= self.carried[way]:
            return False
        self.given[src].popleft()
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


def parts_of(steps: Sequence[Step], grouping: Grouping) -> list[Step]:
    return [part for step in steps for part in ([step] if grouping.groups[step.rank] is None else apart([step]))]


def check(steps: Sequence[Step], grouping: Grouping, seed: int) -> list[Step]:
    listed = list(carried(steps, extents, grouping))
    for turn in range(3):
        Run(parts_of(steps, grouping), listed, grouping, random.Random(seed + turn)).run()
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


def posed(data: st.DataObject, groups: Sequence[int | None], name: str) -> list[Step]:
    """Draw the steps of a reduction."""
    n = len(groups)
    slots = SlotSet(n, 2 * n, data.draw(st.integers(1, 4)))
    named = tuple(n + rank if group is None else group for rank, group in enumerate(groups))
    count, generation, hands_on = (
        data.draw(each) for each in (st.integers(1, 80 * BLOCK), st.integers(0, 1), st.booleans())
    )
    problem = Problem(n, count, slots, tuple(range(n)), generation, groups=named, hands_on=hands_on)
    return list(TABLE[name].steps(problem))


@given(groups=partitions(), data=st.data(), seed=st.integers(0, 1 << 20))
def test_programs_in_turn_read_what_was_meant(groups: tuple[int | None, ...], data: st.DataObject, seed: int) -> None:
    """Reductions, some of them in one program, and graphs between them, which use the shared slots alone."""
    grouping = Grouping(groups, 2 * len(groups) ** 2)
    listed: list[Step] = []
    parts: list[Step] = []
    programs = set()
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from([name for name in TABLE if name != "naive"]))
        steps, is_graph = posed(data, groups, name), data.draw(st.booleans())
        if is_graph or data.draw(st.booleans()):
            programs.add(len(listed))
        lone = [LoneStep(step.rank, step.phase, step.actions) for step in steps]
        listed += lone if is_graph else carried(steps, extents, grouping)
        parts += lone if is_graph else parts_of(steps, grouping)
        if is_graph:
            programs.add(len(listed))
    for turn in range(3):
        Run(parts, listed, grouping, random.Random(seed + turn), programs).run()


def moves_of(n: int, sizes: Sequence[tuple[int, int, int]]) -> Iterator[Move]:
    start = 0
    for source, target, count in sizes:
        if source % n != target % n:
            yield Move(Span(start, count), source % n, (target % n,))
            start += -(-count // BLOCK) * BLOCK


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
