"""The feed-forward block of a model over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.parallel.layers.gathered import GatheredLinear
from vkpar.parallel.layers.layers import ColumnParallelLinear, RowParallelLinear
from vkpar.parallel.layers.norms import Inputs, Parts, RMSNorm, present, there


class ParallelMLP:
    """The feed-forward block of Llama: ``down(silu(gate(x)) * up(x))``, or with another function of the gates.

    Args:
        gate_up: a layer whose results are those of gate and up, one after the other on each rank; or two layers.
        down: what takes their product back to the residual stream.
        gate: the function of gates and what they let through: ``"swiglu"`` or ``"geglu"`` (by GELU's tanh).
        post: a norm of the results before a residual is added; None for none.

    Examples:
        >>> up = vkpar.parallel.ColumnParallelLinear(np.ones((8, 4), np.float32), comm=comm, segments=(4, 4))
        >>> down = vkpar.parallel.RowParallelLinear(np.ones((4, 4), np.float32), comm=comm)
        >>> mlp = vkpar.parallel.ParallelMLP([up], down)
        >>> stream, _ = mlp([d.ones((2, 4)) for d in comm.devices])
        >>> [part.shape for part in stream]
        [(2, 4), (2, 4)]
    """

    def __init__(
        self,
        gate_up: Sequence[ColumnParallelLinear],
        down: RowParallelLinear | GatheredLinear,
        *,
        gate: str = "swiglu",
        post: RMSNorm | None = None,
    ) -> None:
        if len(gate_up) not in (1, 2):
            raise InvalidUsageError(f"gate and up are one layer or two, not {len(gate_up)}")
        self._gate_up = tuple(gate_up)
        self._down = down
        if gate not in _GATES:
            raise InvalidUsageError(f"gate is {' or '.join(_GATES)}, not {gate!r}")
        self._gate, self.post = gate, post

    def __call__(self, x: Inputs, residual: Parts | None = None, norm: RMSNorm | None = None) -> tuple[Parts, Inputs]:
        """Return the results, with ``residual`` added, and their norm; see :meth:`RowParallelLinear.__call__`."""
        return self._down(self._inner(x), residual, norm, self.post)

    def summed(self, x: Inputs) -> Parts:
        """Return the results on all ranks of a tensor split; see :meth:`RowParallelLinear.summed`."""
        assert isinstance(self._down, RowParallelLinear), "a row split sums nothing"
        return self._down.summed(self._inner(x))

    def lend(self, rows: int) -> None:
        """Compute for a rank of another process, in its order; see :meth:`ColumnParallelLinear.lend`."""
        for layer in (*self._gate_up, self._down):
            layer.lend(rows)

    def _inner(self, x: Inputs) -> Parts:
        if self._gate == "swiglu" and len(self._gate_up) == 1 and not self._gate_up[0].gathers:
            return self._gate_up[0](x, "swiglu")
        made = [layer(x) for layer in self._gate_up]
        inner: Parts = [None] * len(x)
        for rank in present(made[0]):
            gate, up = _halves(made, rank)
            inner[rank] = _GATES[self._gate](gate, up)
        return inner


def _geglu(gate: Array, up: Array) -> Array:
    return ops.multiply(ops.gelu(gate, approximate="tanh"), up)


_GATES: Final[Mapping[str, Callable[[Array, Array], Array]]] = {"swiglu": ops.swiglu, "geglu": _geglu}


def _halves(made: Sequence[Parts], rank: int) -> tuple[Array, Array]:
    """Return a rank's gate and up, of one array or of two."""
    if len(made) == 2:
        return there(made[0], rank), there(made[1], rank)
    both = there(made[0], rank)
    width = both.shape[1] // 2
    return both[:, :width], both[:, width:]
