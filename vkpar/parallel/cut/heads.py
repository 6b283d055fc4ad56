"""Which heads of an attention each rank has; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vkpar.errors import InvalidUsageError
from vkpar.parallel.cut.split import Split, cut


@dataclass(frozen=True)
class Heads:
    """Which heads each rank has.

    Attributes:
        queries: the split of the heads of queries.
        keys: by rank the first and the last (excluded) head of keys and values that these read; ranks that share the
            queries of one head both have it.
        width: elements of a head.
    """

    queries: Split
    keys: tuple[tuple[int, int], ...]
    width: int

    @property
    def kv_counts(self) -> tuple[int, ...]:
        """How many heads of keys and values each rank has."""
        return tuple(stop - start for start, stop in self.keys)


def split_heads(heads: int, kv_heads: int, width: int, ratios: Sequence[Fraction | float], unit: int = 1) -> Heads:
    """Cut the heads of an attention over ranks.

    Where there are as many heads of keys and values as ranks that get any, they are dealt out with all their queries.
    Where there are fewer, ranks are dealt out to them: those of one head have it each, and share its queries; but where
    its queries end between two borders, heads stay together up to the next one, and are dealt out as they are.

    Args:
        heads: of queries.
        kv_heads: of keys and values.
        width: elements of a head.
        ratios: one number a rank; 0 for nothing.
        unit: borders are at multiples of so many columns of queries (the blocks of a quantised weight).

    Raises:
        InvalidUsageError: heads that are no multiple of those of keys and values.

    Examples:
        >>> heads = vkpar.parallel.split_heads(8, 2, 64, [1, 1])
        >>> heads.kv_counts
        (1, 1)
    """
    if heads % kv_heads:
        raise InvalidUsageError(f"{heads} heads are no multiple of {kv_heads} heads of keys and values")
    group = heads // kv_heads
    active = [rank for rank, ratio in enumerate(ratios) if ratio > 0]
    counts = [0] * len(ratios)
    together = _units(unit, group * width)
    if len(active) <= kv_heads or together > 1 < kv_heads:
        dealt = cut(kv_heads, ratios, together).counts
        counts = [count * group for count in dealt]
    else:
        for ranks in np.array_split(np.asarray(active, dtype=object), kv_heads):
            shared = cut(group, [ratios[rank] for rank in ranks], _units(unit, width)).counts
            for rank, count in zip(ranks, shared, strict=True):
                counts[rank] = count
    queries = Split.of(counts)
    keys = [
        (start // group, -(-stop // group)) if stop > start else (0, 0)
        for start, stop in (queries.bounds(rank) for rank in range(len(counts)))
    ]
    return Heads(queries, tuple(keys), width)


def _units(unit: int, width: int) -> int:
    """Return how many pieces of ``width`` columns it takes to end at a multiple of ``unit``."""
    return math.lcm(unit, width) // width
