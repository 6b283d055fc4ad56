"""The feed-forward block of a model over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.parallel.layers.gathered import GatheredLinear
from vkpar.parallel.layers.layers import ColumnParallelLinear, RowParallelLinear
from vkpar.parallel.layers.norms import Inputs, Parts, RMSNorm, missing, present, there


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
        self._fuses = gate == "swiglu" and len(gate_up) == 1 and not gate_up[0].gathers
        rounds = down.linear.inputs if isinstance(down, RowParallelLinear) else None
        self._rounding = gate_up[0].giving(rounds) if self._fuses and rounds is not None else gate_up[0]

    def __call__(self, x: Inputs, residual: Parts | None = None, norm: RMSNorm | None = None) -> tuple[Parts, Inputs]:
        """Return the results, with ``residual`` added, and their norm; see :meth:`RowParallelLinear.__call__`."""
        return self._down(self.inner(x, rounds=True), residual, norm, self.post)

    def summed(self, x: Inputs) -> Parts:
        """Return the results on all ranks of a tensor split; see :meth:`RowParallelLinear.summed`."""
        assert isinstance(self._down, RowParallelLinear), "a row split sums nothing"
        return self._down.summed(self.inner(x, rounds=True))

    def lend(self, rows: int) -> None:
        """Compute for a rank of another process, in its order; see :meth:`ColumnParallelLinear.lend`."""
        for layer in (*self._gate_up, self._down):
            layer.lend(rows)

    def inner(self, x: Inputs, *, rounds: bool = False) -> Parts:
        """Return what goes back to the residual stream, before that, on the ranks that have parts of its width.

        ``rounds``: as the last product takes it, where that rounds its rows.
        """
        if self._fuses:
            return (self._rounding if rounds else self._gate_up[0])(x, "swiglu")
        made = [layer(x) for layer in self._gate_up]
        inner: Parts = [None] * len(x)
        for rank in present(made[0]):
            gate, up = _halves(made, rank)
            inner[rank] = _GATES[self._gate](gate, up)
        return inner


class SharedExpert:
    """The expert of a mixture that all tokens take: ``sigmoid(x @ share.T) * down(silu(gate(x)) * up(x))``.

    Args:
        gate_up: as :class:`ParallelMLP` takes it.
        down: what takes their product back to the residual stream; :class:`MixtureOfExperts` sums over the ranks.
        share: (hidden,) or (1, hidden), what ``np.asarray`` takes, or a tensor of a file.

    Examples:
        >>> from vkpar.parallel import ColumnParallelLinear, MixtureOfExperts, RowParallelLinear, SharedExpert
        >>> gate, up = np.ones((2, 4, 16, 8), "float32")
        >>> wide = ColumnParallelLinear(np.concatenate([gate[0], up[0]]), comm=comm, segments=(16, 16))
        >>> shared = SharedExpert([wide], RowParallelLinear(gate[0].T, comm=comm), np.zeros(8))
        >>> experts = MixtureOfExperts.cut(gate, up, gate.transpose(0, 2, 1), comm=comm)
        >>> router = np.zeros((4, 8), "float32")
        >>> block = MixtureOfExperts(router, experts, comm=comm, active=2, shared=shared)
        >>> block([device.zeros((3, 8)) for device in comm.devices])[0][0].shape
        (3, 8)
    """

    def __init__(self, gate_up: Sequence[ColumnParallelLinear], down: RowParallelLinear, share: Any) -> None:
        self._mlp, self._down = ParallelMLP(gate_up, down), down
        values, dtype = (share.read(), share.dtype) if hasattr(share, "read") else (np.asarray(share, np.float32), None)
        self.share: Parts = [None] * len(down.weight.parts)
        for rank, part in enumerate(down.weight.parts):
            if part is not None:
                self.share[rank] = part.device.array(values.reshape(1, -1), dtype)

    @property
    def ranks(self) -> list[int]:
        """The ranks of this process that have parts of it."""
        return present(self.share)

    def __call__(self, x: Inputs, residual: Parts | None = None) -> Parts:
        """Return what ranks give of it, with ``residual`` added; their sum is owed."""
        made = self._mlp.inner(x)
        for rank in self.ranks:
            row = x[rank]
            if row is None:
                raise missing(rank)
            share = ops.matmul(row, there(self.share, rank), transpose_b=True, dtype="float32", activation="sigmoid")
            inner = ops.multiply(there(made, rank), share)
            made[rank] = self._down.linear.on(rank, inner, residual=None if residual is None else residual[rank])
        return made


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
