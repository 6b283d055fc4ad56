"""Layers whose results one rank has: what a row split makes of row-parallel ones."""

from __future__ import annotations

from vkpar.parallel.layers.layers import ColumnParallelLinear, joined
from vkpar.parallel.layers.norms import Inputs, Parts, RMSNorm


class GatheredLinear:
    """A layer whose results go to the rank that has the stream: what a row split has in a row-parallel layer's place.

    Args:
        linear: gathers its output.
    """

    def __init__(self, linear: ColumnParallelLinear) -> None:
        self._linear = linear

    def lend(self, rows: int) -> None:
        """Compute for a rank of another process; see :meth:`ColumnParallelLinear.lend`."""
        self._linear.lend(rows)

    def __call__(
        self,
        x: Parts,
        residual: Parts | None = None,
        norm: RMSNorm | None = None,
        post: RMSNorm | None = None,
    ) -> tuple[Parts, Inputs]:
        """Return the results, with ``residual`` added, and their norm; see :meth:`RowParallelLinear.__call__`."""
        return joined(self._linear(x), residual, norm, post)
