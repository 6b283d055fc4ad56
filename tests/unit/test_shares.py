"""What ranks do with chunks, as counted in the schedule, and shares for ranks that are not alike."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from conftest import FULL
from helpers.comm.costing import links, processor
from helpers.comm.scheduling import reduction, run, slots_for
from helpers.comm.simplex import least_maximum
from helpers.comm.simulator import problem
from hypothesis import given, settings
from hypothesis import strategies as st

from vkpar.comm.plan.shares import Costs, best, differ, slowest, unequal
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.pipeline import chunks, owned
from vkpar.comm.schedule.steps import BLOCK, Action, Forward, Problem, Reduce

SPEEDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)


@st.composite
def shared(draw: st.DrawFn, most: int = 6) -> tuple[float, ...]:
    """Return shares, some of them zero."""
    n = draw(st.integers(2, most))
    parts = draw(st.lists(st.just(0.0) | st.floats(0.01, 1), min_size=n, max_size=n).filter(any))
    return tuple(part / sum(parts) for part in parts)


# ---- what ranks do ----


def role(action: Action, nranks: int) -> str:
    """Return which half of which role an action is, from what it reads and writes alone."""
    if isinstance(action, Forward):
        assert action.out_slot is None
        return "gather"
    assert isinstance(action, Reduce)
    assert action.own_at is not None
    if not action.sources:
        assert not action.to_array
        return "publish"
    assert action.final
    assert action.to_array
    assert action.out_slot is not None
    assert len(action.sources) == nranks - 1
    return "reduce"


def counted(given: Problem) -> Counter[tuple[int, str]]:
    """Return how many elements each rank handles in each role, by the schedule."""
    counts: Counter[tuple[int, str]] = Counter()
    for step in TABLE["two_shot"].steps(given):
        for action in step.actions:
            counts[step.rank, role(action, given.nranks)] += action.span.count
    return counts


@given(shared(), st.integers(1, 30_000), st.integers(1, 7), st.integers(0, 3))
def test_roles_are_what_the_schedule_does(shares: tuple[float, ...], count: int, blocks: int, extra: int) -> None:
    """Of its own chunk a rank reduces all elements; of the others' it publishes and gathers all."""
    given = problem(len(shares), count, slots_for(TABLE["two_shot"], len(shares), blocks, extra), shares=shares)
    want: Counter[tuple[int, str]] = Counter()
    for rank, chunk in enumerate(owned(given)):
        want[rank, "reduce"] = chunk.count
        want[rank, "publish"] = want[rank, "gather"] = count - chunk.count
    assert counted(given) == +want
    each = Costs("f16", exchange=3.0, reduce=7.0)
    assert each.seconds(0.25) == 0.25 * 7 + 0.75 * 3


@given(shared(8), st.integers(0, 9000), st.integers(1, 5), st.integers(0, 99))
def test_weighted_sums_are_right(shares: tuple[float, ...], count: int, blocks: int, seed: int) -> None:
    """Through the simulator, with ranks that own nothing; three calls back to back."""
    n = len(shares)
    slots = slots_for(TABLE["two_shot"], n, blocks, seed % 4)
    silent = [seed % n] if seed % 3 == 2 else []
    root = seed % n if seed % 5 == 4 else None
    calls = [
        reduction("two_shot", problem(n, count, slots, silent, call % 2, root=root, shares=shares), seed=call)
        for call in range(3)
    ]
    for done in run(calls, slots, seed=seed, queues=1 + seed % 3):
        owners = sum(done.finished)
        assert np.array_equal(owners, np.ones(count)) or (root is not None and owners.max(initial=0) <= 1)


# ---- shares ----


@given(SPEEDS)
def test_shares_are_shares(speeds: list[float]) -> None:
    costs = links(speeds)
    shares = unequal(costs)
    if not differ(costs):
        assert shares is None
    for found in (shares, best(costs)):
        if found is not None:
            assert len(found) == len(speeds)
            assert min(found) >= 0
            assert sum(found) == pytest.approx(1)


COST = st.floats(1e-11, 1e-8) | st.sampled_from([1e-10, 1e-9])


def rigs(least: int = 1) -> st.SearchStrategy[tuple[Costs, ...]]:
    """Return ranks of any costs."""
    one = st.builds(Costs, wire=st.just("f16"), exchange=COST, reduce=COST)
    return st.lists(one, min_size=least, max_size=8).map(tuple)


@settings(max_examples=3000 if FULL else 200)
@given(rigs())
def test_no_shares_are_better(costs: tuple[Costs, ...]) -> None:
    """The simplex method finds none with which the slowest rank is done sooner."""
    n = len(costs)
    rows = [[each.reduce if owner == rank else each.exchange for owner in range(n)] for rank, each in enumerate(costs)]
    assert slowest(costs, best(costs)) <= least_maximum(rows) * (1 + 1e-6)


@given(rigs(2))
def test_no_point_of_a_grid_is_better(costs: tuple[Costs, ...]) -> None:
    costs = costs[:4]
    points = (point for point in itertools.product(range(13), repeat=len(costs)) if sum(point) == 12)
    least = min(slowest(costs, [part / 12 for part in point]) for point in points)
    assert slowest(costs, best(costs)) <= least * (1 + 1e-9)


@given(rigs(2), st.integers(0, 7), st.integers(0, 7))
def test_shares_are_as_even_as_they_can_be(costs: tuple[Costs, ...], one: int, other: int) -> None:
    """Nothing can be taken from the largest share, or from any larger one for a smaller, in the same time."""
    found = list(best(costs))
    n, before = len(found), slowest(costs, found)
    more, fewer = max(one % n, other % n, key=found.__getitem__), min(one % n, other % n, key=found.__getitem__)
    moved = (found[more] - found[fewer]) / 4
    found[more] -= moved
    found[fewer] += moved
    assert moved < 1e-6 or slowest(costs, found) > before


@given(st.lists(st.tuples(st.integers(-14, 0), st.integers(-14, 0)), min_size=1, max_size=5))
def test_costs_of_any_span_have_shares(powers: list[tuple[int, int]]) -> None:
    """All that a tuning file may hold."""
    found = best([Costs("f16", 10.0**exchange, 10.0**reduce) for exchange, reduce in powers])
    assert abs(sum(found) - 1) < 1e-9
    assert min(found) >= 0


@given(rigs())
def test_shares_beat_equal_ones_clearly(costs: tuple[Costs, ...]) -> None:
    if (shares := unequal(costs)) is not None:
        assert differ(costs)
        equal = slowest(costs, [1 / len(costs)] * len(costs))
        assert slowest(costs, shares) * 1.1 < equal


def test_equal_ranks_have_equal_chunks() -> None:
    for n in range(1, 9):
        assert unequal(links([3.0] * n)) is None
        assert best(links([3.0] * n)) == pytest.approx([1 / n] * n)


def test_ranks_differ_from_half_as_fast_again() -> None:
    assert not differ(())
    assert not differ(links([1.0]))
    assert not differ(links([1.0, 1.4]))
    assert differ(links([1.0, 1.6]))


def test_a_slow_link_sums_less_in_two_shot() -> None:
    """Of an array of one it reads 1 + (n - 2) of its share."""
    for n in (3, 4, 8):
        shares = unequal(links([1.0] + [10.0] * (n - 1)))
        assert shares == pytest.approx([0.0] + [1 / (n - 1)] * (n - 1))
    assert unequal(links([1.0, 10.0])) is None  # each of two ranks reads one chunk, whatever its size


@pytest.mark.parametrize("slow", range(3))
def test_a_processor_that_copies_fast_does_not_sum(slow: int) -> None:
    """As SwiftShader does beside two cards on the f32 wire."""
    costs = [processor(20e9, 20e9)] * 3
    costs[slow] = processor(10e9, 0.2e9)
    shares = unequal(tuple(costs))
    assert shares == pytest.approx([0.0 if rank == slow else 0.5 for rank in range(3)])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda shares: sum(shares) > 0.1), st.integers(0, 9999))
def test_weighted_chunks_cover_the_array(shares: list[float], count: int) -> None:
    spans = chunks(count, len(shares), shares)
    assert spans[0].start == 0
    assert spans[-1].start + spans[-1].count == count
    for before, after in itertools.pairwise(spans):
        assert before.start + before.count == after.start
    assert all(span.start % BLOCK == 0 for span in spans if span.count)
    blocks = -(-count // BLOCK)
    for span, share in zip(spans, shares, strict=True):
        assert abs(span.blocks - blocks * share / sum(shares)) <= 1.001
