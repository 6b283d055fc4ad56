"""Shares that make the largest sum least, against bounds that no shares can beat."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar.comm.plan import minimax

Rows = list[list[float]]
NUMBERS = st.floats(1e-3, 1e3) | st.floats(0.5, 2) | st.sampled_from([1.0, 2.0, 100.0])


@st.composite
def matrices(draw: st.DrawFn, least: int = 1, most: int = 6) -> Rows:
    """Return square matrices."""
    n = draw(st.integers(least, most))
    return draw(st.lists(st.lists(NUMBERS, min_size=n, max_size=n), min_size=n, max_size=n))


def least_sum(rows: Rows) -> float:
    """Return what the largest sum is at least, by weights for the rows: a certificate whatever the weights are.

    The columns' player wants the least of all columns' weighted sums large: a game of the same kind.
    """
    top = 2 * max(map(max, rows))
    turned = [[top - cell for cell in column] for column in zip(*rows, strict=True)]
    found = minimax._most(turned, [1.0] * len(turned))
    weights = [weight / sum(found) for weight in found]
    return min(sum(map(float.__mul__, weights, column)) for column in zip(*rows, strict=True))


@given(matrices())
def test_no_shares_are_better(rows: Rows) -> None:
    shares = minimax.shares(rows)
    assert len(shares) == len(rows)
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1)
    assert minimax.largest(rows, shares) <= 1.0101 * least_sum(rows)
    assert minimax.shares([list(row) for row in rows]) == shares


@given(matrices(2, 4))
def test_no_point_of_a_grid_is_better(rows: Rows) -> None:
    n = len(rows)
    grid = [point for point in itertools.product(range(13), repeat=n) if sum(point) == 12]
    best = min(minimax.largest(rows, [part / 12 for part in point]) for point in grid)
    assert minimax.largest(rows, minimax.shares(rows)) <= 1.0101 * best


@given(matrices(2, 6))
def test_small_shares_are_left_out(rows: Rows) -> None:
    """Unless that costs too much."""
    shares = minimax.shares(rows)
    for rank, share in enumerate(shares):
        if 0 < share < 0.01:
            fewer = [0.0 if other == rank else each / (1 - share) for other, each in enumerate(shares)]
            assert minimax.largest(rows, fewer) > 1.0099 * least_sum(rows)


@pytest.mark.parametrize("n", range(1, 17))
def test_what_does_not_matter_is_spread(n: int) -> None:
    assert minimax.shares([[1.0] * n] * n) == pytest.approx([1 / n] * n)
    slow = [[1.0] * n for _ in range(n - 1)] + [[30.0] * (n - 1) + [50.0]]
    if n > 1:
        shares = minimax.shares(slow)
        assert shares[-1] == 0
        assert shares[:-1] == pytest.approx([1 / (n - 1)] * (n - 1))


def test_a_known_game() -> None:
    """Each column's player loses as much in either row: 3 c + 1 - c = c + 2 (1 - c)."""
    rows: Sequence[Sequence[float]] = [[3.0, 1.0], [1.0, 2.0]]
    shares = minimax.shares(rows)
    assert minimax.largest(rows, shares) == pytest.approx(5 / 3, rel=0.0051)
    assert shares == pytest.approx((1 / 3, 2 / 3), abs=0.01)


def test_the_scale_does_not_matter() -> None:
    rows = [[3e-10, 1e-10, 2e-10], [1e-10, 9e-10, 2e-10], [4e-9, 1e-9, 7e-9]]
    shares = minimax.shares(rows)
    assert minimax.shares([[cell * 2.0**60 for cell in row] for row in rows]) == shares


@given(st.lists(st.lists(st.integers(-12, 12), min_size=3, max_size=3), min_size=3, max_size=3))
def test_costs_of_any_span_have_shares(powers: list[list[int]]) -> None:
    shares = minimax.shares([[10.0**power for power in row] for row in powers])
    assert len(shares) == 3
    assert abs(sum(shares) - 1) < 1e-9
    assert min(shares) >= 0
