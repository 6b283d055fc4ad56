"""Tables of embeddings, whose rows lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm.communicator import Communicator
from vkpar.parallel.cut.split import Split
from vkpar.parallel.layers.layers import cut_by
from vkpar.parallel.layers.norms import Parts, present, there


class ParallelEmbedding:
    """Rows of a table by their numbers; ranks hold some rows each, and sum what they have exactly.

    Args:
        weight: (rows, hidden): a :class:`Sharded` that is split along axis 0, or what :func:`shard` takes.
        comm: the communicator.
        split: of the rows where the weight is not sharded yet; even by default.
        ranks: those that get the results; all by default.
        scale: what rows are multiplied by; None for nothing.
    """

    def __init__(
        self,
        weight: Any,
        *,
        comm: Communicator,
        split: Split | None = None,
        ranks: Sequence[int] | None = None,
        scale: float | None = None,
    ) -> None:
        self.weight = cut_by(weight, comm, 0, split)
        self._comm, self._scale = comm, scale
        self._ranks = list(range(comm.nranks)) if ranks is None else list(ranks)
        self._zeros = [
            None if part is None else comm.devices[rank].zeros((1, part.shape[1]))
            for rank, part in enumerate(self.weight.parts)
        ]

    def __call__(self, indices: Parts) -> Parts:
        """Return the rows with these numbers, (T, hidden) float32.

        Args:
            indices: (T,) uint32, equal on all ranks that hold rows. A row that is not there is NaN, or zeros where
                ranks sum.
        """
        holders = present(self.weight.parts)
        made: Parts = [None] * self._comm.nranks
        if holders == self._ranks and len(holders) == 1:
            rank = holders[0]
            made[rank] = self._rows(rank, there(indices, rank))
            return made
        split = self.weight.segments[0]
        for rank in holders:
            made[rank] = self._masked(rank, there(indices, rank), *split.bounds(rank))
        count = next(part.shape[0] for part in made if part is not None)
        shape = (count, self.weight.shape[1])
        whole = [
            self._comm.devices[rank].empty(shape, "float32") if part is None else part for rank, part in enumerate(made)
        ]
        if self._comm.nranks > 1:
            self._comm.all_reduce(made, out=whole, wire="f32")
        return list(whole)

    def _masked(self, rank: int, indices: Array, start: int, stop: int) -> Array:
        """Return the rows that a rank holds, and zeros for the others."""
        near = ops.subtract(indices, start)  # numbers below wrap to large ones
        rows = self._rows(rank, ops.minimum(near, stop - start - 1))
        held = ops.less(near, stop - start).reshape(-1, 1)
        zeros = self._zeros[rank]
        assert zeros is not None
        return ops.where(held, rows, zeros)

    def _rows(self, rank: int, indices: Array) -> Array:
        """Return rows of a rank's part, float32."""
        taken = ops.take(self.weight.parts[rank], indices)
        rows = taken if taken.dtype == "float32" else ops.cast(taken, "float32")
        return rows if self._scale is None else ops.multiply(rows, self._scale, out=rows)
