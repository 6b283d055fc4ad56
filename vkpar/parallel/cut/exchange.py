"""Who gives which box of an array to whom where it goes from one way of lying on ranks to another; no Vulkan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkpar.parallel.cut.split import Split

Index = tuple[slice, ...]


@dataclass(frozen=True)
class Layout:
    """Where the elements of a split array lie.

    Attributes:
        shape: of the whole array.
        axis: along which it is cut.
        segments: the axis' segments one after the other, each cut on its own; a rank has its piece of each, in order.
    """

    shape: tuple[int, ...]
    axis: int
    segments: tuple[Split, ...]

    def ranges(self, rank: int) -> list[tuple[int, int]]:
        """Return a rank's ranges along the axis, in the order in which it holds them; none of them is empty."""
        ranges, start = [], 0
        for segment in self.segments:
            low, high = segment.bounds(rank)
            if high > low:
                ranges.append((start + low, start + high))
            start += segment.size
        return ranges

    def part_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of what a rank holds."""
        return replaced(self.shape, self.axis, sum(stop - start for start, stop in self.ranges(rank)))

    def index(self, start: int, stop: int) -> Index:
        """Return the index of a range along the axis."""
        return replaced((slice(None),) * len(self.shape), self.axis, slice(start, stop))


@dataclass(frozen=True)
class Piece:
    """A box that one rank has and another one is to have.

    Attributes:
        source: which elements, in the giving rank's part.
        target: the same in the receiving rank's part.
        shape: the box's.
    """

    source: Index
    target: Index
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for count in self.shape:
            size *= count
        return size


def pieces(source: Layout, giver: int, target: Layout | None, taker: int) -> list[Piece]:
    """Return the boxes that one rank gives to another, in the order in which both go through them.

    Args:
        source: where the elements lie.
        giver: the rank that gives.
        target: where they are to lie; None for the whole array on every rank.
        taker: the rank that takes.
    """
    found = []
    here = 0
    for start, stop in source.ranges(giver):
        if target is None:
            found.append((source.index(here, here + stop - start), source.index(start, stop)))
        elif target.axis == source.axis:
            there = 0
            for low, high in target.ranges(taker):
                first, last = max(start, low), min(stop, high)
                if first < last:
                    found.append(
                        (
                            source.index(here + first - start, here + last - start),
                            source.index(there + first - low, there + last - low),
                        )
                    )
                there += high - low
        else:
            there = 0
            for low, high in target.ranges(taker):
                given = replaced(source.index(here, here + stop - start), target.axis, slice(low, high))
                taken = replaced(source.index(start, stop), target.axis, slice(there, there + high - low))
                found.append((given, taken))
                there += high - low
        here += stop - start
    return [Piece(given, taken, _shape(source.shape, taken)) for given, taken in found]


def replaced(items: Sequence[int] | Index, axis: int, item: int | slice) -> tuple:  # type: ignore[type-arg]
    """Return a tuple with one item changed."""
    return (*items[:axis], item, *items[axis + 1 :])


def _shape(whole: tuple[int, ...], index: Index) -> tuple[int, ...]:
    return tuple(len(range(*each.indices(count))) for each, count in zip(index, whole, strict=True))
