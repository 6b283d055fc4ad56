"""The blocks of a sentence encoder over ranks, which norm what they give.

What a rank adds a residual to is the result of a norm: of mean and square root, which drivers compute a little
differently. Where all ranks are to have the hidden states bit for bit alike, each row is therefore normed by one rank,
as each element of a sum is added up by one rank: the partial results are reduce-scattered by rows, a rank adds the
residual to its rows and norms them, and the rows are gathered. That takes the two halves of an all_reduce, and norms no
row twice (Megatron's sequence parallelism, Korthikanti and others, 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm.communicator import Communicator
from vkpar.parallel.cut.heads import Heads
from vkpar.parallel.cut.split import Split, cut
from vkpar.parallel.layers.gathered import GatheredLinear
from vkpar.parallel.layers.layers import ColumnParallelLinear, RowParallelLinear
from vkpar.parallel.layers.norms import Parts, present


class RowNorm:
    """Layer norms of hidden states, each row by one rank, on all ranks bit for bit the same.

    Args:
        weight: (hidden,), what ``np.asarray`` takes, or a tensor of a file; ``bias`` too.
        bias: (hidden,).
        epsilon: what is added to the variance.
        comm: the communicator.
        shares: by rank how many of all rows it norms, as ratios; a single one above 0 has the states alone unless
            ``everywhere``.
        everywhere: all ranks have the states.
    """

    def __init__(
        self, weight: Any, bias: Any, epsilon: float, *, comm: Communicator, shares: Sequence[int], everywhere: bool
    ) -> None:
        self.epsilon, self.everywhere = epsilon, everywhere
        self._comm, self._shares = comm, shares
        self.parts: list[tuple[Array, Array] | None] = [None] * comm.nranks
        values = [tensor.read() if hasattr(tensor, "read") else tensor for tensor in (weight, bias)]
        types = [getattr(tensor, "dtype", None) for tensor in (weight, bias)]
        for rank, share in enumerate(shares):
            if share:
                device = comm.devices[rank]
                self.parts[rank] = (device.array(values[0], types[0]), device.array(values[1], types[1]))

    def __call__(self, x: Parts) -> Parts:
        """Return the norm of ``x``, (T, hidden) on each rank that has the states."""
        if not self.everywhere:
            return [None if part is None else self._of(rank, part) for rank, part in enumerate(x)]
        split = self._split(x)
        return self._gathered(split, [_rows(part, split, rank) for rank, part in enumerate(x)], x)

    def summed(self, partial: Parts, residual: Parts) -> Parts:
        """Return the norm of the sum of ``partial`` over the ranks and ``residual``.

        Args:
            partial: (T, hidden) of each rank that adds something.
            residual: (T, hidden), on all ranks the same.
        """
        comm, split = self._comm, self._split(residual)
        width = next(part.shape[1] for part in residual if part is not None)
        own = [device.empty((count, width)) for device, count in zip(comm.devices, split.counts, strict=True)]
        comm.reduce_scatter(partial, out=own, counts=[count * width for count in split.counts])
        mine: Parts = [None] * comm.nranks
        for rank, rows in enumerate(own):
            before = _rows(residual[rank], split, rank)
            if before is not None:
                mine[rank] = ops.add(rows, before, out=rows)
        return self._gathered(split, mine, residual)

    def _split(self, x: Parts) -> Split:
        return cut(next(part.shape[0] for part in x if part is not None), self._shares)

    def _gathered(self, split: Split, mine: Parts, like: Parts) -> Parts:
        """Norm each rank's rows, and give all of them to every rank."""
        comm = self._comm
        shape = next(part.shape for part in like if part is not None)
        whole = [device.empty(shape) for device in comm.devices]
        placed: Parts = [None] * comm.nranks
        for rank, rows in enumerate(mine):
            if rows is not None:
                placed[rank] = self._of(rank, rows, _rows(whole[rank], split, rank))
        if comm.nranks > 1:
            comm.all_gather(placed, out=whole)
        return list(whole)

    def _of(self, rank: int, x: Array, out: Array | None = None) -> Array:
        held = self.parts[rank]
        assert held is not None
        return ops.layer_norm(x, *held, self.epsilon, out=out)


def _rows(x: Array | None, split: Split, rank: int) -> Array | None:
    """Return a rank's rows; None where it has none."""
    start, stop = split.bounds(rank)
    return None if x is None or start == stop else x[start:stop]


class Batch(NamedTuple):
    """Sentences of one batch, padded to the longest.

    Attributes:
        ids: (sentences * longest,) uint32, by rank.
        lengths: (sentences,) uint32, by rank.
        shape: sentences and longest.
    """

    ids: Parts
    lengths: Parts
    shape: tuple[int, int]


class EncoderBlock(NamedTuple):
    """Attention and a feed-forward block, each with a residual and a norm after it.

    Attributes:
        ranks: those that have the hidden states.
        heads: which rank has which.
        qkv: a layer whose results are queries, keys and values, one after the other on each rank.
        output: what takes the heads' results back to the hidden states; ``attention_norm`` comes after it.
        up: the layer before gelu; ``down`` that after it, with ``forward_norm``.
    """

    ranks: tuple[int, ...]
    heads: Heads
    qkv: ColumnParallelLinear
    output: RowParallelLinear | GatheredLinear
    attention_norm: RowNorm
    up: ColumnParallelLinear
    down: RowParallelLinear | GatheredLinear
    forward_norm: RowNorm

    def __call__(self, x: Parts, batch: Batch) -> Parts:
        """Return the hidden states after the block, (T, hidden) on each rank that has them."""
        made = self.qkv(x)
        mixed: Parts = [None] * len(x)
        for rank in present(made):
            mixed[rank] = _attend(made[rank], self.heads.queries.counts[rank], self.heads.width, batch, rank)
        x = _added(self.output, mixed, x, self.attention_norm)
        inner: Parts = [None if part is None else ops.gelu(part, out=part) for part in self.up(x)]
        return _added(self.down, inner, x, self.forward_norm)


def _added(layer: RowParallelLinear | GatheredLinear, x: Parts, residual: Parts, norm: RowNorm) -> Parts:
    """Return the norm of a layer's results and the residual."""
    if norm.everywhere:
        return norm.summed(layer(x)[0], residual)
    return norm(layer(x, residual)[0])


def _attend(qkv: Array | None, heads: int, width: int, batch: Batch, rank: int) -> Array:
    """Return the mixed values, (T, heads * width), of queries, keys and values that lie one after the other."""
    assert qkv is not None
    parts = qkv.reshape(*batch.shape, 3 * heads, width).transpose(0, 2, 1, 3)
    q, k, v = (parts[:, start : start + heads] for start in (0, heads, 2 * heads))
    result = qkv.device.empty((qkv.shape[0], heads * width))
    by_heads = result.reshape(*batch.shape, heads, width).transpose(0, 2, 1, 3)
    ops.attention(q, k, v, lengths=batch.lengths[rank], out=by_heads)
    return result
