"""A product with the parts of a weight that ranks have: which rows are rounded before it, and to what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.ops.rows.normed import Normed
from vkpar.ops.tiles import choice
from vkpar.ops.tiles.cores import streams
from vkpar.ops.tiles.matvec import MOST_ROWS
from vkpar.parallel.layers.norms import missing


class Linear(NamedTuple):
    """A product with a part of a weight on each rank.

    Attributes:
        comm: the communicator.
        weight: by rank (outputs, inputs), float or quantised; None where a rank has nothing.
        bias: by rank (outputs,); None for none.
        inputs: type that inputs of more than 8 rows are rounded to, of more than one where matrix cores take few;
            None keeps theirs.
        results: type of the results of rows that are rounded.
    """

    comm: Communicator
    weight: Sequence[Any]
    bias: Sequence[Array | None]
    inputs: str | None
    results: str = "float32"

    def on(
        self,
        rank: int,
        x: Array | Normed | None,
        residual: Array | None = None,
        out: Array | None = None,
        activation: str | None = None,
        dtype: str | None = None,
    ) -> Array:
        """Return ``activation(x @ weight.T + bias) + residual`` of a rank, in ``out``, or of ``dtype`` where given."""
        if x is None:
            raise missing(rank)
        rounds = self._rounds(self.weight[rank].device, x.shape[0])
        if rounds and isinstance(x, Normed):
            x = x.array()
        if dtype is None and out is None:
            dtype = self.results if rounds else "float32"
        if self.inputs is not None and isinstance(x, Array) and rounds and x.dtype != self.inputs:
            x = ops.cast(x, self.inputs)
        return ops.matmul(
            x,
            self.weight[rank],
            transpose_b=True,
            dtype=dtype,
            bias=self.bias[rank],
            activation=activation,
            residual=residual,
            out=out,
        )

    def prepare(self) -> None:
        """Let devices measure which kernels make products of rounded rows; a capture would not."""
        for part in self.weight:
            if part is not None and self.inputs is not None:
                choice.prepare(part.device, self.inputs)

    def _rounds(self, device: Device, rows: int) -> bool:
        """Say whether so many rows are rounded: matrix cores make products of a few at the rate of a single row's."""
        if rows > MOST_ROWS or self.inputs is None:
            return rows > MOST_ROWS
        return rows > 1 and streams(device.info, self.inputs) is not None
