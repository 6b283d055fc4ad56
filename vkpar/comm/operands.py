"""Checks of what a collective is given, before anything is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkpar.array import Array, overlaps
from vkpar.device import Device
from vkpar.errors import InvalidUsageError


@dataclass(frozen=True)
class Operands:
    """Rank r's arrays: it adds ``sources[r]`` (None: nothing) and its result goes to ``targets[r]``."""

    sources: Sequence[Array | None]
    targets: Sequence[Array]

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ranks that add something."""
        return tuple(rank for rank, array in enumerate(self.sources) if array is not None)

    @property
    def alive(self) -> list[Array]:
        """Every array, each once."""
        named = (*self.sources, *self.targets)
        return list({id(array): array for array in named if array is not None}.values())


def checked(devices: Sequence[Device], arrays: Sequence[Array | None], out: Sequence[Array] | None) -> Operands:
    """Return the operands of a reduction to every rank.

    Raises:
        InvalidUsageError: a wrong number of arrays, an array on the wrong rank, unequal counts or dtypes, a partial
            overlap, a rank without a destination, or no rank that contributes.
    """
    _check_list(devices, arrays, "arrays")
    if out is not None:
        _check_list(devices, out, "out")
    targets = [_target(rank, arrays[rank], None if out is None else out[rank]) for rank in range(len(devices))]
    count = max(array.size for array in targets)
    sources = [None if array is None or (array.size == 0 and count) else array for array in arrays]
    _check_alike(targets, sources)
    for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
        _check_aliasing(rank, source, target)
    if all(source is None for source in sources):
        raise InvalidUsageError("no rank contributes: every array is None or of size zero")
    return Operands(sources, targets)


def _check_list(devices: Sequence[Device], arrays: Sequence[Array | None], name: str) -> None:
    if not isinstance(arrays, Sequence) or len(arrays) != len(devices):
        given = len(arrays) if isinstance(arrays, Sequence) else type(arrays).__name__
        raise InvalidUsageError(f"{name} takes one array per rank, {len(devices)} of them; got {given}")
    for rank, array in enumerate(arrays):
        if array is None:
            continue
        if not isinstance(array, Array):
            raise InvalidUsageError(f"{name}[{rank}] is a {type(array).__name__}, not a vkpar.Array; see Device.array")
        if array.device is not devices[rank]:
            owner = next((f" (rank {other})" for other, device in enumerate(devices) if device is array.device), "")
            raise InvalidUsageError(
                f"{name}[{rank}] is on {array.device!r}{owner}, but rank {rank} is {devices[rank]!r}"
            )


def _target(rank: int, array: Array | None, out: Array | None) -> Array:
    target = array if out is None else out
    if target is None:
        raise InvalidUsageError(f"rank {rank} has no destination: give out[{rank}], or an array to reduce in place")
    return target


def _check_alike(targets: Sequence[Array], sources: Sequence[Array | None]) -> None:
    first = targets[0]
    for name, arrays in (("destination", targets), ("array", sources)):
        for rank, array in enumerate(arrays):
            if array is not None and (array.size != first.size or array.dtype != first.dtype):
                raise InvalidUsageError(
                    f"rank {rank}'s {name} has {array.size} {array.dtype}, rank 0's destination {first.size} "
                    f"{first.dtype}: counts and dtypes must agree"
                )


def _check_aliasing(rank: int, source: Array | None, target: Array) -> None:
    if source is None or not overlaps(source, target):
        return
    if source.byte_offset != target.byte_offset:
        raise InvalidUsageError(f"rank {rank}: out overlaps the array in part; it must be the same or apart")
