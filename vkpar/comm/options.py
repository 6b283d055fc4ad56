"""Checks of a communicator's arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vkpar import env
from vkpar.comm.rig.choice import AUTO, TRANSPORTS
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.timeouts import seconds
from vkpar.vulkan.machine import instance


def devices(given: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices.

    Raises:
        InvalidUsageError: no devices, something that is no opened device, or a device that is named twice.
        UnsupportedError: several devices under ``VKPAR_VALIDATION=gpu``.
    """
    listed = tuple(given) if isinstance(given, Iterable) else ()
    if not listed or not all(isinstance(device, Device) for device in listed):
        raise InvalidUsageError("a communicator takes a list of opened devices; see vkpar.open_devices")
    if len(set(map(id, listed))) != len(listed):
        raise InvalidUsageError("a device is named twice; open it twice for two virtual ranks: open_devices('name*2')")
    if len(listed) > 1 and instance.watching():
        raise UnsupportedError(
            "with VKPAR_VALIDATION=gpu the validation layer waits for each submission, and ranks wait for each other, "
            "so that they would wait for ever: watch kernels on one device at a time, or take VKPAR_VALIDATION=1"
        )
    return listed


def timeout(given: float) -> float:
    """Return a positive number of seconds; infinity lets collectives take for ever.

    Raises:
        InvalidUsageError: ``given`` is no number, NaN, zero or negative.
    """
    found = seconds(given)
    if not found:
        raise InvalidUsageError("timeout must be a positive number of seconds; every collective takes longer than 0")
    return found


def transports(given: str | Sequence[str], nranks: int) -> list[str]:
    """Return a transport's name per rank; ``VKPAR_TRANSPORT`` stands in for ``auto``.

    Raises:
        InvalidUsageError: an unknown name, or another number of names than ranks.
    """
    wanted = env.get().transport if given == AUTO else given
    listed = [wanted] * nranks if isinstance(wanted, str) else list(wanted) if isinstance(wanted, Sequence) else []
    if len(listed) != nranks or not all(isinstance(name, str) and name in TRANSPORTS for name in listed):
        raise InvalidUsageError(f"unknown transport {given!r}; there are {', '.join(TRANSPORTS)}, or one a rank")
    return listed


def refuse_across(*, checks_slots: bool) -> None:
    """Refuse settings that a communicator over several processes does not have.

    Raises:
        UnsupportedError: ``VKPAR_DEBUG=slots`` or ``VKPAR_PATH=copies``.
    """
    if checks_slots:
        raise UnsupportedError("VKPAR_DEBUG=slots is for ranks of one process; leave it out with mpi=")
    if env.get().path == "copies":
        raise UnsupportedError("VKPAR_PATH=copies is for ranks of one process; leave it out with mpi=")
