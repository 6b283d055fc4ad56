"""Tables of embeddings, whose rows lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError
from vkpar.ops.quantized.weights import Quantized
from vkpar.parallel.cut.split import Split
from vkpar.parallel.layers.layers import cut_by
from vkpar.parallel.layers.norms import Parts, filled, present, there


class ParallelEmbedding:
    """Rows of a table by their numbers; ranks hold some rows each, and sum what they have exactly.

    Args:
        weight: (rows, hidden): a :class:`Sharded` that is split along axis 0, or what :func:`shard` takes.
        comm: the communicator.
        split: of the rows where the weight is not sharded yet; even by default.
        ranks: those that get the results; all by default.
        scale: what rows are multiplied by; None for nothing.

    Examples:
        >>> table = vkpar.parallel.ParallelEmbedding(np.arange(8, dtype=np.float32).reshape(4, 2), comm=comm)
        >>> [part.tolist() for part in table([d.array([3, 0], "uint32") for d in comm.devices])]
        [[[6.0, 7.0], [0.0, 1.0]], [[6.0, 7.0], [0.0, 1.0]]]
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
        self._windows = [[] if part is None else _windows_of(part) for part in self.weight.parts]
        self._devices = rig.devices(comm)
        self._zeros = [
            None if part is None or device is None else device.zeros((1, part.shape[1]))
            for part, device in zip(self.weight.parts, self._devices, strict=True)
        ]

    def __call__(self, indices: Parts) -> Parts:
        """Return the rows with these numbers, (T, hidden) float32.

        Args:
            indices: (T,) uint32, equal on all ranks that hold rows. A row that is not there is NaN, or zeros where
                ranks sum.

        Raises:
            InvalidUsageError: indices that are missing, or of another type: below 0 they would be counted from the end
                of what each rank has.
        """
        holders, here = self.weight.holders, present(self.weight.parts)
        wrong = [part.dtype for part in indices if part is not None and part.dtype != "uint32"]
        if wrong:
            raise InvalidUsageError(f"rows are looked up by numbers of uint32, not {wrong[0]}; cast them first")
        made: Parts = [None] * self._comm.nranks
        if holders == self._ranks and len(holders) == 1:
            for rank in here:
                made[rank] = self._rows(rank, there(indices, rank))
            return made
        split = self.weight.segments[0]
        for rank in here:
            made[rank] = self._masked(rank, there(indices, rank), *split.bounds(rank))
        count = next(part.shape[0] for part in indices if part is not None)
        whole = filled(self._devices, made, (count, self.weight.shape[1]))
        if self._comm.nranks > 1:
            self._comm.all_reduce(rig.own(self._comm, made), out=rig.own(self._comm, whole), wire="f32")
        return whole

    def _masked(self, rank: int, indices: Array, start: int, stop: int) -> Array:
        """Return the rows that a rank holds, and zeros for the others."""
        zeros = self._zeros[rank]
        assert zeros is not None
        near = ops.subtract(indices, start)  # numbers below wrap to large ones
        rows = self._rows(rank, ops.minimum(near, stop - start - 1))
        return ops.where(ops.less(near, stop - start).reshape(-1, 1), rows, zeros)

    def _rows(self, rank: int, indices: Array) -> Array:
        """Return rows of a rank's part, float32: of each window those that it has."""
        windows = self._windows[rank]
        made = self._taken(windows[0].rows, indices)
        for window in windows[1:]:
            near = ops.subtract(indices, window.first)
            rows = self._taken(window.rows, ops.minimum(near, window.rows.shape[0] - 1))
            made = ops.where(ops.less(near, window.rows.shape[0]).reshape(-1, 1), rows, made)
        return made

    def _taken(self, table: Any, indices: Array) -> Array:
        taken = ops.take(table, indices)
        rows = taken if taken.dtype == "float32" else ops.cast(taken, "float32")
        return rows if self._scale is None else ops.multiply(rows, self._scale, out=rows)


class _Window(NamedTuple):
    """Rows of a table that a kernel binds at once, and the number of the first."""

    first: int
    rows: Any


def _windows_of(table: Any) -> list[_Window]:
    """Cut a table into what kernels bind; a row to either side of a border of memory is copied."""
    if isinstance(table, Quantized):
        return [_Window(piece.first, table[piece.first : piece.first + piece.rows]) for piece in table.pieces]
    found, first, columns = [], 0, table.shape[1]
    while first < table.shape[0]:
        count = table.reach(first * columns) // columns
        rows = table[first : first + max(count, 1)]
        found.append(_Window(first, rows if count else rows.copy()))
        first += max(count, 1)
    return found
