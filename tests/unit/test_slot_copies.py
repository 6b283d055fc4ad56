"""Schedules through copies: right sums on one to three queues a rank, no cycle, every byte copied once."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from helpers.comm.running import Call, ScheduleError
from helpers.comm.scheduling import PAIRS, posed, reduction, run, slots_for, split
from helpers.comm.simulator import Simulator, check_acyclic, shared_slots
from hypothesis import given
from hypothesis import strategies as st

from vkpar.abi.formats import WIRES
from vkpar.comm import wires
from vkpar.comm.observe.collector import Run
from vkpar.comm.observe.steptimes import step_times, trace_events
from vkpar.comm.record.timestamps import Planned, planned
from vkpar.comm.schedule.algorithms import barrier
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.slot_copies import IN, OUT, QueueMap, copies, own_slot, through_copies
from vkpar.comm.schedule.steps import BLOCK, Forward, Reduce, SlotCopy, SlotSet, Span, Step

RANKS = range(1, 9)


def queue_map_of(nranks: int, seed: int) -> QueueMap:
    """Return ranks that all have no copy queue, or one, or two; or some of each."""
    chance = random.Random(seed)
    return QueueMap.of([seed % 4 if seed % 4 < 3 else chance.randrange(3) for _ in range(nranks)])


def check(name: str, collective: str, counts: Sequence[int], slots: SlotSet, silent: Sequence[int], seed: int) -> None:
    """Run three calls back to back, in place or not, and with any root, as ``seed`` says."""
    problems = [posed(collective, counts, slots, silent, call % 2, (seed + call) % slots.nranks) for call in range(3)]
    calls = [reduction(name, each, in_place=bool(seed % 3), seed=number) for number, each in enumerate(problems)]
    run(calls, slots, seed=seed, queue_map=queue_map_of(slots.nranks, seed))


def test_queues_follow_the_ranks() -> None:
    assert QueueMap.of([0, 0]) == QueueMap((0, 1), (0, 1), (0, 1))
    assert QueueMap.of([1, 0]) == QueueMap((0, 1, 0), (2, 1), (2, 1))
    assert QueueMap.of([2, 0, 1]) == QueueMap((0, 1, 2, 0, 0, 2), (3, 1, 5), (4, 1, 5))


def test_a_step_becomes_three() -> None:
    span, queue_map = Span(0, 3 * BLOCK), QueueMap.of([2, 2])
    steps = [Step(0, "reduce", (Reduce(span, (1, 2), own_at=0, out_slot=0, final=True),))]
    first, kernel, last = through_copies(steps, queue_map, 4)
    assert first == Step(2, IN, (SlotCopy(span, 1, 5), SlotCopy(span, 2, 6)))
    assert kernel == Step(0, "reduce", (Reduce(span, (5, 6), own_at=0, out_slot=4, final=True),))
    assert last == Step(3, OUT, (SlotCopy(span, 4, 0, final=True, sends=True),))
    assert own_slot(1, 3, 4) == 11
    assert [copies(step) for step in (first, kernel, last)] == [True, False, True]


def test_what_a_rank_has_is_not_copied_again() -> None:
    """Neither what it read before nor what it wrote itself, until somebody writes the slot anew."""
    span, queue_map = Span(0, BLOCK), QueueMap.of([1, 1])
    publish = Step(0, "publish", (Reduce(span, own_at=0, out_slot=0, final=True),))
    take = [Step(rank, "take", (Forward(span, 0),)) for rank in (0, 1, 1)]
    made = list(through_copies([publish, *take, publish, take[1]], queue_map, 2))
    assert [(step.rank, step.phase) for step in made if copies(step)] == [(2, OUT), (3, IN), (2, OUT), (3, IN)]


def test_tokens_and_empty_steps_stay_as_they_are() -> None:
    steps = [*barrier.steps(SlotSet(2, 2, 1)), Step(1, "copy", ())]
    assert list(through_copies(steps, QueueMap.of([2, 2]), 4)) == steps


@pytest.mark.parametrize("nranks", RANKS)
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_sums(name: str, collective: str, nranks: int) -> None:
    for seed, count in enumerate((1000, 4000)):
        slots = slots_for(TABLE[name], nranks, blocks=1 + seed % 2, extra=seed % 3, base=seed)
        silent = [rank for rank in range(nranks) if rank % 3 == 1] if seed == 1 else []
        check(name, collective, split(count, nranks), slots, silent, seed + nranks)


@given(
    st.sampled_from(PAIRS),
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(0, 9),
    st.integers(0, 1 << 30),
    st.data(),
)
def test_any_problem(
    pair: tuple[str, str], nranks: int, blocks: int, extra: int, seed: int, draw: st.DataObject
) -> None:
    name, collective = pair
    silent = draw.draw(st.sets(st.integers(0, nranks - 1), max_size=nranks - 1))
    counts = draw.draw(st.lists(st.integers(0, 3000), min_size=nranks, max_size=nranks))
    check(name, collective, counts, slots_for(TABLE[name], nranks, blocks, extra), sorted(silent), seed)


@pytest.mark.parametrize(("nranks", "queues"), [(1, 2), (2, 0), (2, 1), (3, 2), (5, 1), (8, 2)])
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_program_order_and_waits_are_acyclic(name: str, collective: str, nranks: int, queues: int) -> None:
    """Collectives that go through copies and others alternate, over the fewest slots."""
    slots, queue_map = slots_for(TABLE[name], nranks, 1), QueueMap.of([queues] * nranks)
    calls = []
    for call in range(2):
        each = reduction(name, posed(collective, split(3000, nranks), slots, (), call)).call
        calls.append(Call(through_copies(each.steps, queue_map, shared_slots(slots)), each.arrays, each.targets))
        calls.append(Call(barrier.steps(slots), [None] * nranks, [None] * nranks))
    simulator = Simulator(slots, queues, queue_map=queue_map)
    waiting, _ = simulator.enqueue(calls)
    check_acyclic(simulator, waiting)
    simulator.drain(waiting)


def test_a_copy_too_few_is_found() -> None:
    slots, queue_map = SlotSet(2, 4, 1), QueueMap.of([2, 2])
    each = reduction("two_shot", posed("all_reduce", [2000], slots)).call
    steps = list(through_copies(each.steps, queue_map, shared_slots(slots)))
    steps.remove(next(step for step in steps if step.phase == IN))
    with pytest.raises(ScheduleError):
        Simulator(slots, queue_map=queue_map).run(steps, each.arrays, each.targets)


# ---- profiles ----


def test_copies_have_their_bytes_and_their_rank() -> None:
    plan = wires.WirePlan("f32", WIRES["f16"].format, WIRES["f16"].format)
    span, queue_map = Span(0, 2 * BLOCK), QueueMap.of([2, 1])
    steps = [
        Step(0, "publish", (Reduce(span, own_at=0, out_slot=0),)),
        Step(1, "reduce", (Reduce(span, (0,), own_at=1, to_array=True),)),
    ]
    found = planned(list(through_copies(steps, queue_map, 2)), plan, queue_map.ranks)
    nbytes = 2 * (WIRES["f16"].format.payload + WIRES["f16"].format.tail)
    rows = [(p.rank, p.queue, p.index, p.phase, p.received_nbytes, p.sent_nbytes, p.sources) for p in found]
    assert rows == [
        (0, 0, 0, "publish", 0, nbytes, ()),
        (0, 3, 1, OUT, 0, nbytes, ((0, 0),)),
        (1, 4, 0, IN, nbytes, 0, ((0, 1),)),
        (1, 1, 1, "reduce", nbytes, 0, ((1, 0),)),
    ]


class Microseconds:
    """A counter of microseconds from 0."""

    def seconds(self, ticks: int, near: float) -> float:
        return ticks * 1e-6


def test_copies_overlap_with_kernels_in_times_and_traces() -> None:
    """A queue waits from the end of its own step before, and has threads of its own in a trace."""
    steps = (
        Planned(0, "publish", 0, sent_nbytes=8),
        Planned(0, OUT, 1, sent_nbytes=8, sources=((0, 0),), place=(1, 0)),
        Planned(0, "publish", 2, sent_nbytes=8, place=(0, 1)),
    )
    run = Run(1, "all_reduce", 0.0, steps, {0: [(1, 4), (4, 9)], 1: [(5, 8)]})
    first, copied, second = step_times([run], [Microseconds()], ["one"], ())
    assert (first.lane, copied.lane, second.lane) == (None, 1, None)
    assert [step.wait for step in (first, copied, second)] == pytest.approx([1e-6, 5e-6, 0.0])
    events = trace_events([first, copied, second], ["one"])["traceEvents"]
    threads = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert threads == {"steps": 1, "waits": 2, "copies": 3, "waits of copies": 4}
    assert [event["tid"] for event in events if event["name"] == OUT] == [3]
