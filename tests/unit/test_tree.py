"""The tree's schedule: halving, doubling, and the ranks that fold."""

from __future__ import annotations

import pytest
from helpers.comm.scheduling import reduction, run, run_one
from helpers.comm.simulator import problem
from hypothesis import given
from hypothesis import strategies as st

from vkpar.comm.schedule.algorithms import tree
from vkpar.comm.schedule.steps import BLOCK, MOST_SOURCES, Reduce, SlotSet, Step

RANKS = range(1, MOST_SOURCES + 1)


def owners(nranks: int) -> int:
    """Return the largest power of two within ``nranks``."""
    return max(1 << bit for bit in range(nranks) if 1 << bit <= nranks)


def rounds(nranks: int) -> int:
    """Return log2 of the owners."""
    return owners(nranks).bit_length() - 1


@pytest.mark.parametrize("nranks", RANKS)
def test_least_slots_is_one_per_chunk(nranks: int) -> None:
    assert tree.least_slots(nranks) == owners(nranks)


@pytest.mark.parametrize("segments", [1, 2, 3])
@pytest.mark.parametrize("nranks", RANKS)
def test_tree_moves_what_was_published(nranks: int, segments: int) -> None:
    """Rabenseifner 2004: 2 log2 p steps, and two more where ranks fold; 2 (p-1)/p of the array read by an owner.

    Slots can be read by several, so a rank forwards what it gathered only where a later reader is: 3/2 - 1/p of the
    array is written by an owner, 2 - 1/p by one that has a folded rank, and the whole array by a folded rank.
    """
    p, log2p, folded = owners(nranks), rounds(nranks), nranks - owners(nranks)
    each = 6
    for per_rank in (p, 2 * p, 3 * p + 1):
        counts = run_one("tree", problem(nranks, p * each * BLOCK, SlotSet(nranks, per_rank, each // segments)))
        assert counts.hops == 2 * log2p + 2 * bool(folded)
        assert counts.steps == [segments * (2 * log2p + 1)] * p + [2 * segments] * folded
        for rank in range(nranks):
            if rank >= p:
                sent, read = p, p
            elif rank < folded:
                sent, read = 2 * p - 1, 2 * (p - 1) + p
            else:
                sent, read = (3 * p - 2) // 2, 2 * (p - 1)
            assert counts.sent_blocks[rank] == (each * sent if nranks > 1 else 0)
            assert counts.read_blocks[rank] == each * read


@pytest.mark.parametrize("nranks", RANKS)
def test_ranks_talk_to_their_partners_alone(nranks: int) -> None:
    p = owners(nranks)
    partners = {(rank, rank ^ 1 << bit) for rank in range(p) for bit in range(rounds(nranks))}
    folds = {pair for rank in range(p, nranks) for pair in ((rank, rank - p), (rank - p, rank))}
    counts = run_one("tree", problem(nranks, 5000, SlotSet(nranks, p, 2)))
    assert counts.talked == partners | folds


def schedule(nranks: int, count: int, slots: SlotSet, silent: tuple[int, ...] = ()) -> list[Step]:
    """Return the steps."""
    return list(tree.steps(problem(nranks, count, slots, silent)))


def test_a_sum_is_that_of_all_that_came_for_a_chunk() -> None:
    """Rank 1 of 6 sends chunk 0 to rank 0: its own, and what came from rank 3 and from the folded rank 5."""
    slots = SlotSet(6, 4, 8)
    steps = schedule(6, 4 * BLOCK, slots)
    halving = [step for step in steps if step.rank == 1 and step.phase == "halve"]
    (sent,) = [action for action in halving[1].actions if action.span.start == 0]
    assert sent == Reduce(sent.span, (slots.slot(3, 0), slots.slot(5, 0)), 0, out_slot=slots.slot(1, 0))
    (total,) = [step.actions[0] for step in steps if step.rank == 0 and step.phase == "reduce"]
    sources = (slots.slot(1, 0), slots.slot(2, 0), slots.slot(4, 0))
    assert total == Reduce(total.span, sources, 0, to_array=True, out_slot=slots.slot(0, 0), final=True)
    for step in steps:
        for action in step.actions:
            assert not isinstance(action, Reduce) or action.to_array == action.final


@pytest.mark.parametrize("nranks", range(2, 9))
def test_ranks_with_nothing_to_say_send_nothing(nranks: int) -> None:
    """One contributor: its elements go straight down the tree, and nobody else sends unfinished sums."""
    p = owners(nranks)
    for speaker in range(nranks):
        silent = tuple(rank for rank in range(nranks) if rank != speaker)
        steps = schedule(nranks, p * BLOCK, SlotSet(nranks, p, 1), silent)
        sums = [action for step in steps for action in step.actions if isinstance(action, Reduce)]
        assert all(len(action.sources) + (action.own_at is not None) == 1 for action in sums)
        began = [step.rank for step in steps if step.phase in ("fold", "halve")]
        assert began[0] == speaker
        folded = [step for step in steps if step.phase == "fold"]
        assert len(folded) == (speaker >= p)
        assert all(step.rank < p for step in steps if step.phase == "reduce")


@pytest.mark.parametrize("nranks", RANKS)
def test_no_sum_has_more_sources_than_rounds(nranks: int) -> None:
    sums = [
        action
        for step in schedule(nranks, 5000, SlotSet(nranks, owners(nranks), 3))
        for action in step.actions
        if isinstance(action, Reduce)
    ]
    assert max(len(action.sources) for action in sums) == rounds(nranks) + (nranks != owners(nranks))
    assert rounds(MOST_SOURCES) + 1 <= MOST_SOURCES


@pytest.mark.parametrize(("nranks", "sets"), [(4, 1), (4, 2), (16, 3)])
def test_segments_overlap_as_slots_allow(nranks: int, sets: int) -> None:
    """With slots for two segments, the next one begins before the first is through; with slots for one, it waits."""
    steps = schedule(nranks, nranks * 6 * BLOCK, SlotSet(nranks, nranks * sets, 1))
    places: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        places.setdefault(step.actions[0].span.start // BLOCK % 6, []).append(index)
    assert len(places) == 6
    live = [sum(min(each) <= index <= max(each) for each in places.values()) for index in range(len(steps))]
    assert max(live) == sets


@given(
    st.integers(1, 16),
    st.integers(1, 9000),
    st.integers(1, 6),
    st.integers(0, 40),
    st.integers(0, 1 << 30),
    st.data(),
)
def test_any_tree(nranks: int, count: int, blocks: int, extra: int, seed: int, draw: st.DataObject) -> None:
    silent = draw.draw(st.sets(st.integers(0, nranks - 1), max_size=nranks - 1))
    slots = SlotSet(nranks, owners(nranks) + extra, blocks)
    calls = [
        reduction("tree", problem(nranks, count, slots, silent, call % 2), in_place=bool(seed % 2), seed=call)
        for call in range(3)
    ]
    run(calls, slots, seed=seed, queues=1 + seed % 3)
