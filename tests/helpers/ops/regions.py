"""Shapes and keys for tests of regions."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def shapes(*, max_dims: int = 5, max_side: int = 6) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes from no dimensions on, some without elements."""
    return st.lists(st.integers(0, max_side), max_size=max_dims).map(tuple)


def _items(length: int) -> st.SearchStrategy[Any]:
    bound = st.none() | st.integers(-length - 2, length + 2)
    step = st.sampled_from([None, 1, 2, 3, 5, -1, -2, -3])
    pieces = st.builds(slice, bound, bound, step) | st.builds(slice, st.none(), st.none(), step)
    return pieces | st.integers(-length, length - 1) if length else pieces


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Keys of basic indexing for an array of ``shape``, of as many items as it has axes or fewer, and new axes."""
    number = draw(st.integers(0, len(shape)))
    gap = draw(st.integers(0, number))
    axes = [*range(gap), *range(len(shape) - number + gap, len(shape))]
    items = [draw(_items(shape[axis])) for axis in axes]
    if number < len(shape) or draw(st.booleans()):
        items.insert(gap, ...)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        items.insert(draw(st.integers(0, len(items))), None)
    return items[0] if len(items) == 1 and items[0] is not None and draw(st.booleans()) else tuple(items)
