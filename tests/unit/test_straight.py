"""Crossings past the slots: the same messages, and right results however the queues of processes take turns."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest

from vkpar.comm.schedule.algorithms import p2p
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.processes import RECEIVE, SEND, Division, divided
from vkpar.comm.schedule.steps import BLOCK, Action, Barrier, Carry, Forward, Move, Problem, Reduce, SlotSet, Span, Step
from vkpar.comm.schedule.straight import ByteSpan, straight

COUNTS = [(1, 1), (1, 1, 1), (2, 1), (1, 2, 1)]


class Memory:
    """Where the elements of a process' ranks lie: element i of a rank at byte i of what it gives, and of what it gets.

    Both are the same memory ``in_place``. No host sees those of ranks that are ``hidden``.
    """

    def __init__(self, *, in_place: bool, moves: bool = False, hidden: Sequence[int] = ()) -> None:
        self.in_place, self.moves, self.hidden = in_place, moves, hidden
        self.sends = self.stores = True

    def reached(self, rank: int) -> bool:
        return rank not in self.hidden

    def copied(self, _rank: int) -> tuple[ByteSpan, ...]:
        return ()

    def places(self, rank: int, span: Span, *, stored: bool) -> tuple[ByteSpan, ...]:
        return (ByteSpan((rank, stored and not self.in_place), span.start, span.start + span.count),)


class Process:
    """A process, its queues, and what memory and slots hold: by block, the ranks whose elements were added.

    Before the program each rank's queue fills its array. After it, the queue notes what it got and overwrites all.
    """

    def __init__(self, steps: list[Step], division: Division, memory: Memory, count: int) -> None:
        self.division, self.memory, self.steps = division, memory, steps
        self.own = division.counts[division.me]
        self.blocks = range(-(-count // BLOCK))
        self.bytes: dict[tuple[object, int], tuple[int, ...]] = {}
        self.slots: dict[int, dict[int, tuple[int, ...]]] = {}
        self.got: dict[int, dict[int, tuple[int, ...]]] = {}
        self.queues: dict[int, list[int]] = {rank: [-1 - rank] for rank in range(self.own)}
        self.done: set[int] = set()
        self.needs: list[set[int]] = []
        writer: dict[int, int] = {}
        readers: defaultdict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(steps):
            self.queues.setdefault(step.rank, []).append(number)
            needs = {-1 - rank for rank in step.after} | {writer[slot] for slot in step.reads if slot in writer}
            for slot in step.reads:
                readers[slot].append(number)
            for slot in step.writes:
                needs |= {*readers.pop(slot, ()), *([writer[slot]] if slot in writer else [])}
                writer[slot] = number
            self.needs.append(needs - {number})
        for rank in range(self.own):
            self.queues[rank].append(-100 - rank)

    def read(self, rank: int, blocks: range, *, stored: bool) -> dict[int, tuple[int, ...]]:
        return {block: self.bytes.get(self.at(rank, block, stored=stored), ()) for block in blocks}

    def write(self, rank: int, values: dict[int, tuple[int, ...]], *, stored: bool) -> None:
        self.bytes.update({self.at(rank, block, stored=stored): ranks for block, ranks in values.items()})

    def at(self, rank: int, block: int, *, stored: bool) -> tuple[object, int]:
        ((memory, first, _),) = self.memory.places(rank, Span(block * BLOCK, BLOCK), stored=stored)
        return memory, first

    def ready(self, queue: int) -> bool:
        waiting = self.queues.get(queue)
        return bool(waiting) and (waiting[0] < 0 or self.needs[waiting[0]] <= self.done)

    def finish(self, queue: int) -> None:
        self.done.add(self.queues[queue].pop(0))

    def run(self, queue: int) -> None:
        """Do the head of a rank's queue."""
        number = self.queues[queue][0]
        if number >= 0:
            made = [(action, self.value(queue, action)) for action in self.steps[number].actions]
            for action, values in made:
                self.keep(queue, action, values)
        elif number > -100:
            self.write(queue, dict.fromkeys(self.blocks, (self.division.ranks()[queue],)), stored=False)
        else:
            self.got[queue] = self.read(queue, self.blocks, stored=True)
            for stored in (False, True):
                self.write(queue, dict.fromkeys(self.blocks, (-1,)), stored=stored)
        self.finish(queue)

    def value(self, rank: int, action: Action) -> dict[int, tuple[int, ...]]:
        if isinstance(action, Forward):
            return self.slots[action.slot]
        if not isinstance(action, Reduce):
            return {}
        terms = [self.slots[slot] for slot in action.sources]
        if action.own_at is not None:
            terms.insert(action.own_at, self.read(rank, blocks_of(action.span), stored=action.own_stored))
        return {block: tuple(each for term in terms for each in term[block]) for block in blocks_of(action.span)}

    def keep(self, rank: int, action: Action, values: dict[int, tuple[int, ...]]) -> None:
        if isinstance(action, Forward) or (isinstance(action, Reduce) and action.to_array):
            self.write(rank, values, stored=True)
        if isinstance(action, (Forward, Reduce)) and action.out_slot is not None:
            self.slots[action.out_slot] = dict(values)

    def carry(self, queue: int, values: list[dict[int, tuple[int, ...]]]) -> list[dict[int, tuple[int, ...]]]:
        """Return what the head of a queue sends, or put down what it receives."""
        carried = [each for each in self.steps[self.queues[queue][0]].actions if isinstance(each, Carry)]
        sent = []
        for index, action in enumerate(carried):
            if action.span is None:
                sent.append({})
            elif action.sends:
                blocks, rank = blocks_of(action.span), action.rank
                found = self.slots[action.slot] if rank is None else self.read(rank, blocks, stored=False)
                sent.append({block: found[block] for block in blocks})
            elif action.rank is None:
                self.slots[action.slot] = values[index]
            else:
                self.write(action.rank, values[index], stored=True)
        return sent


def blocks_of(span: Span) -> range:
    return range(span.start // BLOCK, span.start // BLOCK + span.blocks)


def play(team: list[Process], rng: random.Random) -> None:
    """Run all queues in random order; a message is taken out of memory and put down when both ends are ready."""
    moved = True
    while moved:
        moved = False
        heads = [(one, queue) for one in team for queue in list(one.queues) if one.ready(queue)]
        rng.shuffle(heads)
        for one, queue in heads:
            if not one.ready(queue):
                continue
            if queue < one.own:
                one.run(queue)
                moved = True
                break
            if one.steps[one.queues[queue][0]].phase == RECEIVE:
                continue
            other = team[one.division.others[(queue - one.own) // 2]]
            into = other.division.queue(one.division.me, sends=False)
            if other.ready(into):
                other.carry(into, one.carry(queue, []))
                one.finish(queue)
                other.finish(into)
                moved = True
                break
    assert not any(queue for one in team for queue in one.queues.values()), "stands still"


def crossed(steps: list[Step], queue: int) -> list[list[tuple[Span | None, int]]]:
    mine = [step for step in steps if step.rank == queue]
    return [[(each.span, each.slot) for each in step.actions if isinstance(each, Carry)] for step in mine]


def team_of(counts: Sequence[int], steps: list[Step], count: int, memories: Sequence[Memory]) -> list[Process]:
    made = []
    for me in range(len(counts)):
        division = Division(tuple(counts), me)
        own = list(divided(steps, division))
        changed = straight(own, counts[me], memories[me])
        for other in division.others:
            for sends in (True, False):
                queue = division.queue(other, sends=sends)
                assert crossed(own, queue) == crossed(changed, queue)
        made.append(Process(changed, division, memories[me], count))
    return made


def straight_ones(team: Sequence[Process]) -> list[Carry]:
    actions = (action for one in team for step in one.steps for action in step.actions)
    return [action for action in actions if isinstance(action, Carry) and action.rank is not None]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", [name for name in TABLE if name != "two_level"])
def test_sums_are_right_in_any_order_of_the_queues(name: str, counts: tuple[int, ...], *, in_place: bool) -> None:
    n, rng = sum(counts), random.Random(f"{name} {counts} {in_place}")
    every = tuple(range(n))
    for count in (3, 40 * BLOCK + 3):
        slots = SlotSet(n, max(4, 2 * n), 2)
        steps = list(TABLE[name].steps(Problem(n, count, slots, every)))
        for hidden in ((), (0,)):  # of the first process: that one goes through slots
            memories = [Memory(in_place=in_place, hidden=() if me else hidden) for me in range(len(counts))]
            for _ in range(4):
                team = team_of(counts, steps, count, memories)
                play(team, rng)
                for one in team:
                    for rank in range(one.own):
                        got = one.got[rank]
                        assert {tuple(sorted(got[block])) for block in one.blocks} == {every}, (count, hidden)
    if name in ("direct", "two_shot") and len(counts) == n:
        found = straight_ones(team)
        copied = name == "direct" and in_place  # for one other process alone
        assert {action.sends for action in found} == (
            {True, False} if name == "two_shot" else {True} - {copied and n > 2}
        )
        assert {action.copies for action in found if action.sends} <= {copied}


def test_copies_go_where_crossings_are_straight() -> None:
    slots = SlotSet(2, 4, 40)
    for name, sent in (("direct", 0), ("two_shot", 1)):
        steps = list(TABLE[name].steps(Problem(2, 40 * BLOCK, slots, (0, 1))))
        for one in team_of((1, 1), steps, 40 * BLOCK, [Memory(in_place=False)] * 2):
            actions = [action for step in one.steps if step.rank == 0 for action in step.actions]
            kernels = [action for action in actions if not isinstance(action, Barrier)]
            assert [type(action) for action in kernels] == [Reduce]
            assert sum(action.out_slot is not None for action in kernels) == sent
            assert all(step.phase in (SEND, RECEIVE) for step in one.steps if step.rank)


@pytest.mark.parametrize("counts", COUNTS)
def test_broadcasts_are_right_in_any_order_of_the_queues(counts: tuple[int, ...]) -> None:
    n, rng, count = sum(counts), random.Random(str(counts)), 23 * BLOCK - 5
    for root in range(n):
        moves = [Move(Span(0, count), root, tuple(rank for rank in range(n) if rank != root))]
        steps = list(p2p.steps(moves, SlotSet(n, 4, 3)))
        for _ in range(5):
            team = team_of(counts, steps, count, [Memory(in_place=True, moves=True)] * len(counts))
            play(team, rng)
            for one in team:
                for rank in range(one.own):
                    assert set(one.got[rank].values()) == {(root,)}
        assert straight_ones(team)


def test_ranks_that_swap_elements_in_one_place_keep_what_they_send() -> None:
    rng = random.Random(4)
    for number in range(20):
        spans = [Span(0, 4 * BLOCK), Span(4 * BLOCK, 4 * BLOCK)]
        moves = [Move(spans[0], 0, (1,)), Move(spans[1], 1, (0,))]
        steps = list(p2p.steps(moves, SlotSet(2, 4, 2), number % 2, swaps=True))
        memory = _Swapped(in_place=True, moves=True)
        team = team_of((1, 1), steps, 8 * BLOCK, [memory] * 2)
        play(team, rng)
        for one in team:
            got = one.got[0]
            assert {got[block] for block in blocks_of(spans[1 - one.division.me])} == {(1 - one.division.me,)}


def test_what_a_rank_gives_beside_it_is_not_overwritten_from_another_process() -> None:
    spans, rng = [Span(0, 4 * BLOCK), Span(4 * BLOCK, 4 * BLOCK)], random.Random(5)
    steps = list(p2p.steps([Move(spans[0], 0, (1,)), Move(spans[1], 2, (0,))], SlotSet(3, 4, 4), swaps=True))
    for _ in range(20):
        team = team_of((2, 1), steps, 8 * BLOCK, [_Swapped(in_place=True, moves=True)] * 2)
        play(team, rng)
        assert {team[0].got[rank][4 * (1 - rank)] for rank in (0, 1)} == {(2,), (0,)}


def test_what_a_kernel_writes_to_is_copied_to_the_slot_or_published_by_a_kernel() -> None:
    span = Span(0, BLOCK)
    publish, sum_ = Reduce(span, own_at=0, out_slot=0), Reduce(span, own_at=0, to_array=True)
    carry = Carry(span, 0, sends=True)
    steps = [Step(0, "publish", (publish,)), Step(1, SEND, (carry,)), Step(0, "reduce", (sum_,))]
    for in_place in (True, False):
        sent, summed = straight(steps, 1, Memory(in_place=in_place))
        assert (sent.actions, sent.after) == ((replace(carry, rank=0, copies=in_place),), (0,))
        assert summed.actions == (sum_, Barrier(out_slot=0))
    again = [*steps[:2], *steps[:2], steps[2]]  # the slot is filled again; the other content can be waited for
    made = straight(again, 1, Memory(in_place=True))
    assert [action.rank for step in made for action in step.actions if isinstance(action, Carry)] == [None, 0]
    two = [*steps[:2], Step(3, SEND, (carry,)), steps[2]]  # to two processes
    assert straight(two, 1, Memory(in_place=True)) == two


def test_what_is_received_where_something_was_sent_from_waits_for_that_or_takes_a_slot() -> None:
    spans = [Span(0, BLOCK), Span(BLOCK, BLOCK)]
    sending = [
        [Step(0, "publish", (Reduce(span, own_at=0, out_slot=0),)), Step(1, SEND, (Carry(span, 0, sends=True),))]
        for span in spans
    ]
    got = Carry(spans[0], 4, final=True)
    ending = [Step(2, RECEIVE, (got,)), Step(0, "gather", (Forward(spans[0], 4),))]
    made = straight([*sending[0], *ending], 1, Memory(in_place=True))
    assert made[1].actions == (replace(got, rank=0), Barrier(out_slot=0))
    made = straight([*sending[0], *sending[1], *ending], 1, Memory(in_place=True))  # the slot is filled again
    assert [step.phase for step in made[:2]] == ["publish", SEND]
    assert made[3].actions == (got,)


class _Swapped(Memory):
    """What a rank gives lies where the other's elements go."""

    def places(self, rank: int, span: Span, *, stored: bool) -> tuple[ByteSpan, ...]:
        start = span.start % (4 * BLOCK)
        return (ByteSpan(rank, start, start + span.count),)
