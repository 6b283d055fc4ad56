"""Where the elements of a view lie: strides, in elements from one place to the next along each axis; no memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

from vkpar.errors import InvalidUsageError

Strides = tuple[int, ...]

WIDE: Final = 16  # bytes of the widest access in the built-in kernels


def c_strides(shape: Sequence[int]) -> Strides:
    """Return the strides of C order."""
    return tuple(itertools.accumulate(shape[:0:-1], lambda one, count: one * count, initial=1))[::-1] if shape else ()


def is_c_order(shape: Sequence[int], strides: Strides) -> bool:
    """Say whether elements lie side by side in C order; axes of length 1 do not count."""
    want = 1
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count == 0:
            return True
        if count != 1:
            if stride != want:
                return math.prod(shape) == 0
            want *= count
    return True


def extent(shape: Sequence[int], strides: Strides) -> tuple[int, int]:
    """Return the first place that a view reaches, and the one after the last, counted from its first element."""
    if not math.prod(shape):
        return 0, 0
    ends = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
    return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + 1


def repeats(shape: Sequence[int], strides: Strides) -> bool:
    """Say whether a view shows an element more than once, as views made by broadcasting do."""
    return any(stride == 0 and count > 1 for count, stride in zip(shape, strides, strict=True))


def joined(shape: Sequence[int], *all_strides: Strides) -> tuple[tuple[int, ...], list[Strides]]:
    """Leave out axes of length 1 and join neighbours that one axis can stand for in all of several views.

    Args:
        shape: of the views, which have elements.
        all_strides: of each view.
    """
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, count in enumerate(shape):
        if count == 1:
            continue
        steps = tuple(strides[axis] for strides in all_strides)
        if axes and all(above == count * step for above, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * count, steps)
        else:
            axes.append((count, steps))
    return tuple(count for count, _ in axes), [tuple(steps[n] for _, steps in axes) for n in range(len(all_strides))]


def broadcast_strides(shape: Sequence[int], strides: Strides, wanted: Sequence[int]) -> Strides:
    """Return the strides by which a view shows itself in the shape ``wanted``, as NumPy's broadcasting has it.

    Raises:
        InvalidUsageError: the shapes do not fit.
    """
    before = len(wanted) - len(shape)
    fits = before >= 0 and all(a in (b, 1) for a, b in zip(shape, wanted[max(before, 0) :], strict=False))
    if not fits:
        raise InvalidUsageError(f"an array {tuple(shape)} cannot be broadcast to {tuple(wanted)}")
    kept = (0 if a == 1 != b else stride for a, b, stride in zip(shape, wanted[before:], strides, strict=True))
    return (0,) * before + tuple(kept)


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that all ``shapes`` are broadcast to.

    Raises:
        InvalidUsageError: they do not fit each other.
    """
    made: list[int] = []
    for places in itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        found = {place for place in places if place != 1} or {1}
        if len(found) > 1:
            raise InvalidUsageError(f"shapes {', '.join(map(str, shapes))} cannot be broadcast to one shape")
        made.append(found.pop())
    return tuple(made[::-1])


def reshaped(shape: tuple[int, ...], strides: Strides, wanted: tuple[int, ...]) -> Strides | None:
    """Return the strides of the view of shape ``wanted`` over the same elements; None where only a copy has it.

    Args:
        shape: of the view, which has elements.
        strides: of the view.
        wanted: as many elements.
    """
    counts, (steps,) = joined(shape, strides)
    made: list[int] = []
    axes = list(zip(counts, steps, strict=True))
    left, step = axes.pop() if axes else (1, 1)
    for count in reversed(wanted):
        if count == 1:
            made.append(0)
            continue
        if left == 1 and axes:
            left, step = axes.pop()
        if left % count:
            return None
        made.append(step)
        left, step = left // count, step * count
    return tuple(made[::-1])
