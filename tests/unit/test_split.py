"""Splits: every element exactly once, borders at multiples, in proportion; and what is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError
from vkpar.parallel import Split, linked
from vkpar.parallel.cut.exchange import Layout, pieces
from vkpar.parallel.cut.split import check_ratios, cut

RATIOS = st.lists(st.integers(0, 9) | st.floats(0, 1e6), min_size=1, max_size=8).filter(any)


@given(st.integers(0, 5000), RATIOS, st.integers(1, 300))
def test_every_element_once_and_borders_at_multiples(size: int, ratios: list[float], granularity: int) -> None:
    made = cut(size, ratios, granularity)
    assert (made.size, made.nranks, sum(made.counts)) == (size, len(ratios), size)
    assert list(made.borders) == sorted(made.borders)
    assert all(border % granularity == 0 or border == size for border in made.borders)
    units = -(-size // granularity)
    for count, ratio in zip(made.counts, ratios, strict=True):
        quota = units * Fraction(ratio) / sum(map(Fraction, ratios))
        assert abs(-(-count // granularity) - quota) < 1  # largest remainder: the quota, rounded one way or the other
        assert ratio or not count


@pytest.mark.parametrize(
    ("size", "ratios", "granularity", "counts"),
    [
        (10, [1, 1, 1], 1, (4, 3, 3)),
        (8, [3, 1], 1, (6, 2)),
        (7, [5, 2, 1], 1, (4, 2, 1)),
        (100, [1, 1], 32, (64, 36)),  # 4 units; the incomplete one at the end
        (100, [1, 0, 1, 0], 32, (64, 0, 36, 0)),
        (2, [1, 1, 1], 1, (1, 1, 0)),
        (3, [1, 1], 64, (3, 0)),
        (0, [2, 1], 4, (0, 0)),
        (6, [0.5, 0.25], 1, (4, 2)),
    ],
)
def test_known_splits(size: int, ratios: list[float], granularity: int, counts: tuple[int, ...]) -> None:
    assert cut(size, ratios, granularity).counts == counts


@pytest.mark.parametrize(
    "bad", [[1], [1, 1, 1], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")], [1, "2"], [1, True]]
)
def test_ratios_that_are_refused(bad: list[object]) -> None:
    with pytest.raises(InvalidUsageError, match="ratio"):
        check_ratios(bad, 2)


def test_splits_that_are_refused() -> None:
    for borders, granularity in (((0,), 1), ((1, 2), 1), ((0, 3, 2), 1), ((0, 3, 8), 4)):
        with pytest.raises(InvalidUsageError):
            Split(borders, granularity)
    with pytest.raises(InvalidUsageError, match="granularity"):
        cut(4, [1, 1], 0)
    with pytest.raises(InvalidUsageError, match="no multiple"):
        Split.of((2, 1)).over(7)


def test_a_split_of_units_cuts_whatever_is_made_of_them() -> None:
    groups = Split.of((2, 1, 0, 1))
    assert groups.over(4) is groups
    assert groups.over(4 * 96).counts == (192, 96, 0, 96)
    assert groups.over(4 * 96).granularity == 96
    assert linked(64, 96) == 192
    assert linked() == linked((np.zeros((4, 4)), 1)) == 1
    for bad in (0, -1, 1.5, "2", (1, 2, 3)):
        with pytest.raises(InvalidUsageError):
            linked(bad)  # type: ignore[arg-type]


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], nranks: int) -> Layout:
    axis = draw(st.integers(0, len(shape) - 1))
    first = draw(st.integers(0, shape[axis]))
    lengths = draw(st.sampled_from([[shape[axis]], [first, shape[axis] - first]]))
    weights = st.lists(st.integers(0, 3), min_size=nranks, max_size=nranks).filter(any)
    return Layout(shape, axis, tuple(cut(length, draw(weights)) for length in lengths))


def part_of(whole: np.ndarray, layout: Layout, rank: int) -> np.ndarray:
    chosen = [whole[layout.index(start, stop)] for start, stop in layout.ranges(rank)]
    return np.concatenate(chosen or [whole[layout.index(0, 0)]], layout.axis)


@given(st.data(), st.integers(1, 4))
def test_boxes_lead_from_any_layout_to_any_other(data: st.DataObject, nranks: int) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 6)] * data.draw(st.integers(1, 3))))
    source, target = data.draw(layouts(shape, nranks)), data.draw(layouts(shape, nranks))
    whole = np.arange(np.prod(shape)).reshape(shape)
    for taker, to in itertools.product(range(nranks), (target, None)):
        want = whole if to is None else part_of(whole, to, taker)
        made = np.full_like(want, -1)
        taken = 0
        for giver in range(nranks):
            part = part_of(whole, source, giver)
            assert part.shape == source.part_shape(giver)
            for piece in pieces(source, giver, to, taker):
                assert made[piece.target].shape == piece.shape
                made[piece.target] = part[piece.source]
                taken += piece.size
        assert taken == want.size
        assert np.array_equal(made, want)
