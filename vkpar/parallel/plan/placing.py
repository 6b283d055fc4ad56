"""Which rank has which part of a model, in each mode: decided here alone, for plans and for loading; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from vkpar.errors import InvalidUsageError
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel.cut.heads import Heads, split_heads
from vkpar.parallel.cut.split import Split, cut
from vkpar.parallel.plan.spec import ModelSpec

MODES: Final = ("expert", "tensor", "row", "layer", "single")  # each falls back to the next
ELIGIBLE: Final = 256  # a row split slices weights of so many rows and columns at least


@dataclass(frozen=True)
class Placement:
    """Where the parts of a model lie.

    Attributes:
        mode: one of :data:`MODES`.
        streams: by block the ranks that have the residual stream.
        heads: by block which rank has which heads.
        inner: by block the split of the feed-forward width, of one expert where there are some.
        table: the split of the embedding table's rows; ``outputs`` that of the output layer's.
        ratios: of the slices that a row split cuts products into; None in other modes.
        experts: by block which rank has which whole experts; empty where ranks have parts of their width.
        shared: by block the split of the width of the expert that all tokens take; of 0 where there is none.
    """

    mode: str
    streams: tuple[tuple[int, ...], ...]
    heads: tuple[Heads, ...]
    inner: tuple[Split, ...]
    table: Split
    outputs: Split
    ratios: tuple[Fraction, ...] | None = None
    experts: tuple[Split, ...] = ()
    shared: tuple[Split, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return which rank has what as plain data, ready for JSON."""
        return {
            "mode": self.mode,
            "streams": [list(ranks) for ranks in self.streams],
            "heads": [list(heads.queries.counts) for heads in self.heads],
            "kv_heads": [list(heads.kv_counts) for heads in self.heads],
            "inner": [list(split.counts) for split in self.inner],
            "vocabulary": list(self.outputs.counts),
        }

    def of_experts(self, block: int, count: int, width: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return by rank which experts of ``count`` it has, and which columns of their ``width``, first and last."""
        ranks = range(self.table.nranks)
        if self.experts:
            spans = [self.experts[block].bounds(rank) for rank in ranks]
            return spans, [(0, width) if high > low else (0, 0) for low, high in spans]
        widths = [self.inner[block].bounds(rank) for rank in ranks]
        return [(0, count) if stop > start else (0, 0) for start, stop in widths], widths

    def sliced(self, counts: Sequence[int], columns: int) -> list[list[tuple[int, int]]] | None:
        """Return the rows that a row split gives each rank of the weights of one product; None where they stay whole.

        Args:
            counts: rows of the weights, which lie one after the other.
            columns: of all of them.

        Returns:
            by weight and rank the first row and the last (excluded).
        """
        if self.ratios is None or min(sum(counts), columns) < ELIGIBLE:
            return None
        borders = cut(sum(counts), self.ratios)
        found, start = [], 0
        for count in counts:
            bounds = (borders.bounds(rank) for rank in range(borders.nranks))
            found.append([(_within(low - start, count), _within(high - start, count)) for low, high in bounds])
            start += count
        return found


def place(spec: ModelSpec, mode: str, ratios: Sequence[Fraction]) -> Placement:
    """Return where the parts of a model lie.

    Args:
        spec: the model.
        mode: ``"tensor"``: each rank has some heads, some of the feed-forward width and some of the vocabulary, of all
            blocks. ``"expert"``: the same, but each has whole experts. ``"layer"``: each has some blocks. ``"row"``:
            the first rank with a ratio above 0 has all, but the weights of large products are sliced over the ranks by
            rows. ``"single"``: the rank with the largest ratio has all.
        ratios: one number a rank.

    Raises:
        InvalidUsageError: an unknown mode, or ``"expert"`` of a model without experts.
    """
    if mode not in MODES:
        raise InvalidUsageError(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
    if mode == "expert" and not spec.experts:
        raise InvalidUsageError("expert: the model has no experts")
    ranks, many = range(len(ratios)), spec.layers
    if mode in ("expert", "tensor"):
        heads = split_heads(spec.heads, spec.kv_heads, spec.head_dim, ratios, unit_of(spec, "o"))
        words, unit = cut(spec.vocabulary, ratios), unit_of(spec, "down")
        inner = tuple(cut(spec.inside(block), ratios, unit) for block in range(many))
        whole = (cut(spec.experts, ratios),) * many if mode == "expert" else ()
        streams = (tuple(ranks),) * many
        shared = (cut(spec.shared, ratios, unit_of(spec, "shared down")),) * many
        return Placement(mode, streams, (heads,) * many, inner, words, words, experts=whole, shared=shared)
    homes = _homes(spec, mode, ratios)

    def alone(size: int, rank: int) -> Split:
        return Split.of([size if other == rank else 0 for other in ranks])

    def heads_of(rank: int) -> Heads:
        keys = tuple((0, spec.kv_heads if other == rank else 0) for other in ranks)
        return Heads(alone(spec.heads, rank), keys, spec.head_dim)

    return Placement(
        mode,
        tuple((rank,) for rank in homes),
        tuple(map(heads_of, homes)),
        tuple(alone(spec.inside(block), rank) for block, rank in enumerate(homes)),
        alone(spec.vocabulary, homes[0]),
        alone(spec.vocabulary, homes[-1]),
        tuple(ratios) if mode == "row" else None,
        shared=tuple(alone(spec.shared, rank) for rank in homes),
    )


def unit_of(spec: ModelSpec, step: str) -> int:
    """Return how many columns of a step's weights stay together: those of quantised blocks, in any block."""
    kinds = dict(spec.kinds).get(step, (spec.weights,))
    return math.lcm(*(FORMATS[kind].block for kind in kinds if kind in FORMATS))


def _homes(spec: ModelSpec, mode: str, ratios: Sequence[Fraction]) -> list[int]:
    """Return by block the rank that has the residual stream."""
    ranks = range(len(ratios))
    if mode == "layer":
        blocks = cut(spec.layers, ratios)
        return [rank for rank in ranks for _ in range(blocks.counts[rank])]
    if mode == "row":
        home = next(rank for rank in ranks if ratios[rank] > 0)
    else:
        home = max(ranks, key=lambda rank: (ratios[rank], -rank))
    return [home] * spec.layers


def _within(row: int, count: int) -> int:
    return min(max(row, 0), count)
