"""What is wrong with a schedule, or with what waits for what, the simulator finds."""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from helpers.comm.scheduling import (
    PAIRS,
    Expected,
    all_gather,
    all_to_all,
    broadcast,
    movement,
    posed,
    reduction,
    slots_for,
    split,
)
from helpers.comm.simulator import ScheduleError, Simulator, check_acyclic, problem

from vkpar.comm.schedule.algorithms import p2p
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import BLOCK, Barrier, Forward, Reduce, SlotSet, Span, Step

MOVES = {
    "all_gather": all_gather(split(5000, 3)),
    "broadcast": broadcast(3, 2500, 1),
    "all_to_all": all_to_all([[600] * 3] * 3),
}
KINDS = [*PAIRS, *(("p2p", movement) for movement in MOVES)]

Edit = Callable[[list[Step]], Sequence[Step]]


def least(name: str, nranks: int = 3) -> SlotSet:
    """Return the fewest slots, of one block."""
    return SlotSet(nranks, 2, 1) if name == "p2p" else slots_for(TABLE[name], nranks, 1)


def made(kind: tuple[str, str], slots: SlotSet, call: int = 0, *, count: int = 5000) -> Expected:
    """Return a call of a kind."""
    name, collective = kind
    if name == "p2p":
        return movement(MOVES[collective], slots, call % 2, seed=call)
    return reduction(name, posed(collective, split(count, slots.nranks), slots, (), call % 2), seed=call)


def fails(
    make: Callable[[], list[Expected]], slots: SlotSet, edit: Edit | None = None, tries: int = 30, **settings: int
) -> bool:
    """Say whether any of some random orders shows that the edited calls are wrong."""
    for seed in range(tries):
        calls = make()
        for item in calls:
            item.call = dataclasses.replace(item.call, steps=list(item.call.steps))
        if edit:
            calls[0].call.steps = edit(list(calls[0].call.steps))
        try:
            Simulator(slots, seed, **settings).run_all([item.call for item in calls])  # type: ignore[arg-type]
            for item in calls:
                item.check()
        except AssertionError:
            return True
    return False


def with_slots(steps: Sequence[Step], change: dict[int, int]) -> Iterator[Step]:
    """Yield the steps with other slots."""

    def other(slot: int) -> int:
        return change.get(slot, slot)

    for step in steps:
        actions = []
        for action in step.actions:
            out = None if action.out_slot is None else other(action.out_slot)
            if isinstance(action, Forward):
                actions.append(dataclasses.replace(action, slot=other(action.slot), out_slot=out))
            else:
                sources = tuple(other(slot) for slot in action.sources)
                actions.append(dataclasses.replace(action, sources=sources, out_slot=out))
        yield dataclasses.replace(step, actions=tuple(actions))


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_that_is_reused_too_early_is_found(kind: tuple[str, str], queues: int) -> None:
    slots = least(kind[0])
    assert not fails(lambda: [made(kind, slots)], slots, tries=5, queues=queues)
    merged = {slot: slot - slot % slots.per_rank for slot in range(3 * slots.per_rank)}
    assert fails(lambda: [made(kind, slots)], slots, lambda steps: list(with_slots(steps, merged)), queues=queues)


@pytest.mark.parametrize("nranks", [2, 3, 4, 5, 8])
def test_the_tree_needs_each_of_its_slots(nranks: int) -> None:
    slots = least("tree", nranks)
    for index in range(1, slots.per_rank):
        merged = {slots.slot(rank, index): slots.slot(rank, 0) for rank in range(nranks)}
        edit: Edit = lambda steps, merged=merged: list(with_slots(steps, merged))  # type: ignore[misc]  # noqa: E731
        assert fails(lambda: [made(("tree", "all_reduce"), slots)], slots, edit)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_missing_is_found(kind: tuple[str, str]) -> None:
    slots = least(kind[0])
    number = len(list(made(kind, slots, count=1500).call.steps))
    for index in range(number):
        edit: Edit = lambda steps, index=index: steps[:index] + steps[index + 1 :]  # type: ignore[misc]  # noqa: E731
        assert fails(lambda: [made(kind, slots, count=1500)], slots, edit), index


@pytest.mark.parametrize("kind", KINDS)
def test_steps_out_of_the_global_order_are_found(kind: tuple[str, str]) -> None:
    slots = least(kind[0])
    assert fails(lambda: [made(kind, slots)], slots, lambda steps: steps[::-1])


@pytest.mark.parametrize(
    ("name", "nranks", "queues"),
    [("direct", 4, 1), ("two_shot", 4, 3), ("naive", 4, 2), ("tree", 5, 3), ("tree", 6, 3), ("p2p", 3, 1)],
)
def test_a_reader_that_nobody_waits_for_is_found(name: str, nranks: int, queues: int) -> None:
    """Slots that several ranks read: to wait for the last one of them alone is a race from three ranks on.

    Where every rank contributes on one queue, its next contribution comes after what it reads, which hides the race;
    in a tree without folded ranks, every reader but the last fills the slot that its next contribution takes.
    """
    slots = least(name, nranks)

    def make() -> list[Expected]:
        return [made((name, "broadcast" if name == "p2p" else "all_reduce"), slots, call) for call in range(2)]

    assert not fails(make, slots, tries=10, queues=queues)
    assert fails(make, slots, queues=queues, last_reader_only=True)


@pytest.mark.parametrize("kind", [kind for kind in PAIRS if "scatter" not in kind[1] and kind != ("naive", "reduce")])
def test_an_array_that_another_queue_still_uses_is_found(kind: tuple[str, str]) -> None:
    """Calls in place over the same arrays, on two queues a rank: the second must wait for what the first stores."""
    slots = slots_for(TABLE[kind[0]], 3, 20, extra=2)

    def make() -> list[Expected]:
        calls = [made(kind, slots, call) for call in range(2)]
        first, second = (item.call for item in calls)
        second.arrays, second.targets = first.arrays, first.targets
        once = [array if want is None else want for array, want in zip(first.arrays, calls[0].results, strict=True)]
        twice = [None if want is None else np.sum(once, axis=0) for want in calls[0].results]
        return [Expected(first, twice), Expected(second, twice)]

    for queues in (2, 3):
        assert not fails(make, slots, tries=10, queues=queues)
    assert fails(make, slots, queues=2, slots_only=True)


def test_queues_that_take_calls_in_opposite_orders_are_found() -> None:
    """They wait for each other."""
    slots = SlotSet(2, 2, 1)
    simulator = Simulator(slots)
    queues, _ = simulator.enqueue([made(("direct", "all_reduce"), slots, count=100).call])
    check_acyclic(simulator, queues)
    turned = [queue[::-1] for queue in queues]
    with pytest.raises(graphlib.CycleError):
        check_acyclic(simulator, turned)
    with pytest.raises(ScheduleError, match="deadlock"):
        simulator.drain(turned)


def test_a_forward_of_an_unfinished_sum_is_found() -> None:
    slots = SlotSet(2, 2, 4)
    steps = list(TABLE["naive"].steps(problem(2, 100, slots)))
    final = next(step for step in steps if step.phase == "reduce")
    broken = dataclasses.replace(final, actions=(dataclasses.replace(final.actions[0], final=False),))
    assert isinstance(steps[-1].actions[0], Forward)
    edit: Edit = lambda steps: [broken if step == final else step for step in steps]  # noqa: E731
    assert fails(lambda: [reduction("naive", problem(2, 100, slots))], slots, edit)


def test_a_store_that_is_nobodys_is_found() -> None:
    """In a reduce, the ranks but the root have no destination."""
    slots = slots_for(TABLE["two_shot"], 3, 2)
    given = posed("reduce", [500] * 3, slots, root=1)
    everywhere = dataclasses.replace(given, root=None)
    assert fails(lambda: [reduction("two_shot", given)], slots, lambda _: list(TABLE["two_shot"].steps(everywhere)))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ((Reduce(Span(0, 300), own_at=0, to_array=True), Reduce(Span(256, 9), own_at=0, out_slot=0)), "share elements"),
        ((Reduce(Span(0, 9), own_at=0, out_slot=0), Reduce(Span(256, 9), own_at=0, out_slot=0)), "share a slot"),
        ((Reduce(Span(0, 9), own_at=0, out_slot=1),), "writes a slot of rank 1"),
        ((Reduce(Span(0, 9), own_at=0, out_slot=-1),), "writes a slot of rank -1"),
        ((Reduce(Span(0, 9), (1,), 0),), "that nothing wrote"),
        ((Reduce(Span(0, 9)),), "sums nothing"),
        ((Reduce(Span(3, 9), own_at=0),), "start at a block"),
        ((Reduce(Span(0, 300), own_at=0, out_slot=0),), "does not fit a slot"),
        ((Reduce(Span(512, 300), own_at=0),), "has no elements"),
    ],
)
def test_a_step_that_makes_no_sense_is_found(actions: tuple[Reduce, ...], message: str) -> None:
    slots = SlotSet(2, 1, 1)
    arrays = [np.zeros(600, np.int64), np.zeros(600, np.int64)]
    with pytest.raises(ScheduleError, match=message):
        Simulator(slots).run([Step(0, "x", actions)], arrays, arrays)


def test_a_token_is_no_data() -> None:
    slots = SlotSet(2, 2, 1)
    arrays = [np.zeros(9, np.int64), np.zeros(9, np.int64)]
    token, data = Step(0, "x", (Barrier(out_slot=0),)), Step(0, "x", (Reduce(Span(0, 9), own_at=0, out_slot=0),))
    with pytest.raises(ScheduleError, match="instead of a token"):
        Simulator(slots).run([data, Step(1, "y", (Barrier((0,)),))], arrays, arrays)
    with pytest.raises(ScheduleError, match="sums"):
        Simulator(slots).run([token, Step(1, "y", (Reduce(Span(0, 9), (0,)),))], arrays, arrays)


def test_a_move_to_its_own_source_is_found() -> None:
    slots = SlotSet(2, 2, 1)
    moves = [dataclasses.replace(move, targets=(0, 1)) for move in broadcast(2, BLOCK, 0)]
    arrays = [np.zeros(BLOCK, np.int64), np.zeros(BLOCK, np.int64)]
    with pytest.raises(ScheduleError, match="forwards"):
        Simulator(slots).run(p2p.steps(moves, slots), arrays, arrays)
