"""The rows of a prompt in two halves: while the sums of one cross links, products of the other run.

In a tensor split each rank waits for the others after each half of a block. With two halves of the rows under way there
is something to do meanwhile: the second half takes its turn where the first one waits, and the other way round. The
second half attends to the first one's keys, which were appended before, as for two pieces of a prompt that follow each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vkpar import ops
from vkpar.errors import InvalidUsageError
from vkpar.parallel.layers.embedding import ParallelEmbedding
from vkpar.parallel.layers.layers import joined
from vkpar.parallel.layers.norms import Inputs, Parts, RMSNorm, arrays_of, present, there
from vkpar.parallel.models.building import DecoderBlock

FEWEST: Final = 2  # rows, one for each half
WORTH: Final = 256  # rows: shorter prompts wait for sums of which each takes as long as those of all rows
AUTO, ON, OFF = "auto", "on", "off"
SETTINGS: Final = (AUTO, ON, OFF)
_TILE: Final = 64  # rows


def check(setting: str, mode: str, nranks: int) -> None:
    """Refuse what is no setting, and halves where nothing is summed.

    Raises:
        InvalidUsageError: it is refused.
    """
    if setting not in SETTINGS:
        raise InvalidUsageError(f"halves is one of {', '.join(SETTINGS)}, not {setting!r}")
    if setting == ON and not possible(mode, nranks):
        raise InvalidUsageError("halves are for prompts in a tensor split over several ranks; leave it auto or off")


def possible(mode: str, nranks: int) -> bool:
    """Say whether several ranks sum what each half of a block gives."""
    return mode in ("expert", "tensor") and nranks > 1


def middle(rows: int) -> int:
    """Return how many of so many rows the first half has: whole tiles, but for few rows."""
    half = (rows + 1) // 2
    return -(-half // _TILE) * _TILE if rows >= 4 * _TILE else half


class _Half:
    """Rows on their way: positions, and ``sums`` that are added to the stream next, normed by ``post``."""

    def __init__(self, stream: Parts, positions: Parts) -> None:
        self.stream, self.positions = stream, positions
        self.sums: Parts | None = None
        self.post: RMSNorm | None = None

    def normed(self, norm: RMSNorm) -> Inputs:
        """Add what was summed to the stream, and return the norm of that."""
        sums, self.sums = self.sums, None
        if sums is None:
            return norm.before(self.stream)
        self.stream, normed = joined(sums, self.stream, norm, self.post)
        return normed


def through(
    blocks: Sequence[DecoderBlock],
    caches: Sequence[Sequence[Any]],
    embedding: ParallelEmbedding,
    last: RMSNorm,
    tokens: Parts,
    positions: Parts,
) -> tuple[Parts, Inputs]:
    """Return the residual stream after all blocks of a tensor split, and its norm.

    Args:
        blocks: all of them.
        caches: by block.
        embedding: of the tokens.
        last: the norm after the last block.
        tokens: (T,) uint32 by rank, two at least.
        positions: of the tokens.
    """
    cut = middle(there(tokens, present(tokens)[0]).size)
    halves = []
    for rows in (slice(None, cut), slice(cut, None)):
        mine, where = ([None if part is None else part[rows] for part in each] for each in (tokens, positions))
        halves.append(_Half(embedding(mine), where))
    for block, cache in zip(blocks, caches, strict=True):
        for half in halves:
            normed = half.normed(block.attention_norm)
            half.sums = block.attention.summed(normed, half.positions, cache)
            half.post = block.attention.post
        for half in halves:
            half.sums = block.forward.summed(half.normed(block.forward_norm))
            half.post = block.forward.post
    ends = [arrays_of(half.normed(last)) for half in halves]
    return _whole([half.stream for half in halves]), _whole(ends)


def _whole(parts: Sequence[Parts]) -> Parts:
    """Return the rows of all halves, one after the other."""
    return [None if rows[0] is None else ops.concatenate(rows) for rows in zip(*parts, strict=True)]
