"""Data movements and the barrier, run by the simulator: everything arrives, where it should and nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from helpers.comm.running import Call, Counts
from helpers.comm.scheduling import all_gather, all_to_all, broadcast, movement, run, spans_of, split
from helpers.comm.simulator import Simulator, check_acyclic
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError
from vkpar.comm.schedule.algorithms import barrier, p2p
from vkpar.comm.schedule.steps import BLOCK, Barrier, Forward, Move, Reduce, SlotSet, Span, Step

RANKS = range(1, 9)
COUNTS = (0, 1, 256, 1000, 5000)


def check(moves: Sequence[Move], slots: SlotSet, seed: int = 0) -> list[Counts]:
    """Run the moves three times back to back, generations in turn, with as many queues as ``seed`` says."""
    calls = [movement(moves, slots, call % 2, seed=call) for call in range(3)]
    return run(calls, slots, seed=seed, queues=1 + seed % 3)


@pytest.mark.parametrize("nranks", [*RANKS, 17])
@pytest.mark.parametrize("movement", ["all_gather", "broadcast", "all_to_all", "send_recv"])
def test_everything_arrives(movement: str, nranks: int) -> None:
    for seed, count in enumerate(COUNTS):
        slots = SlotSet(nranks, 2 + seed, 1 + seed % 3, base=seed)
        if movement == "all_gather":
            moves = all_gather([0 if rank == 1 else part for rank, part in enumerate(split(count, nranks))])
        elif movement == "broadcast":
            moves = broadcast(nranks, count, seed % nranks)
        elif movement == "all_to_all":
            counts = [[(count + source * target) // nranks for target in range(nranks)] for source in range(nranks)]
            moves = all_to_all(counts)
        else:
            pairs = [(source, (source * source + seed) % nranks) for source in range(nranks)]
            spans = spans_of([count] * nranks)
            moves = [Move(span, a, (b,)) for (a, b), span in zip(pairs, spans, strict=True) if a != b]
        check(moves, slots, seed)


@given(
    st.integers(1, 8),
    st.integers(2, 9),
    st.integers(1, 4),
    st.integers(0, 1 << 30),
    st.data(),
)
def test_any_moves(nranks: int, per_rank: int, blocks: int, seed: int, draw: st.DataObject) -> None:
    ranks = st.integers(0, nranks - 1)
    wanted = draw.draw(st.lists(st.tuples(ranks, st.sets(ranks), st.integers(0, 1500)), max_size=12))
    spans = spans_of(count for _, _, count in wanted)
    moves = [
        Move(span, source, tuple(sorted(targets - {source})))
        for span, (source, targets, _) in zip(spans, wanted, strict=True)
    ]
    check(moves, SlotSet(nranks, per_rank, blocks), seed)


@pytest.mark.parametrize("nranks", range(2, 9))
def test_all_gather_takes_one_hop(nranks: int) -> None:
    (counts, *_) = check(all_gather([6 * BLOCK] * nranks), SlotSet(nranks, 4, 3))
    assert counts.hops == 1
    assert counts.steps == [2] * nranks
    assert counts.sent_blocks == [6] * nranks
    assert counts.read_blocks == [6 * (nranks - 1)] * nranks


@pytest.mark.parametrize("nranks", range(2, 9))
def test_a_broadcast_is_sent_once(nranks: int) -> None:
    (counts, *_) = check(broadcast(nranks, 6 * BLOCK, 1), SlotSet(nranks, 2, 3))
    assert counts.hops == 1
    assert counts.steps == [2] * nranks  # two rounds of one
    assert counts.sent_blocks == [6 * (rank == 1) for rank in range(nranks)]
    assert counts.read_blocks == [6 * (rank != 1) for rank in range(nranks)]
    assert counts.talked == {(rank, 1) for rank in range(nranks) if rank != 1}


@pytest.mark.parametrize("nranks", range(2, 9))
def test_all_to_all_sends_each_part_once(nranks: int) -> None:
    (counts, *_) = check(all_to_all([[2 * BLOCK] * nranks] * nranks), SlotSet(nranks, 2 * nranks, 2))
    assert counts.hops == 1
    assert counts.steps == [2] * nranks
    assert counts.sent_blocks == counts.read_blocks == [2 * (nranks - 1)] * nranks


def test_pairs_send_and_receive() -> None:
    pairs = [(0, 1), (0, 2), (2, 0), (3, 1)]
    spans = spans_of([BLOCK, 2 * BLOCK, 3 * BLOCK, 4 * BLOCK])
    moves = [Move(span, a, (b,)) for (a, b), span in zip(pairs, spans, strict=True)]
    (counts, *_) = check(moves, SlotSet(4, 4, 4))
    assert counts.hops == 1
    assert counts.steps == [2, 1, 2, 1]
    assert counts.sent_blocks == [3, 0, 3, 4]
    assert counts.read_blocks == [3, 5, 2, 0]
    assert counts.talked == {(b, a) for a, b in pairs}


def test_no_target_waits_for_all_sources_at_once() -> None:
    """With one slot a round, every rank reads from one other in each round of an all_to_all."""
    slots = SlotSet(5, 2, 1)
    steps = p2p.steps(all_to_all([[BLOCK] * 5] * 5), slots)
    gathers = [step for step in steps if "gather" in step.phase]
    assert len(gathers) == 5 * 4
    assert all(sum(isinstance(action, Forward) for action in step.actions) == 1 for step in gathers)


@pytest.mark.parametrize("nranks", range(2, 9))
@pytest.mark.parametrize("per_rank", [2, 4, 5, 16])
def test_swaps_are_published_before_either_end_is_stored(nranks: int, per_rank: int) -> None:
    """Where a piece comes, the one that goes back was sent from, in an earlier step of the rank."""
    counts = [[BLOCK * (1 + (a * b + a + b) % 5) + a * b for b in range(nranks)] for a in range(nranks)]
    moves = all_to_all(counts)
    slots = SlotSet(nranks, per_rank, 2)
    back = {(move.source, target): move.span for move in moves for target in move.targets}
    sent: set[tuple[int, int, int]] = set()  # rank, to whom, and from which element of the piece on
    slot_of: dict[int, tuple[int, int, int]] = {}
    for step in p2p.steps(moves, slots, swaps=True):
        published = [action for action in step.actions if isinstance(action, Reduce)]
        stored = [action for action in step.actions if isinstance(action, Forward)]
        for action in stored:
            source, start, count = slot_of[action.slot]
            twin = back[step.rank, source]
            assert (step.rank, source, start) in sent, "what lies there was not sent yet"
            assert start + count <= twin.count
        for action in published:
            ends = next(
                (target, span)
                for (source, target), span in back.items()
                if source == step.rank and span.start <= action.span.start < span.start + span.count
            )
            offset = action.span.start - ends[1].start
            assert action.out_slot is not None
            slot_of[action.out_slot] = (step.rank, offset, action.span.count)
            sent.add((step.rank, ends[0], offset))
    assert len(sent) >= nranks * (nranks - 1)


def test_generations_use_different_slots() -> None:
    slots = SlotSet(3, 5, 1, base=7)
    first, second = (list(p2p.steps(all_gather([2 * BLOCK] * 3), slots, generation)) for generation in (0, 1))
    assert not {slot for step in first for slot in step.writes} & {slot for step in second for slot in step.writes}


def test_nothing_to_move_takes_no_step() -> None:
    slots = SlotSet(3, 2, 1)
    for moves in ([], [Move(Span(0, 0), 0, (1, 2))], [Move(Span(0, 100), 2, ())]):
        assert list(p2p.steps(moves, slots)) == []


@pytest.mark.parametrize("queues", [1, 2, 3])
def test_program_order_and_waits_are_acyclic(queues: int) -> None:
    slots = SlotSet(4, 2, 1)
    moves = [all_gather(split(5000, 4)), broadcast(4, 1000, 3), all_to_all([[300] * 4] * 4)]
    simulator = Simulator(slots, queues=queues)
    waiting, _ = simulator.enqueue([movement(each, slots).call for each in moves])
    check_acyclic(simulator, waiting)
    simulator.drain(waiting)


@pytest.mark.parametrize("nranks", RANKS)
def test_fewer_slots_than_least_are_refused(nranks: int) -> None:
    with pytest.raises(InvalidUsageError, match="p2p needs 2 slots"):
        list(p2p.steps([], SlotSet(nranks, p2p.least_slots(nranks) - 1, 1)))
    with pytest.raises(InvalidUsageError, match="barrier needs 1 slots"):
        list(barrier.steps(SlotSet(nranks, barrier.least_slots(nranks) - 1, 1)))


# ---- the barrier ----


def met(steps: Sequence[Step], slots: SlotSet, seed: int) -> bool:
    """Say whether every rank left, and none before all had arrived."""
    none = [None] * slots.nranks
    events = Simulator(slots, seed, queues=1 + seed % 3).run(steps, none, none).events
    arrived = [index for index, (event, step) in enumerate(events) if event == "end" and step.phase == "arrive"]
    left = {step.rank: index for index, (event, step) in enumerate(events) if (event, step.phase) == ("begin", "leave")}
    pairs = itertools.product(arrived, left.items())
    after = all(before < index for before, (rank, index) in pairs if events[before][1].rank != rank)
    return after and len(arrived) == len(left) == slots.nranks


@pytest.mark.parametrize("nranks", [*RANKS, 20])
def test_nobody_leaves_before_all_arrived(nranks: int) -> None:
    for seed in range(6):
        slots = SlotSet(nranks, 1 + seed % 3, 1, base=seed)
        assert met(list(barrier.steps(slots, seed % 2)), slots, seed)


@pytest.mark.parametrize("nranks", RANKS)
def test_a_barrier_takes_one_hop_and_no_data(nranks: int) -> None:
    slots, none = SlotSet(nranks, 2, 1), [None] * nranks
    calls = [Call(barrier.steps(slots, generation), none, none) for generation in (0, 1, 0)]
    for counts in Simulator(slots, nranks).run_all(calls):
        assert counts.hops == (nranks > 1)
        assert counts.steps == [2] * nranks
        assert not any((*counts.sent_blocks, *counts.read_blocks))


def test_a_barrier_that_misses_a_rank_is_found() -> None:
    slots = SlotSet(3, 1, 1)
    steps = list(barrier.steps(slots))
    assert isinstance(steps[3].actions[0], Barrier)
    blind = [*steps[:3], Step(0, "leave", (Barrier(steps[3].actions[0].sources[:1]),)), *steps[4:]]
    assert not all(met(blind, slots, seed) for seed in range(20))
    assert not met(steps[:5], slots, 0)
