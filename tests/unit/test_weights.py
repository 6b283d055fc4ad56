"""Shares and ring orders for links that are not equally fast, against what no shares can beat."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar.comm import weights
from vkpar.comm.schedule import BLOCK, chunks

SPEEDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)


def ring_seconds(shares: Sequence[float], speeds: Sequence[float]) -> float:
    """Return how long the busiest link is busy, at most."""
    return max((2 - share) / speed for share, speed in zip(shares, speeds, strict=True))


def two_shot_seconds(shares: Sequence[float], speeds: Sequence[float]) -> float:
    """Return how long the busiest link reads."""
    return max((1 + (len(speeds) - 2) * share) / speed for share, speed in zip(shares, speeds, strict=True))


def coarse(n: int, parts: int = 6) -> list[tuple[float, ...]]:
    """Return all shares in steps of one in ``parts``."""
    grid = itertools.product(range(parts + 1), repeat=n)
    return [tuple(item / parts for item in point) for point in grid if sum(point) == parts]


@given(SPEEDS)
def test_shares_are_shares(speeds: list[float]) -> None:
    for shares in (weights.ring(speeds), weights.two_shot(speeds)):
        assert len(shares) == len(speeds)
        assert min(shares) >= 0
        assert sum(shares) == pytest.approx(1)
    assert sorted(weights.order(speeds)) == list(range(len(speeds)))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=4))
def test_no_other_shares_are_faster(speeds: list[float]) -> None:
    best = min(ring_seconds(point, speeds) for point in coarse(len(speeds)))
    assert ring_seconds(weights.ring(speeds), speeds) <= 1.001 * best
    if len(speeds) > 2:
        best = min(two_shot_seconds(point, speeds) for point in coarse(len(speeds)))
        assert two_shot_seconds(weights.two_shot(speeds), speeds) <= 1.001 * best


def test_equal_links_get_equal_shares() -> None:
    for n in range(1, 9):
        assert weights.ring([3.0] * n) == pytest.approx([1 / n] * n)
        assert weights.two_shot([3.0] * n) == pytest.approx([1 / n] * n)


def test_links_differ_from_half_as_fast_again() -> None:
    assert not weights.differ([])
    assert not weights.differ([1.0])
    assert not weights.differ([1.0, 1.5])
    assert weights.differ([1.0, 1.51])


def test_slow_ranks_stand_side_by_side() -> None:
    speeds = [9.0, 1.0, 8.0, 1.0]
    assert weights.order(speeds) == (1, 3, 2, 0)


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
