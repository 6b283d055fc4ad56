"""Which algorithm a collective takes: built-in thresholds, a pure function of the rig, the dtype and the size."""

from __future__ import annotations

from collections.abc import Sequence

from vkpar.comm.algorithms import TABLE, Algorithm
from vkpar.comm.schedule import MOST_SOURCES
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.physical import DeviceInfo

AUTO = "auto"
# Measured on one to four H200s, see docs/algorithms.md: a ring pays off between two ranks and large messages only.
_DIRECT_BYTES = 32 << 10
_RING_BYTES = 8 << 20


def check(name: str) -> str:
    """Return ``name`` if it is an algorithm or ``"auto"``.

    Raises:
        InvalidUsageError
    """
    if not isinstance(name, str) or (name != AUTO and name not in TABLE):
        raise InvalidUsageError(f"unknown algorithm {name!r}; there are auto, {', '.join(TABLE)}")
    return name


def uniform(ranks: Sequence[DeviceInfo]) -> bool:
    """Say whether all ranks run the same driver build on the same device model, so that their sums agree bitwise."""
    marks = {(info.driver_uuid, info.driver_version, info.vendor_id, info.device_id, info.name) for info in ranks}
    return len(marks) == 1


def choose(name: str, ranks: Sequence[DeviceInfo], wire_nbytes: int, *, complete: bool = True) -> Algorithm:
    """Return the algorithm for a message of ``wire_nbytes`` on the wire.

    Args:
        name: an algorithm, or ``"auto"``.
        ranks: the devices.
        wire_nbytes: bytes of the whole array as it travels.
        complete: False where some rank contributes nothing.

    Raises:
        InvalidUsageError: ``direct`` where the ranks' sums may differ.
    """
    same, n = uniform(ranks), len(ranks)
    if name != AUTO:
        algorithm = TABLE[check(name)]
        if algorithm.every_rank_sums and not same:
            raise InvalidUsageError(
                f"{name} needs the same driver and device model on every rank, or replicas could differ; "
                "take auto, two_shot or ring"
            )
        return algorithm
    if n > MOST_SOURCES:
        return TABLE["ring"]
    if wire_nbytes <= _DIRECT_BYTES and same:
        return TABLE["direct"]
    if n == 2 and wire_nbytes > _RING_BYTES and complete:
        return TABLE["ring"]
    return TABLE["two_shot"]
