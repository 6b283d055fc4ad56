"""How arrays are cut: chunks and segments."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError, UnsupportedError
from vkpar.comm.schedule.algorithms.table import Algorithm
from vkpar.comm.schedule.pipeline import abreast, chunks, interleaved, overlapped, owned, pipelined, ramped, segments
from vkpar.comm.schedule.steps import BLOCK, MOST_SOURCES, Barrier, Forward, Problem, Reduce, SlotSet, Span, Step

COUNTS = st.integers(0, 1 << 20) | st.integers(0, 40 * BLOCK) | st.integers(1, 1 << 40)


def check_cut(pieces: list[Span], whole: Span) -> None:
    """Check that ``pieces`` are ``whole``, in order, each from a block's start."""
    at = whole.start
    for piece in pieces:
        assert piece.start == at
        at += piece.count
    assert at == whole.start + whole.count
    assert all(piece.start % BLOCK == 0 for piece in pieces if piece.count)


@given(COUNTS, st.integers(1, 64))
def test_chunks_are_an_even_cut_at_blocks(count: int, nranks: int) -> None:
    cut = chunks(count, nranks)
    assert len(cut) == nranks
    check_cut(cut, Span(0, count))
    blocks = [chunk.blocks for chunk in cut]
    assert max(blocks) - min(blocks) <= 1
    assert sum(blocks) == -(-count // BLOCK)


@given(COUNTS, st.integers(0, 1000), st.integers(1, 300), st.integers(1, 8))
def test_segments_are_the_fewest_even_pieces(count: int, start: int, most: int, at_least: int) -> None:
    span = Span(start * BLOCK, min(count, 3000 * BLOCK))
    cut = segments(span, most, at_least)
    check_cut(cut, span)
    blocks = [piece.blocks for piece in cut]
    assert all(1 <= number <= most for number in blocks)
    assert not cut or max(blocks) - min(blocks) <= 1
    fewest = -(-span.blocks // most)
    assert len(cut) == min(span.blocks, max(fewest, at_least))


def test_an_empty_span_has_no_segments() -> None:
    assert segments(Span(512, 0), 4) == []
    assert chunks(0, 3) == [Span(0, 0)] * 3
    assert chunks(1, 3) == [Span(0, 0), Span(0, 0), Span(0, 1)]


@pytest.mark.parametrize(("count", "blocks"), [(0, 0), (1, 1), (255, 1), (256, 1), (257, 2), (512, 2)])
def test_blocks_of_a_span(count: int, blocks: int) -> None:
    assert Span(0, count).blocks == blocks


@given(st.integers(1, 8), st.integers(1, 9), st.integers(0, 100), st.integers(0, 40))
def test_slots_are_taken_in_turn_and_shared_by_nobody(nranks: int, per_rank: int, base: int, index: int) -> None:
    slots = SlotSet(nranks, per_rank, 1, base)
    every = [slots.slot(rank, turn) for rank in range(nranks) for turn in range(per_rank)]
    assert every == list(range(base, base + nranks * per_rank))
    assert slots.slot(nranks - 1, index) == slots.slot(nranks - 1, index + per_rank)


def test_a_step_knows_its_slots() -> None:
    span = Span(0, 300)
    step = Step(1, "x", (Reduce(span, (4, 7), 1, out_slot=2, final=True), Forward(span, 9, 3), Forward(span, 8)))
    assert step.reads == (4, 7, 9, 8)
    assert step.writes == (2, 3)
    assert Step(0, "arrive", (Barrier(out_slot=5),)).writes == (5,)
    assert Step(0, "leave", (Barrier((5, 6)), Barrier((1,), 2))).reads == (5, 6, 1)


def posed(nranks: int, per_rank: int, **more: Any) -> Problem:
    """Return a problem of 1000 elements."""
    return Problem(nranks, 1000, SlotSet(nranks, per_rank, 1), tuple(range(nranks)), **more)


def test_slots_ranks_and_collectives_that_do_not_do() -> None:
    every = frozenset({"all_reduce", "reduce", "reduce_scatter"})
    made = Algorithm("made", lambda _problem: iter(()), lambda _nranks: 3, every)
    assert list(made.steps(posed(MOST_SOURCES, 3))) == []
    assert list(replace(made, most_ranks=math.inf).steps(posed(MOST_SOURCES + 1, 3))) == []
    with pytest.raises(InvalidUsageError, match="made needs 3 slots a rank; there are 2"):
        made.steps(posed(2, 2))
    with pytest.raises(InvalidUsageError, match="p2p needs 2 slots a rank; there are 1"):
        SlotSet(2, 1, 1).require("p2p", 2)
    for per_rank in (3, 2):
        with pytest.raises(UnsupportedError, match="made sums at most 16 ranks; there are 17"):
            made.steps(posed(MOST_SOURCES + 1, per_rank))
    for given_ in (posed(2, 3), posed(2, 3, root=0), posed(2, 3, parts=(Span(0, 256), Span(256, 744)))):
        with pytest.raises(UnsupportedError, match=f"made does no {given_.collective}$"):
            replace(made, collectives=every - {given_.collective}).steps(given_)


def test_who_owns_and_who_receives_what() -> None:
    ranks = range(3)
    everywhere = posed(3, 2)
    assert everywhere.collective == "all_reduce"
    assert owned(everywhere) == chunks(1000, 3)
    assert all(everywhere.receives(rank, chunk) for rank in ranks for chunk in ranks)
    assert all(everywhere.sent(chunk) for chunk in ranks)
    rooted = posed(3, 2, root=0)
    assert rooted.collective == "reduce"
    assert [[rooted.receives(rank, chunk) for rank in ranks] for chunk in ranks] == [[True, False, False]] * 3
    assert [rooted.sent(chunk) for chunk in ranks] == [False, True, True]
    parts = (Span(0, 300), Span(512, 0), Span(512, 488))
    scattered = posed(3, 2, parts=parts)
    assert scattered.collective == "reduce_scatter"
    assert owned(scattered) == list(parts)
    assert all(scattered.receives(rank, chunk) == (rank == chunk) for rank in ranks for chunk in ranks)
    assert not any(scattered.sent(chunk) for chunk in ranks)
    assert not posed(1, 2).sent(0)
    some = Problem(3, 9, SlotSet(3, 2, 1), (0, 2))
    assert [some.contributes(rank) for rank in ranks] == [True, False, True]
    assert [some.own_at(rank, [other for other in (0, 2) if other != rank]) for rank in ranks] == [0, None, 1]


def test_segments_abreast_leave_out_chunks_that_have_no_more() -> None:
    first, second, other = Span(0, 256), Span(256, 256), Span(512, 9)
    assert abreast([[first, second], [], [other]]) == [{0: first, 2: other}, {0: second}]
    assert abreast([[], []]) == []


@given(st.lists(st.integers(1, 3), max_size=5))
def test_pipelined_keeps_each_segment_in_order(sizes: list[int]) -> None:
    stages = [[[Step(0, f"{segment}.{stage}", ())] for stage in range(number)] for segment, number in enumerate(sizes)]
    order = [step.phase for step in pipelined(stages)]
    assert sorted(order) == sorted(stage[0].phase for segment in stages for stage in segment)
    for segment, number in enumerate(sizes):
        places = [order.index(f"{segment}.{stage}") for stage in range(number)]
        assert places == sorted(places)
        if segment and number:
            before = [order.index(f"{segment - 1}.{stage}") for stage in range(1, sizes[segment - 1])]
            assert all(order.index(f"{segment}.0") < place for place in before)


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(1, 3))
def test_overlapped_does_all_that_is_due_in_one_step_a_rank(sizes: list[int], nranks: int) -> None:
    """Stage k of segment s runs at time s + k; a rank has one step at a time, the oldest segment first."""
    stages = [
        [
            [Step(rank, f"{stage}", (Barrier((), 100 * segment + 10 * stage + rank),)) for rank in range(nranks)]
            for stage in range(number)
        ]
        for segment, number in enumerate(sizes)
    ]
    steps = list(overlapped(stages))
    times: dict[int, int] = {}
    for rank in range(nranks):
        mine = [step for step in steps if step.rank == rank]
        due = sorted({segment + stage for segment, number in enumerate(sizes) for stage in range(number)})
        assert len(mine) == len(due)
        for time, step in zip(due, mine, strict=True):
            segments_done = [slot // 100 for slot in step.writes]
            assert segments_done == sorted(segments_done)
            assert all(slot // 100 + slot % 100 // 10 == time for slot in step.writes)
            times |= dict.fromkeys(step.writes, time)
    assert len(times) == nranks * sum(sizes)


@given(st.integers(0, 100_000), st.integers(1, 64))
def test_ramped_covers_the_span_with_short_ends(count: int, most: int) -> None:
    span = Span(512, count)
    pieces = ramped(span, most)
    assert sum(piece.count for piece in pieces) == count
    assert all(1 <= piece.blocks <= most and piece.start % BLOCK == 0 for piece in pieces)
    at = span.start
    for piece in pieces:
        assert piece.start == at
        at += piece.count
    if span.blocks >= 3 * most and most >= 4:
        lengths = [piece.blocks for piece in pieces]
        assert lengths[:2] == [most // 4, most // 2]
        assert lengths[-2:] == [most // 2, most // 4]


@given(st.lists(st.integers(1, 6), max_size=6), st.integers(1, 4))
def test_interleaved_keeps_segments_apart(sizes: list[int], sets: int) -> None:
    stages = [[[Step(0, f"{segment}.{stage}", ())] for stage in range(number)] for segment, number in enumerate(sizes)]
    order = [step.phase for step in interleaved(stages, sets)]
    assert sorted(order) == sorted(stage[0].phase for segment in stages for stage in segment)
    places = [[order.index(f"{segment}.{stage}") for stage in range(number)] for segment, number in enumerate(sizes)]
    assert all(each == sorted(each) for each in places)
    assert all(max(before) < min(after) for before, after in zip(places, places[sets:], strict=False))
