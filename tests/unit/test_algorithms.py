"""Every reduction's schedule, run by the simulator: no deadlock, no race, right sums, the published costs."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.comm.running import Call, Counts, Plain
from helpers.comm.scheduling import (
    PAIRS,
    all_gather,
    all_to_all,
    broadcast,
    data,
    movement,
    posed,
    received,
    reduction,
    run,
    run_one,
    slots_for,
    split,
)
from helpers.comm.simulator import Simulator, check_acyclic, problem
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError, UnsupportedError
from vkpar.comm.schedule.algorithms import barrier
from vkpar.comm.schedule.algorithms.table import BASELINE, TABLE
from vkpar.comm.schedule.steps import BLOCK, MOST_SOURCES, Problem, Reduce, SlotSet

FULL = os.environ.get("VKPAR_TEST_FULL") == "1"
ALGORITHMS = list(TABLE)
RANKS = range(1, 9)
COUNTS = (1, 255, 256, 257, 1000, 1024, 2560, 5000)


def check_ownership(name: str, given: Problem, counts: Counts) -> None:
    """Each element that anybody receives is finished by one rank; with direct, by none: every rank sums for itself."""
    finished = sum(counts.finished)
    wanted = np.zeros(given.count, np.int64)
    for rank in range(given.nranks):
        for span in received(given, rank):
            wanted[span.start : span.start + span.count] = 0 if TABLE[name].every_rank_sums else 1
    assert np.array_equal(finished, wanted)


def check(name: str, collective: str, counts: list[int], slots: SlotSet, silent: list[int], seed: int) -> None:
    """Run three calls back to back, with as many queues, in place or not, and with any root, as ``seed`` says."""
    problems = [posed(collective, counts, slots, silent, call % 2, (seed + call) % slots.nranks) for call in range(3)]
    dtype = (np.int64, np.float64)[seed % 2]
    calls = [reduction(name, each, dtype=dtype, in_place=bool(seed % 3), seed=i) for i, each in enumerate(problems)]
    for each, done in zip(problems, run(calls, slots, seed=seed, queues=1 + seed % 3), strict=True):
        check_ownership(name, each, done)


@pytest.mark.parametrize("nranks", RANKS)
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_sums_and_ownership(name: str, collective: str, nranks: int) -> None:
    for seed, count in enumerate(COUNTS):
        slots = slots_for(TABLE[name], nranks, blocks=1 + seed % 3, extra=seed % 4, base=seed)
        silent = [rank for rank in range(nranks) if rank % 3 == 1] if seed % 4 == 3 else []
        check(name, collective, split(count, nranks), slots, silent, seed)


@pytest.mark.parametrize("nranks", range(9, MOST_SOURCES + 1) if FULL else (9, 11, MOST_SOURCES))
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_many_ranks(name: str, collective: str, nranks: int) -> None:
    silent = [0, nranks - 1] if nranks % 2 else []
    check(name, collective, split(5001, nranks), slots_for(TABLE[name], nranks, 2, nranks % 4), silent, nranks)


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
    counts = draw.draw(st.lists(st.integers(0, 700) | st.integers(0, 3000), min_size=nranks, max_size=nranks))
    check(name, collective, counts, slots_for(TABLE[name], nranks, blocks, extra), sorted(silent), seed)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_any_order_of_the_queues(name: str, collective: str, seed: int) -> None:
    """The fewest slots, many segments, several calls in flight: where a missing wait would show."""
    nranks = 3 + seed % 3
    slots = slots_for(TABLE[name], nranks, 1)
    check(name, collective, split(5000, nranks), slots, [seed % nranks] * (seed % 2), seed)


@pytest.mark.parametrize("seed", range(12))
def test_all_kinds_back_to_back(seed: int) -> None:
    """Algorithms, collectives, sizes and generations alternate over the same slots in one run."""
    nranks = 2 + seed % 4
    slots = SlotSet(nranks, 2 * nranks + seed % 3, 1 + seed % 2, base=seed)
    moves = [all_gather(split(3000, nranks)), broadcast(nranks, 1500, seed % nranks)]
    moves.append(all_to_all([[300] * nranks] * nranks))
    calls = []
    for index, (name, collective) in enumerate(PAIRS):
        counts = split((5000, 100, 1300)[index % 3], nranks)
        silent = [index % nranks] if index % 2 else []
        each = posed(collective, counts, slots, silent, index // 2 % 2, index % nranks)
        calls.append(reduction(name, each, in_place=bool(index % 3), seed=index))
        calls.append(movement(moves[index % 3], slots, index % 2, seed=index))
    run(calls, slots, seed=seed, queues=1 + seed % 3)


@pytest.mark.parametrize(("nranks", "queues"), [(1, 3), (2, 1), (2, 3), (3, 1), (3, 2), (5, 1), (5, 3), (8, 2)])
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_program_order_and_waits_are_acyclic(name: str, collective: str, nranks: int, queues: int) -> None:
    slots = slots_for(TABLE[name], nranks, 1)
    calls = [reduction(name, posed(collective, split(5000, nranks), slots, (), call % 2)).call for call in range(2)] + [
        Call(barrier.steps(slots), [None] * nranks, [None] * nranks)
    ]
    simulator = Simulator(slots, queues=queues)
    waiting, _ = simulator.enqueue(calls)
    check_acyclic(simulator, waiting)
    simulator.drain(waiting)


# ---- published costs ----


def blocks_of(nranks: int, each: int) -> list[int]:
    """Return parts of ``each`` blocks."""
    return [each * BLOCK] * nranks


@pytest.mark.parametrize("nranks", range(2, 9))
@pytest.mark.parametrize("segments", [1, 2, 3])
def test_ring_moves_what_was_published(nranks: int, segments: int) -> None:
    """Patarasuk and Yuan 2009: 2(n-1) steps, of which each sends 1/n of the array, to the next rank alone."""
    slots = SlotSet(nranks, 2, 6 // segments)
    counts = run_one("ring", posed("all_reduce", blocks_of(nranks, 6), slots))
    assert counts.hops == 2 * (nranks - 1)
    assert counts.steps == [segments * (2 * nranks - 1)] * nranks
    assert counts.sent_blocks == counts.read_blocks == [2 * (nranks - 1) * 6] * nranks
    assert counts.talked == {(rank, (rank - 1) % nranks) for rank in range(nranks)}


@pytest.mark.parametrize("nranks", range(2, 9))
def test_half_a_ring_scatters(nranks: int) -> None:
    counts = run_one("ring", posed("reduce_scatter", blocks_of(nranks, 6), SlotSet(nranks, 2, 3)))
    assert counts.hops == nranks - 1
    assert counts.steps == [2 * nranks] * nranks
    assert counts.sent_blocks == counts.read_blocks == [(nranks - 1) * 6] * nranks
    assert counts.talked == {(rank, (rank - 1) % nranks) for rank in range(nranks)}


@pytest.mark.parametrize("nranks", range(2, 9))
def test_a_ring_ends_at_the_root(nranks: int) -> None:
    """The root takes each sum from its owner: one hop after the reduce-scatter."""
    root = nranks // 2
    counts = run_one("ring", posed("reduce", blocks_of(nranks, 6), SlotSet(nranks, 2, 3), root=root))
    assert counts.hops == nranks
    assert counts.steps == [2 * nranks + 2 * (rank == root) for rank in range(nranks)]
    assert counts.sent_blocks == [6 * (nranks - (rank == root)) for rank in range(nranks)]
    assert counts.read_blocks == [6 * (nranks - 1) * (1 + (rank == root)) for rank in range(nranks)]
    assert all((rank - writer) % nranks == 1 or rank == root for rank, writer in counts.talked)


@pytest.mark.parametrize("nranks", range(2, 9))
@pytest.mark.parametrize("count", [1, 300, 5000])
def test_ring_sends_as_much_for_any_count(nranks: int, count: int) -> None:
    counts = run_one("ring", problem(nranks, count, SlotSet(nranks, 4, 3)))
    assert sum(counts.sent_blocks) == 2 * (nranks - 1) * -(-count // BLOCK)
    assert counts.hops == 2 * (nranks - 1)


@pytest.mark.parametrize("nranks", range(2, 9))
def test_two_shot_takes_two_hops(nranks: int) -> None:
    """Each rank publishes what the others own, (n-1)/n of the array, and its own sum, 1/n."""
    slots = SlotSet(nranks, 2 * nranks, 3)
    counts = run_one("two_shot", posed("all_reduce", blocks_of(nranks, 3), slots))
    assert counts.hops == 2
    assert counts.sent_blocks == [3 * nranks] * nranks
    assert counts.read_blocks == [2 * 3 * (nranks - 1)] * nranks
    assert counts.steps == [3] * nranks
    root = nranks - 1
    counts = run_one("two_shot", posed("reduce", blocks_of(nranks, 3), slots, root=root))
    assert counts.hops == 2
    assert counts.steps == [2 + (rank == root) for rank in range(nranks)]
    assert counts.sent_blocks == [3 * (nranks - (rank == root)) for rank in range(nranks)]
    assert counts.read_blocks == [3 * (nranks - 1) * (1 + (rank == root)) for rank in range(nranks)]
    counts = run_one("two_shot", posed("reduce_scatter", blocks_of(nranks, 3), slots))
    assert counts.hops == 1
    assert counts.sent_blocks == counts.read_blocks == [3 * (nranks - 1)] * nranks
    assert counts.steps == [2] * nranks


@pytest.mark.parametrize("groups", [(0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 0, 1, 2, 2), (0, 1, 2)])
def test_two_level_takes_three_hops_and_one_sum_of_each_group(groups: tuple[int, ...]) -> None:
    nranks = len(groups)
    slots = SlotSet(nranks, 2 * nranks, 2)
    for seed, silent in enumerate(([], [0], [nranks - 1], list(range(1, nranks)))):
        for collective in ("all_reduce", "reduce", "reduce_scatter"):
            for hands_on in (False, True):
                each = posed(collective, split(9000, nranks), slots, silent, seed % 2)
                each = replace(each, groups=groups, hands_on=hands_on)
                run([reduction("two_level", each, seed=turn) for turn in (seed, seed + 1)], slots, seed=seed)
    for hands_on in (False, True):
        whole = replace(posed("all_reduce", blocks_of(nranks, 2), slots), groups=groups, hands_on=hands_on)
        assert run_one("two_level", whole).hops == (3 + hands_on if len(set(groups)) < nranks else 2)
    order = _tuples_of(
        "two_level", replace(posed("all_reduce", split(2000, nranks), slots), groups=groups), _Concatenation()
    )
    assert all(sorted(each) == list(range(nranks)) for each in order)


@pytest.mark.parametrize("nranks", range(2, 9))
def test_direct_takes_one_hop(nranks: int) -> None:
    counts = run_one("direct", problem(nranks, 4 * BLOCK, SlotSet(nranks, 2, 4)))
    assert counts.hops == 1
    assert counts.sent_blocks == [4] * nranks
    assert counts.read_blocks == [4 * (nranks - 1)] * nranks
    assert counts.steps == [2] * nranks


@pytest.mark.parametrize("nranks", range(2, 9))
def test_naive_goes_through_one_rank(nranks: int) -> None:
    counts = run_one("naive", problem(nranks, 4 * BLOCK, SlotSet(nranks, 2, 4)))
    assert counts.hops == 2
    assert counts.sent_blocks == [4] * nranks
    assert counts.read_blocks == [4 * (nranks - 1)] + [4] * (nranks - 1)
    assert counts.steps == [1] + [2] * (nranks - 1)
    assert all(0 in pair for pair in counts.talked)
    assert counts.finished[0].all()
    root = nranks - 1
    counts = run_one("naive", problem(nranks, 4 * BLOCK, SlotSet(nranks, 2, 4), root=root))
    assert counts.hops == 1
    assert counts.sent_blocks == [4] * root + [0]
    assert counts.read_blocks == [0] * root + [4 * root]
    assert counts.steps == [1] * nranks
    assert counts.finished[root].all()


# ---- what the rest is told of them ----


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_sums_and_what_travels(name: str) -> None:
    """Only direct lets every rank sum; it must say so, because mixed rigs rely on it."""
    groups = (0, 0, 1, 1)
    steps = list(TABLE[name].steps(replace(problem(4, 2000, slots_for(TABLE[name], 4, 2)), groups=groups)))
    reduces = [action for step in steps for action in step.actions if isinstance(action, Reduce)]
    assert any(each.finishes and not each.final for each in reduces) == TABLE[name].every_rank_sums
    partial = any(each.sources and each.out_slot is not None and not each.final for each in reduces)
    assert partial == TABLE[name].sums_travel


@pytest.mark.parametrize("nranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_the_order_of_summation_is_fixed(name: str, collective: str, nranks: int) -> None:
    """Whatever the slots and their number: the ranks' order, in a ring from each chunk's first rank on."""
    orders = []
    for blocks, extra in ((1, 0), (2, 3), (9, 2 * nranks)):
        slots = slots_for(TABLE[name], nranks, blocks, extra)
        each = posed(collective, split(4000, nranks), slots, root=nranks - 1)
        total = _tuples_of(name, each, _Concatenation())
        assert all(sorted(order) == list(range(nranks)) for order in total if order)
        orders.append(total)
        if name in ("two_shot", "two_level", "direct", "naive"):
            assert set(total) <= {tuple(range(nranks)), ()}
        elif name == "ring":
            assert all((after - rank) % nranks == 1 for order in total for rank, after in itertools.pairwise(order))
    assert orders[0] == orders[1] == orders[2]


def _tuples_of(name: str, given: Problem, codec: Any) -> list[tuple[int, ...]]:
    """Sum arrays whose elements are (rank,), and return the elements that any rank received."""
    arrays, targets = [np.empty(given.count, object) for _ in range(given.nranks)], []
    for rank, array in enumerate(arrays):
        array[:] = [(rank,)] * given.count
        targets.append(np.empty(given.count, object))
    Simulator(given.slots, seed=given.nranks).run(TABLE[name].steps(given), arrays, targets, codec)
    return [next((target[i] for target in targets if target[i]), ()) for i in range(given.count)]


class _Concatenation(Plain):
    """Says + for tuples."""

    def combine(self, a: Any, b: Any) -> Any:
        return a + b


class _Average(Plain):
    """Adds, and divides what is finished."""

    def __init__(self, number: int) -> None:
        self._number = number

    def finish(self, total: Any) -> Any:
        return total / self._number


class _Largest(Plain):
    def combine(self, a: Any, b: Any) -> Any:
        return np.maximum(a, b)


@pytest.mark.parametrize("nranks", [1, 2, 3, 6])
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_other_operations(name: str, collective: str, nranks: int) -> None:
    slots = slots_for(TABLE[name], nranks, 2)
    given = posed(collective, split(2000, nranks), slots, root=nranks - 1)
    arrays = data(nranks, given.count, (), np.float64)
    for codec, want in ((_Average(nranks), np.sum(arrays, 0) / nranks), (_Largest(), np.max(arrays, 0))):
        targets = [np.zeros(given.count) for _ in range(nranks)]
        Simulator(slots).run(TABLE[name].steps(given), arrays, targets, codec)
        for rank, target in enumerate(targets):
            for span in received(given, rank):
                where = slice(span.start, span.start + span.count)
                assert np.array_equal(target[where], want[where])


@pytest.mark.parametrize("nranks", RANKS)
@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_fewer_slots_than_least_are_refused(name: str, collective: str, nranks: int) -> None:
    algorithm = TABLE[name]
    fewer = SlotSet(nranks, algorithm.least_slots(nranks) - 1, 4)
    with pytest.raises(InvalidUsageError, match=f"{name} needs {algorithm.least_slots(nranks)} slots"):
        list(algorithm.steps(posed(collective, split(100, nranks), fewer)))


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_more_ranks_than_a_kernel_sums(name: str, collective: str) -> None:
    nranks = MOST_SOURCES + 1
    given = posed(collective, split(5000, nranks), slots_for(TABLE[name], nranks, 1))
    if name == "ring":
        run_one(name, given)
    else:
        with pytest.raises(UnsupportedError, match=str(MOST_SOURCES)):
            list(TABLE[name].steps(given))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_other_collectives_are_refused(name: str) -> None:
    slots = slots_for(TABLE[name], 3, 1)
    for collective in {"all_reduce", "reduce", "reduce_scatter"} - TABLE[name].collectives:
        with pytest.raises(UnsupportedError, match=f"{name} does no {collective}"):
            list(TABLE[name].steps(posed(collective, [10, 10, 10], slots)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_slots_fit_the_arena(name: str) -> None:
    """A communicator has two slots for each rank on each rank."""
    assert all(TABLE[name].least_slots(nranks) <= max(2 * nranks, 2) for nranks in range(1, MOST_SOURCES + 1))


def test_what_the_tuner_needs_of_the_table() -> None:
    """The tuner times the baseline at every size, on every rig; the built-in choice finds a row for every rig."""
    assert TABLE[BASELINE.name] is BASELINE
    assert BASELINE.tuned
    assert BASELINE.most_ranks == MOST_SOURCES
    for collective in ("all_reduce", "reduce", "reduce_scatter"):
        rows = [row for row in TABLE.values() if collective in row.collectives and not row.every_rank_sums]
        assert any(row.built_in_nbytes == row.most_ranks == math.inf for row in rows)
