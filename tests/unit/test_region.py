"""Regions against NumPy's own indexing, without any device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.ops.regions import keys, shapes
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError
from vkpar.arrays.region import Box, boxes, select


def elements(box: Box) -> np.ndarray:
    """Return the places of a box's elements."""
    places = np.full((), box.start)
    for count, stride in zip(box.counts, box.strides, strict=True):
        places = places[..., None] + np.arange(count) * stride
    return places


@given(st.data())
def test_regions_are_those_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    key = data.draw(keys(shape))
    want = np.arange(math.prod(shape)).reshape(shape)[key]
    found = select(key, shape)
    assert found.shape == want.shape
    assert found.box.size == want.size
    got = np.empty_like(want, order="C")
    if want.size:
        found.arranged(got)[...] = elements(found.box)
        assert np.array_equal(got, want)
        assert all(count > 1 for count in found.box.counts)
        assert all(stride > 0 for stride in found.box.strides)
    flat = np.array_equal(want.ravel(), np.arange(want.size) + (want.ravel()[0] if want.size else 0))
    assert found.is_contiguous == flat


@given(st.data(), st.integers(1, 40), st.integers(1, 60), st.integers(1, 3))
def test_boxes_of_a_region(data: st.DataObject, most: int, window: int, ndim: int) -> None:
    shape = data.draw(shapes())
    key = data.draw(keys(shape))
    found = select(key, shape)
    if not found.box.size:
        return
    got = np.full(found.box.counts, -1)
    for box in boxes(found.box, lambda place: window - place % window, most, ndim=ndim):
        assert box.size <= most
        assert box.span <= window - box.start % window
        assert len(box.counts) <= ndim
        assert np.all(got[box.index] == -1)
        got[box.index] = elements(box)
    assert np.array_equal(got, elements(found.box))


@pytest.mark.parametrize(
    ("key", "counts", "strides"),
    [
        ((), (120,), (1,)),
        (slice(1, 2), (30,), (1,)),
        ((..., slice(1, 4)), (20, 3), (6, 1)),
        ((slice(None), slice(1, 3)), (4, 12), (30, 1)),
        ((..., slice(None, None, 2)), (60,), (2,)),
        ((slice(None), slice(None), 2), (20,), (6,)),
        ((slice(None, None, -1), slice(None, None, -1), slice(None, None, -1)), (120,), (1,)),
        ((slice(None, None, -1), 3), (4, 6), (30, 1)),
        ((3, 4, 5), (), ()),
    ],
)
def test_axes_are_joined(key: Any, counts: tuple[int, ...], strides: tuple[int, ...]) -> None:
    box = select(key, (4, 5, 6)).box
    assert (box.counts, box.strides) == (counts, strides)


@pytest.mark.parametrize(
    "key",
    [
        4, -5, (0, 5), (0, 0, 0), (..., ...), (0, ..., 0, 0), (None, 0, 0, 0), True, np.True_, (0, False), 1.0,
        "a", [0, 1], np.array([0, 1]), np.array([True] * 4),
        slice(None, None, 0), slice(0.5, None), slice("a"), {}, 1 << 80,
    ],
)  # fmt: skip
def test_keys_that_are_refused(key: Any) -> None:
    with pytest.raises(InvalidUsageError):
        select(key, (4, 5))


def test_keys_without_axes_and_elements() -> None:
    assert select((), ()).is_contiguous
    assert select(..., ()).shape == ()
    with pytest.raises(InvalidUsageError):
        select(0, ())
    with pytest.raises(InvalidUsageError):
        select(0, (0, 3))
    assert select((slice(None), 2), (0, 3)).shape == (0,)
    assert select(np.int64(-1), (3,)).box.start == 2
    assert select(slice(-(1 << 80), 1 << 80, 1 << 70), (3,)).shape == (1,)
