"""The norm of the residual stream over ranks, made by itself or by the products that take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.ops.matmul.folded import folds
from vkpar.ops.rows.normed import Normed

Parts = list[Array | None]
"""Arrays by rank; None where a rank has none."""


Inputs = Sequence[Array | Normed | None]
"""What column-parallel layers take, by rank; None where a rank has nothing."""


def present(x: Sequence[Any]) -> list[int]:
    """Return the ranks that have something."""
    return [rank for rank, part in enumerate(x) if part is not None]


def there(x: Parts, rank: int) -> Array:
    """Return what a rank has; raises InvalidUsageError where it has nothing."""
    part = x[rank]
    if part is None:
        raise missing(rank)
    return part


def filled(devices: Sequence[Device | None], parts: Parts, shape: tuple[int, ...]) -> Parts:
    """Return parts with a new float32 array on each device of this process that has none."""
    return [
        device.empty(shape, "float32") if part is None and device is not None else part
        for device, part in zip(devices, parts, strict=True)
    ]


def missing(rank: int) -> InvalidUsageError:
    """Return the error of a rank that holds a part of a weight, but has no input."""
    return InvalidUsageError(f"rank {rank} holds a part of the weight, but has no input")


def arrays_of(x: Inputs) -> Parts:
    """Return arrays: norms that are still to be made are."""
    return [part.array() if isinstance(part, Normed) else part for part in x]


class RMSNorm:
    """The norm of the residual stream, which every rank that has the stream makes for itself.

    Args:
        weight: (hidden,), what ``np.asarray`` takes, or a tensor of a file.
        epsilon: what is added to the mean of squares.
        comm: the communicator.
        ranks: those that make it; all by default.

    Examples:
        >>> norm = vkpar.parallel.RMSNorm(np.ones(2, np.float32), 0.0, comm=comm)
        >>> np.round(norm([d.array([[3, 4]], "float32") for d in comm.devices])[0].numpy(), 3)
        array([[0.849, 1.131]], dtype=float32)
    """

    def __init__(self, weight: Any, epsilon: float, *, comm: Communicator, ranks: Sequence[int] | None = None) -> None:
        self._comm, self.epsilon = comm, epsilon
        self.weight: Parts = [None] * comm.nranks
        values = weight.read() if hasattr(weight, "read") else weight
        dtype = getattr(weight, "dtype", None)
        devices = rig.devices(comm)
        for rank in range(comm.nranks) if ranks is None else ranks:
            device = devices[rank]
            self.weight[rank] = None if device is None else device.array(values, dtype)

    def __call__(self, x: Parts) -> Parts:
        """Return the norm of ``x`` where a rank has it."""
        return [
            None if part is None else ops.rms_norm(part, weight, self.epsilon)
            for part, weight in zip(x, self.weight, strict=True)
        ]

    def before(self, x: Parts) -> Inputs:
        """Return the norm of ``x`` for column-parallel layers, which make it themselves on devices that can."""
        if not self.folds(x):
            return self(x)
        return [
            None if part is None else Normed(part, there(self.weight, rank), self.epsilon)
            for rank, part in enumerate(x)
        ]

    def folds(self, x: Parts) -> bool:
        """Say whether products make the norm of so many rows on all devices that have any."""
        return all(part is None or folds(part.device, part.shape[0]) for part in x)

    def added(self, x: Parts, residual: Parts) -> tuple[Parts, Parts]:
        """Return ``x + residual`` and the norm of that, where a rank has them."""
        stream, normed = list(x), list(x)
        for rank in present(x):
            normed[rank], stream[rank] = ops.rms_norm(
                there(x, rank), self.weight[rank], self.epsilon, residual=there(residual, rank)
            )
        return stream, normed

    def onto(self, residual: Parts | None, x: Parts) -> Parts:
        """Return ``residual + norm(x)``, or the norm where there is no residual, made in the place of ``x``.

        What is added to the stream has to have the same bits on all ranks, and unlike drivers divide unlike: there one
        rank makes the norm, and sends it to the others.
        """
        ranks = present(x)
        unlike = len({_driver_of(there(x, rank)) for rank in ranks}) > 1
        for rank in ranks[:1] if unlike else ranks:
            ops.rms_norm(there(x, rank), self.weight[rank], self.epsilon, out=there(x, rank))
        if unlike:
            self._comm.broadcast(x, ranks[0])
        if residual is not None:
            for rank in ranks:
                ops.add(there(residual, rank), there(x, rank), out=there(x, rank))
        return x


def _driver_of(x: Array) -> tuple[str, int, str]:
    """Return what devices that give the same bits have in common."""
    info = x.device.info
    return info.name, info.driver_version, info.driver_info
