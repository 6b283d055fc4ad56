"""The ranks of a communicator, in this process and in others: lists by rank, and what every process knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vkpar.comm.communicator import Communicator
from vkpar.device import Device

_T = TypeVar("_T")


def is_whole(comm: Communicator) -> bool:
    """Say whether all ranks live in this process."""
    return len(comm.devices) == comm.nranks


def devices(comm: Communicator) -> list[Device | None]:
    """Return by rank the device, None for those of other processes."""
    return by_rank(comm, comm.devices)


def everywhere(comm: Communicator) -> Sequence[Any]:
    """Return by rank the device, or for those of other processes what has its ``info``."""
    return comm._engine.devices


def by_rank(comm: Communicator, own: Sequence[_T]) -> list[_T | None]:
    """Return by rank what the ranks of this process have, None for the others."""
    ranks = comm.local_ranks
    return [*[None] * ranks.start, *own, *[None] * (comm.nranks - ranks.stop)]


def own(comm: Communicator, parts: Sequence[_T]) -> list[_T]:
    """Return what the ranks of this process have, of a list by rank: as collectives take it."""
    return list(parts[comm.local_ranks.start : comm.local_ranks.stop])


def gathered(comm: Communicator, what: str, make: Callable[[], _T]) -> list[_T]:
    """Return by process what each makes; all call it together, and where one raises, all do.

    Args:
        comm: the communicator.
        what: that is made, for errors.
        make: makes it; what processes give each other is pickled.
    """
    return comm._engine.gathered(what, make)
