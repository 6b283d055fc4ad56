"""Schedules whose slots are carried, run in any order that flags and rounds allow: every rank reads what was meant."""

from __future__ import annotations

import random
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkpar.comm.schedule.algorithms import p2p
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.carried import LANES, CarriedStep, Rounds, Taken, Transfer, apart, carried
from vkpar.comm.schedule.steps import BLOCK, Move, Problem, SlotSet, Span, Step
from vkpar.vulkan.pipelines import shader

OP_LOOP_MERGE = 246
NBYTES = 16  # of a block in these slots
SLOT_NBYTES = 1 << 20


def extents(slot: int, span: Span, final: bool) -> list[tuple[int, int]]:
    return [(slot * SLOT_NBYTES, span.blocks * NBYTES)]


def contents(steps: Sequence[Step]) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Return, by step and slot, which content it writes, and which one it is to read: contents are numbered."""
    written: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], int] = {}
    now: dict[int, int] = {}
    for index, step in enumerate(steps):
        read.update({(index, slot): now[slot] for slot in step.reads})
        for slot in step.writes:
            now[slot] = written[index, slot] = len(written)
    return written, read


class Rig:
    """Ranks that do their submissions in order, and lanes that carry: each goes on whenever it may."""

    def __init__(self, steps: Sequence[Step], listed: Sequence[CarriedStep], chance: random.Random) -> None:
        self.written, self.read = contents(steps)
        self.chance = chance
        self.parts: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # by rank: submission, part
        self.listed = listed
        self.round: list[int] = []
        for step in listed:
            self.round.append((self.round[-1] + step.opens) if self.round else 0)
        order = defaultdict(list)
        for index, step in enumerate(steps):
            order[step.rank].append(index)
        self.index = {}
        for number, step in enumerate(listed):
            for at in range(len(step.parts)):
                self.index[number, at] = order[step.rank][len(self.parts[step.rank])]
                self.parts[step.rank].append((number, at))
        self.place: Counter[int] = Counter()
        self.memory: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by rank and slot, the content
        self.raised: Counter[tuple[int, int, int]] = Counter()
        self.came: Counter[tuple[int, int, int]] = Counter()
        self.awaited: Counter[tuple[int, int, int]] = Counter()
        self.lanes: defaultdict[tuple[int, int, int], list[dict[int, int]]] = defaultdict(list)
        left: defaultdict[tuple[int, int, int], deque[Transfer]] = defaultdict(deque)
        self.given: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)  # by card, as lanes follow
        for step in listed:
            assert step.opens or not step.transfers
            for transfer in step.transfers:
                left[transfer[:3]].append(transfer)
                self.given[transfer.src].append(transfer[:3])
        for number, step in enumerate(listed):
            self._plan(number, step, left)
        assert not any(left.values())
        self.carried: Counter[tuple[int, int, int]] = Counter()
        self.done: Counter[int] = Counter()  # by card, of what it was given

    def _plan(self, number: int, step: CarriedStep, left: Mapping[tuple[int, int, int], deque[Transfer]]) -> None:
        """Note which contents a submission's transfers are to carry, of those that are left."""
        for at, part in enumerate(step.parts):
            index = self.index[number, at]
            for target, lane in part.sends:
                transfer = left[step.rank, target, lane].popleft()
                slots = {
                    slot
                    for start, nbytes in transfer.extents
                    for slot in range(start // SLOT_NBYTES, (start + nbytes - 1) // SLOT_NBYTES + 1)
                }
                self.lanes[step.rank, target, lane].append({slot: self.written[index, slot] for slot in slots})

    def _ended(self, submission: int) -> bool:
        rank = self.listed[submission].rank
        return all(number != submission for number, _ in self.parts[rank][self.place[rank] :])

    def _may_begin(self, submission: int) -> bool:
        """Say whether the readers of what it fills are done, those of earlier rounds: the pump waits for these."""
        mine = set(self.listed[submission].writes)
        return all(
            self._ended(other)
            for other, step in enumerate(self.listed)
            if self.round[other] < self.round[submission] and mine & set(step.reads)
        )

    def step(self, rank: int) -> bool:
        if self.place[rank] == len(self.parts[rank]):
            return False
        number, at = self.parts[rank][self.place[rank]]
        part, index = self.listed[number].parts[at], self.index[number, at]
        if at == 0 and not self._may_begin(number):
            return False
        if any(
            self.came[src, rank, lane] < self.awaited[src, rank, lane] + n for (src, lane), n in part.arrivals.items()
        ):
            return False
        for (src, lane), n in part.arrivals.items():
            self.awaited[src, rank, lane] += n
        for slot in {slot for action in part.actions for slot in action.reads}:
            assert self.memory[rank].get(slot) == self.read[index, slot], (
                f"rank {rank} reads slot {slot} too early or late"
            )
        for action in part.actions:
            if action.out_slot is not None:
                self.memory[rank][action.out_slot] = self.written[index, action.out_slot]
        for target, lane in part.sends:
            self.raised[rank, target, lane] += 1
        self.place[rank] += 1
        return True

    def carry(self, way: tuple[int, int, int]) -> bool:
        """Carry a lane's next transfer, if it is its card's next one, too: lanes may share the hardware's queues."""
        number = self.carried[way]
        if number == len(self.lanes[way]) or self.given[way[0]][self.done[way[0]]] != way:
            return False
        if self.raised[way] <= number:
            return False
        src, dst, _ = way
        for slot, content in self.lanes[way][number].items():
            assert self.memory[src][slot] == content, (
                f"slot {slot} of rank {src} was filled again before it was carried"
            )
            self.memory[dst][slot] = content
        self.carried[way] += 1
        self.done[src] += 1
        self.came[way] += 1
        return True

    def run(self) -> None:
        ways = list(self.lanes)
        moves = [*((self.step, rank) for rank in self.parts), *((self.carry, way) for way in ways)]
        while True:
            self.chance.shuffle(moves)
            if not any(move(what) for move, what in moves):
                break
        assert all(self.place[rank] == len(self.parts[rank]) for rank in self.parts), "ranks wait for each other"
        assert all(self.carried[way] == len(self.lanes[way]) for way in ways)


def check(steps: Sequence[Step], seed: int) -> list[CarriedStep]:
    listed = list(carried(steps, extents))
    parts = apart(steps)
    for _ in range(3):
        Rig(parts, listed, random.Random(seed)).run()
        seed += 1
    return listed


@settings(max_examples=100)
@given(
    n=st.integers(2, 8),
    name=st.sampled_from([name for name, each in TABLE.items() if name != "naive"]),
    blocks=st.integers(1, 4),
    count=st.integers(1, 120 * BLOCK),
    lag=st.integers(1, 3),
    generation=st.integers(0, 1),
    seed=st.integers(0, 1 << 20),
)
def test_reductions_read_what_was_meant(
    n: int, name: str, blocks: int, count: int, lag: int, generation: int, seed: int
) -> None:
    slots = SlotSet(n, max(16, 4 * n), blocks, base=3, lag=lag)
    problem = Problem(n, count, slots, tuple(range(n)), generation)
    check(list(TABLE[name].steps(problem)), seed)


@settings(max_examples=100)
@given(
    n=st.integers(2, 8),
    sizes=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 60 * BLOCK)), min_size=1, max_size=8),
    seed=st.integers(0, 1 << 20),
)
def test_movements_read_what_was_meant(n: int, sizes: list[tuple[int, int, int]], seed: int) -> None:
    slots = SlotSet(n, 16, 2, base=0, lag=2)
    moves, start = [], 0
    for source, target, count in sizes:
        if source % n != target % n:
            moves.append(Move(Span(start, count), source % n, (target % n,)))
            start += -(-count // BLOCK) * BLOCK
    check(list(p2p.steps(moves, slots)), seed)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_long_sum_is_one_submission_a_rank(n: int) -> None:
    """Every rank hears from all others, so that nobody has to wait for a submission to end."""
    slots = SlotSet(n, max(16, 5 * n), 4, lag=2)
    listed = check(list(TABLE["two_shot"].steps(Problem(n, 800 * BLOCK, slots, tuple(range(n))))), 1)
    assert [step.rank for step in listed] == list(range(n))


def test_a_broadcast_waits_for_its_readers() -> None:
    """The root hears from nobody: it fills its slots again in a round of its own."""
    slots = SlotSet(2, 4, 1)
    listed = check(list(p2p.steps([Move(Span(0, 12 * BLOCK), 0, (1,))], slots)), 1)
    assert sum(step.opens for step in listed) > 1


def test_schedules_follow_each_other() -> None:
    """What is known from one schedule holds for the next: two sums that alternate slots need no cut in a hundred."""
    slots, rounds = SlotSet(2, 16, 4, lag=2), Rounds()
    opened = [
        taken.opens
        for turn in range(100)
        for taken in rounds.take(apart(TABLE["direct"].steps(Problem(2, 3 * BLOCK, slots, (0, 1), turn % 2))), extents)
    ]
    assert not any(opened)


def in_turn(schedules: Sequence[Sequence[Step]]) -> list[CarriedStep]:
    """Return the submissions of schedules that follow each other, as a graph has them."""
    rounds, listed = Rounds(), []
    made: dict[int, list[Taken]] = {}
    order: list[Transfer] = []

    def end() -> None:
        transfers: tuple[Transfer, ...] = tuple(order)
        for place, (rank, taken) in enumerate(made.items()):
            actions = tuple(action for each in taken for action in each.part.actions)
            parts = tuple(each.part for each in taken)
            listed.append(CarriedStep(rank, "", actions, place == 0, parts, () if place else transfers))
        made.clear()
        order.clear()

    for steps in schedules:
        for taken in rounds.take(apart(steps), extents):
            if taken.opens:
                end()
            made.setdefault(taken.step.rank, []).append(taken)
            order.extend(taken.transfers)
    end()
    return listed


@settings(max_examples=100)
@given(
    n=st.integers(2, 5),
    calls=st.lists(
        st.tuples(
            st.sampled_from([*(name for name in TABLE if name != "naive"), "move"]),
            st.integers(1, 60 * BLOCK),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 1 << 20),
)
def test_schedules_in_turn_read_what_was_meant(n: int, calls: list[tuple[str, int, int]], seed: int) -> None:
    """Whatever collectives follow each other, over the same slots."""
    slots = SlotSet(n, max(16, 5 * n), 2, lag=2)
    schedules = []
    for turn, (name, count, root) in enumerate(calls):
        if name == "move":
            move = Move(Span(0, count), root % n, tuple(rank for rank in range(n) if rank != root % n))
            schedules.append(list(p2p.steps([move], slots, turn % 2)))
        else:
            schedules.append(list(TABLE[name].steps(Problem(n, count, slots, tuple(range(n)), turn % 2))))
    listed = in_turn(schedules)
    for chance in range(3):
        Rig(apart([step for steps in schedules for step in steps]), listed, random.Random(seed + chance)).run()


def test_large_transfers_take_the_lanes_in_turn() -> None:
    slots = SlotSet(2, 16, 4096, lag=2)
    listed = check(list(TABLE["two_shot"].steps(Problem(2, 1 << 25, slots, (0, 1)))), 1)
    lanes = [transfer.lane for step in listed for transfer in step.transfers if transfer.src == 0]
    assert set(lanes) == set(range(LANES))


def test_the_shipped_kernel_waits() -> None:
    """Optimizers drop a loop that only reads, whatever is volatile: the module must still have one."""
    spirv = shader.shipped("carry")
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    found, at = [], 5
    while at < len(words):
        found.append(words[at] & 0xFFFF)
        at += words[at] >> 16
    assert found.count(OP_LOOP_MERGE) == 1
