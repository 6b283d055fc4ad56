"""Which rank has which part of a model, in each mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from vkpar.errors import InvalidUsageError
from vkpar.parallel.cut.heads import Heads, split_heads
from vkpar.parallel.cut.split import Split, cut
from vkpar.parallel.models.bert_config import BertConfig
from vkpar.parallel.models.config import Config
from vkpar.parallel.plan.placing import ELIGIBLE, MODES


@dataclass(frozen=True)
class Placement:
    """Where the parts of a model lie.

    Attributes:
        mode: ``"tensor"``, ``"row"``, ``"layer"`` or ``"single"``.
        streams: by block the ranks that have the residual stream.
        heads: by block which rank has which heads.
        inner: by block the split of the feed-forward width.
        table: the split of the embedding table's rows; ``outputs`` that of the output layer's.
        ratios: of the slices that a row split cuts products into; None in other modes.
    """

    mode: str
    streams: tuple[tuple[int, ...], ...]
    heads: tuple[Heads, ...]
    inner: tuple[Split, ...]
    table: Split
    outputs: Split
    ratios: tuple[Fraction, ...] | None = None

    def slices(self, outputs: int, inputs: int) -> Split | None:
        """Return how a row split cuts a weight; None where it stays whole."""
        if self.ratios is None or min(outputs, inputs) < ELIGIBLE:
            return None
        return cut(outputs, self.ratios)


def place(mode: str, config: Config | BertConfig, ratios: Sequence[Fraction], units: Units | None = None) -> Placement:
    """Return where the parts of a model lie.

    Args:
        mode: ``"tensor"``: each rank has some heads, some of the feed-forward width and some of the vocabulary, of all
            blocks. ``"layer"``: each has some blocks. ``"row"``: the first rank with a ratio above 0 has all, but the
            weights of large products are sliced over the ranks by rows. ``"single"``: the rank with the largest ratio
            has all.
        config: the model.
        ratios: one number a rank.
        units: which columns of the weights stay together.

    Raises:
        InvalidUsageError: an unknown mode.
    """
    if mode not in MODES:
        raise InvalidUsageError(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
    units = units or Units()
    ranks = range(len(ratios))
    if mode == "tensor":
        heads = split_heads(config.heads, config.kv_heads, config.head_dim, ratios, units.heads)
        inner = cut(config.intermediate, ratios, units.inner)
        whole = tuple(ranks)
        vocabulary = cut(config.vocabulary, ratios)
        many = config.layers
        return Placement(mode, (whole,) * many, (heads,) * many, (inner,) * many, vocabulary, vocabulary)
    if mode == "layer":
        blocks = cut(config.layers, ratios)
        homes = [rank for rank in ranks for _ in range(blocks.counts[rank])]
    elif mode == "row":
        homes = [next(rank for rank in ranks if ratios[rank] > 0)] * config.layers
    else:
        homes = [max(ranks, key=lambda rank: (ratios[rank], -rank))] * config.layers

    def alone(size: int, rank: int) -> Split:
        return Split.of([size if other == rank else 0 for other in ranks])

    def heads_of(rank: int) -> Heads:
        keys = tuple((0, config.kv_heads if other == rank else 0) for other in ranks)
        return Heads(alone(config.heads, rank), keys, config.head_dim)

    return Placement(
        mode,
        tuple((rank,) for rank in homes),
        tuple(map(heads_of, homes)),
        tuple(alone(config.intermediate, rank) for rank in homes),
        alone(config.vocabulary, homes[0]),
        alone(config.vocabulary, homes[-1]),
        tuple(ratios) if mode == "row" else None,
    )


@dataclass(frozen=True)
class Units:
    """Columns that stay together where weights are cut: those of a quantised block.

    Attributes:
        heads: of the attention's output weight; ``inner`` of the feed-forward block's.
    """

    heads: int = 1
    inner: int = 1
