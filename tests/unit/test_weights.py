"""What ranks do with chunks, as counted in the schedules, and shares and ring orders for ranks that are not alike."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from costing import links, processor
from hypothesis import given
from hypothesis import strategies as st
from scheduling import reduction, run, slots_for
from simulator import problem

from vkpar.comm.plan import minimax
from vkpar.comm.plan import shares as weights
from vkpar.comm.plan.shares import ROLES, Costs
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import BLOCK, Action, Forward, Problem, Reduce, chunks

SPEEDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)
ROLES_OF = {"ring": weights.ring_roles, "two_shot": weights.two_shot_roles}


@st.composite
def shared(draw: st.DrawFn, most: int = 6) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return shares, some of them zero, and an order of as many ranks."""
    n = draw(st.integers(2, most))
    parts = draw(st.lists(st.just(0.0) | st.floats(0.01, 1), min_size=n, max_size=n).filter(any))
    return tuple(part / sum(parts) for part in parts), tuple(draw(st.permutations(range(n))))


# ---- what ranks do ----


def role(action: Action, nranks: int, name: str) -> str:
    """Return which role an action is, from what it reads and writes alone."""
    if isinstance(action, Forward):
        return "gather" if action.out_slot is None else "forward"
    assert isinstance(action, Reduce)
    assert action.own_at is not None
    if not action.sources:
        assert not action.to_array
        return "publish"
    if not action.final:
        assert len(action.sources) == 1
        assert not action.to_array
        return "reduce"
    assert action.to_array
    assert action.out_slot is not None
    assert len(action.sources) == (nranks - 1 if name == "two_shot" else 1)
    return "meet" if name == "two_shot" else "own"


def counted(name: str, given: Problem) -> Counter[tuple[int, str]]:
    """Return how many elements each rank handles in each role, by the schedule."""
    counts: Counter[tuple[int, str]] = Counter()
    for step in TABLE[name].steps(given):
        for action in step.actions:
            counts[step.rank, role(action, given.nranks, name)] += action.span.count
    return counts


def predicted(name: str, given: Problem) -> Counter[tuple[int, str]]:
    """Return the same by the roles that the weights count with."""
    n, order = given.nranks, given.order or tuple(range(given.nranks))
    counts: Counter[tuple[int, str]] = Counter()
    for (place, rank), (owners_place, owner) in itertools.product(enumerate(order), repeat=2):
        for part in ROLES_OF[name](n, (place - owners_place) % n):
            for each in ("publish", "gather") if part == "exchange" else (part,):
                counts[rank, each] += given.chunks()[owner].count
    return +counts


@given(st.sampled_from(["ring", "two_shot"]), shared(), st.integers(1, 30_000), st.integers(1, 7), st.integers(0, 3))
def test_roles_are_what_the_schedule_does(
    name: str, way: tuple[tuple[float, ...], tuple[int, ...]], count: int, blocks: int, extra: int
) -> None:
    shares, order = way
    slots = slots_for(TABLE[name], len(shares), blocks, extra)
    given = problem(len(shares), count, slots, shares=shares, order=order if name == "ring" else None)
    assert counted(name, given) == predicted(name, given)


@given(st.sampled_from(["ring", "two_shot"]), shared(), st.data())
def test_times_are_those_of_the_schedule(
    name: str, way: tuple[tuple[float, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    """The rows that shares are chosen by, against the schedule's elements times the roles' costs."""
    shares, order = way
    n = len(shares)
    order = order if name == "ring" else tuple(range(n))
    cost = st.integers(1, 9).map(float)
    costs = [
        Costs("f16", **{part: data.draw(cost) for part in ROLES if part != "exchange"}, exchange=0.0) for _ in shares
    ]
    costs = [Costs(**{**vars(each), "exchange": each.publish + each.gather}) for each in costs]
    given = problem(n, 40_000, slots_for(TABLE[name], n, 5), shares=shares, order=order)
    sizes = [chunk.count for chunk in given.chunks()]
    rows = weights.rows(costs, ROLES_OF[name], order)
    elements = counted(name, given)
    for rank in range(n):
        want = sum(getattr(costs[rank], part) * number for (other, part), number in elements.items() if other == rank)
        assert sum(cell * size for cell, size in zip(rows[rank], sizes, strict=True)) == pytest.approx(want)


@given(st.sampled_from(["ring", "two_shot"]), shared(8), st.integers(0, 9000), st.integers(1, 5), st.integers(0, 99))
def test_weighted_sums_are_right(
    name: str, way: tuple[tuple[float, ...], tuple[int, ...]], count: int, blocks: int, seed: int
) -> None:
    """Through the simulator, with ranks that own nothing, in any order; three calls back to back."""
    shares, order = way
    n = len(shares)
    slots = slots_for(TABLE[name], n, blocks, seed % 4)
    silent = [seed % n] if seed % 3 == 2 else []
    root = seed % n if seed % 5 == 4 else None
    calls = [
        reduction(name, problem(n, count, slots, silent, call % 2, root=root, shares=shares, order=order), seed=call)
        for call in range(3)
    ]
    for done in run(calls, slots, seed=seed, queues=1 + seed % 3):
        owners = sum(done.finished)
        assert np.array_equal(owners, np.ones(count)) or (root is not None and owners.max(initial=0) <= 1)


# ---- shares ----


@given(SPEEDS)
def test_shares_are_shares(speeds: list[float]) -> None:
    costs = links(speeds)
    ring, shot = weights.ring(costs), weights.two_shot(costs)
    if not weights.differ(costs):
        assert ring is None
        assert shot is None
    for shares in (ring and ring[1], shot):
        if shares is not None:
            assert len(shares) == len(speeds)
            assert min(shares) >= 0
            assert sum(shares) == pytest.approx(1)
    if ring:
        assert sorted(ring[0]) == list(range(len(speeds)))


@st.composite
def any_costs(draw: st.DrawFn) -> tuple[Costs, ...]:
    """Return ranks of any costs."""
    cost = st.floats(1e-11, 1e-8) | st.sampled_from([1e-10, 1e-9])
    one = st.builds(Costs, wire=st.just("f16"), **dict.fromkeys(ROLES, cost))
    return tuple(draw(st.lists(one, min_size=1, max_size=6)))


@given(any_costs())
def test_shares_beat_equal_ones_clearly(costs: tuple[Costs, ...]) -> None:
    n, ranks = len(costs), range(len(costs))

    def seconds(name: str, order: Sequence[int], shares: Sequence[float]) -> float:
        return minimax.largest(weights.rows(costs, ROLES_OF[name], order), shares)

    if (found := weights.ring(costs)) is not None:
        assert weights.differ(costs)
        assert seconds("ring", *found) * 1.1 < seconds("ring", ranks, [1 / n] * n)
    if (shares := weights.two_shot(costs)) is not None:
        assert seconds("two_shot", ranks, shares) * 1.1 < seconds("two_shot", ranks, [1 / n] * n)


def test_equal_ranks_have_equal_chunks() -> None:
    for n in range(1, 9):
        assert weights.ring(links([3.0] * n)) is None
        assert weights.two_shot(links([3.0] * n)) is None


def test_ranks_differ_from_half_as_fast_again() -> None:
    assert not weights.differ(())
    assert not weights.differ(links([1.0]))
    assert not weights.differ(links([1.0, 1.4]))
    assert weights.differ(links([1.0, 1.6]))


def test_a_slow_link_sums_less_in_two_shot() -> None:
    """Of an array of one it reads 1 + (n - 2) of its share."""
    for n in (3, 4, 8):
        shares = weights.two_shot(links([1.0] + [10.0] * (n - 1)))
        assert shares == pytest.approx([0.0] + [1 / (n - 1)] * (n - 1))
    assert weights.two_shot(links([1.0, 10.0])) is None  # each of two ranks reads one chunk, whatever its size


def test_a_slow_link_owns_much_of_a_ring() -> None:
    """Its own chunk passes it once, all others twice."""
    ring = weights.ring(links([10.0, 10.0, 1.0]))
    assert ring is not None
    order, shares = ring
    assert order[0] == 2
    assert shares == pytest.approx((0.0, 0.0, 1.0), abs=0.02)


@pytest.mark.parametrize("slow", range(3))
def test_a_processor_that_copies_fast_does_not_sum(slow: int) -> None:
    """As SwiftShader does beside two cards on the f32 wire."""
    costs = [processor(20e9, 20e9)] * 3
    costs[slow] = processor(10e9, 0.2e9)
    shares = weights.two_shot(tuple(costs))
    assert shares == pytest.approx([0.0 if rank == slow else 0.5 for rank in range(3)])
    ring = weights.ring(tuple(costs))
    assert ring is not None
    order, shares = ring
    assert shares is not None
    assert order[0] == slow
    assert shares[order[-1]] == pytest.approx(1)  # its chunk begins its way at the next place


def test_slow_ranks_stand_side_by_side() -> None:
    ring = weights.ring(links([9.0, 1.0, 8.0, 1.0]))
    assert ring is not None
    places = [ring[0].index(rank) for rank in (1, 3)]
    assert (places[0] - places[1]) % 4 in (1, 3)


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
