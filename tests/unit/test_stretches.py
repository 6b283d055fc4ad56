"""How captured work is cut into submissions: the simulator runs the stretches of real schedules as devices would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from helpers.comm.running import Run, ScheduleError
from helpers.comm.scheduling import Expected, all_gather, broadcast, movement, posed, reduction, slots_for, split
from helpers.comm.simulator import Queued, Simulator, check_acyclic
from hypothesis import given
from hypothesis import strategies as st

from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import Move, SlotSet, Span, Step
from vkpar.graph import overlap, stretches
from vkpar.graph.stretches import Item, Stretch, cut

SUMS = sorted(name for name, algorithm in TABLE.items() if "all_reduce" in algorithm.collectives)


@dataclass
class Whole:
    """A stretch as one step of the simulator, which reads and writes between its begin and its end."""

    rank: int
    phase: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    items: Sequence[Item]


class OfGraphs(Simulator):
    """Runs stretches in place of steps; what a stretch does happens at its end, item by item."""

    def _check(self, step: Step) -> None:
        """Leave the rules of single steps to the tests of schedules."""

    def _end(self, item: Queued) -> None:
        whole: Any = item.step
        self._check_found(item, item.reads)
        for part in whole.items:
            if part.content is not None:
                step, run = part.content
                self._content |= run.execute(step, self._content, step.rank)
        for resource in item.writes:
            del self._being_written[resource]
            self._there[resource] = item.generation
        item.run.counts.events.append(("end", item.step))
        self._done[item.queue] += 1

    def launch(self, graphs: Sequence[Sequence[Stretch]], run: Run) -> None:
        """Enqueue graphs back to back, then run them in a random order that the waits allow."""
        queues: list[list[Queued]] = [[] for _ in self._enqueued]
        for found in graphs:
            for stretch in found:
                writes = tuple(dict.fromkeys(stretch.writes))
                whole: Any = Whole(stretch.rank, "", stretch.reads, writes, stretch.items)
                queued = self._enqueue(whole, run)
                queues[queued.queue].append(queued)
        check_acyclic(self, queues)
        self.drain(queues)


@dataclass
class Program:
    """Collectives with operations between them."""

    slots: SlotSet
    expected: list[Expected]
    items: list[Item]
    runs: list[Run]


def program(seed: int, simulator: type[OfGraphs] = OfGraphs) -> Program:
    """Return a random one: real schedules over few slots, and operations of random ranks between."""
    chance = random.Random(seed)
    nranks = chance.randint(1, 5)
    most = max(slots_for(TABLE[name], nranks, 1).per_rank for name in SUMS)
    slots = SlotSet(nranks, most + chance.randint(0, 3), chance.randint(1, 3))
    expected = [collective(chance, slots, turn) for turn in range(chance.randint(1, 5))]
    ranks = OfGraphs(slots)
    items: list[Item] = []
    runs = []
    for one in expected:
        items += operations(chance, nranks)
        runs.append(Run(ranks.owner_of, nranks, slots.blocks, one.call))
        items += [
            Item(step.rank, step.phase, (step, runs[-1]), step.reads, step.writes, call=len(runs))
            for step in one.call.steps
        ]
    return Program(slots, expected, items + operations(chance, nranks), runs)


def collective(chance: random.Random, slots: SlotSet, turn: int) -> Expected:
    """Return a collective that gives the same however often it runs: its results lie elsewhere."""
    n, count, generation = slots.nranks, chance.choice((0, 1, 300, 2000)), chance.randrange(2)
    kind = chance.choice(("sum", "sum", "gather", "broadcast", "shift", "send"))
    if kind == "sum":
        name = chance.choice(SUMS)
        given = posed("all_reduce", split(count, n), slots, generation=generation)
        return reduction(name, given, in_place=False, seed=turn)
    if kind == "gather":
        return movement(all_gather(split(count, n)), slots, generation, seed=turn)
    if kind == "broadcast":
        return movement(broadcast(n, count, chance.randrange(n)), slots, generation, seed=turn)
    pairs = [(rank, (rank + 1) % n) for rank in range(n)] if kind == "shift" else [(0, n - 1)]
    moves = [Move(Span(0, count), source, (target,)) for source, target in pairs if source != target]
    return movement(moves, slots, generation, seed=turn)


def operations(chance: random.Random, nranks: int) -> list[Item]:
    return [Item(chance.randrange(nranks), "add", None) for _ in range(chance.randint(0, 4))]


def check_rules(items: Sequence[Item], found: Sequence[Stretch]) -> None:
    """Check that each rank's order is kept, and that nothing holds up what was sent."""
    assert [stretch.number for stretch in found] == list(range(len(found)))
    for rank in {item.rank for item in items}:
        own = [item for stretch in found if stretch.rank == rank for item in stretch.items]
        assert len(own) == len([item for item in items if item.rank == rank])
        assert all(a is b for a, b in zip(own, (item for item in items if item.rank == rank), strict=True))
    for stretch in found:
        assert stretch.reads == tuple(slot for item in stretch.items for slot in item.reads)
        assert stretch.writes == tuple(slot for item in stretch.items for slot in item.writes)
        assert not any(item.reads for item in stretch.items[1:]), "what was done before would wait"
        sent = False
        for item in stretch.items:
            assert not sent or item.writes, "what was sent would wait for an operation"
            sent = sent or bool(item.writes)


def run(seed: int, launches: int, *, overlaps: bool = False) -> None:
    made = program(seed)
    items = overlap.spread(made.items) if overlaps else made.items
    found = cut(items)
    check_rules(items, found)
    OfGraphs(made.slots, seed).launch([found] * launches, made.runs[0])
    for one in made.expected:
        one.check()


@given(st.integers(0, 1 << 30), st.integers(1, 3))
def test_stretches_of_random_programs(seed: int, launches: int) -> None:
    """No slot is overwritten before all have read it, nothing waits in a circle, and the results are right."""
    run(seed, launches)


@given(st.integers(0, 1 << 30), st.integers(1, 3))
def test_operations_between_steps_let_nothing_wait_in_a_circle(seed: int, launches: int) -> None:
    """All that comes after a collective, as far as the next one, is free to run between its steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "_touched", lambda content: [])
        patch.setattr(overlap, "_cost", lambda item: 1)
        run(seed, launches, overlaps=True)


def test_many_programs() -> None:
    for seed in range(300):
        run(seed, 2)


def test_the_rule_of_late_sends_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a send to join a stretch that began before others have read the slot, they would read the wrong contents."""
    monkeypatch.setattr(stretches, "_comes_too_late", lambda *_: False)
    wrong = 0
    for seed in range(300):
        try:
            run(seed, 2)
        except (ScheduleError, AssertionError):
            wrong += 1
    assert wrong > 0


def test_operations_alone_are_one_stretch_a_rank() -> None:
    found = cut([Item(rank, "add", None) for rank in (0, 1, 0, 0, 1)])
    assert [(stretch.rank, len(stretch.items)) for stretch in found] == [(0, 3), (1, 2)]
    assert [stretch.phase for stretch in found] == ["3 operations", "2 operations"]


def test_ranks_with_nothing_to_do_have_a_stretch_where_asked() -> None:
    found = cut([Item(1, "add", None)], range(3))
    assert [(stretch.rank, stretch.phase) for stretch in found] == [
        (1, "1 operation"),
        (0, "parameters"),
        (2, "parameters"),
    ]
    assert cut([]) == []


def test_phases_are_words() -> None:
    """Operations count, equal steps in a row too."""
    read = Item(0, "sum gather", None, (7,), (), 100, 0)
    sends = [Item(0, "sum publish", None, (), (slot,), 0, 50) for slot in (1, 2)]
    (found,) = cut([read, Item(0, "add", None), Item(0, "mul", None), *sends])
    assert found.phase == "sum gather, 2 operations, 2 x sum publish"
    assert (found.received_nbytes, found.sent_nbytes) == (100, 100)


def test_large_sends_do_not_wait_for_each_other() -> None:
    """Segments of a large message are on their way one by one; small ones go together."""
    for nbytes, number in ((1000, 1), (1 << 20, 3)):
        found = cut([Item(0, "publish", None, (), (slot,), 0, nbytes) for slot in range(3)])
        assert len(found) == number


def test_an_operation_after_a_send_does_not_delay_it() -> None:
    send, read = Item(0, "publish", None, (), (1,)), Item(1, "gather", None, (1,))
    found = cut([Item(0, "add", None), send, Item(0, "add", None), read])
    assert [(stretch.rank, stretch.phase) for stretch in found] == [
        (0, "1 operation, publish"),
        (0, "1 operation"),
        (1, "gather"),
    ]
