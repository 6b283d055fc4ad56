"""Opens a rig with the queues that its plan needs, and loads its tuning."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from vkpar import env
from vkpar.comm.plan.choose import Tuning
from vkpar.comm.record import checks
from vkpar.comm.rig.rig import AUTO, Rig
from vkpar.comm.tune import store
from vkpar.errors import OutOfMemoryError, UnsupportedError
from vkpar.vulkan import instance
from vkpar.vulkan.device import LogicalDevice


def open_rig(
    devices: Sequence[LogicalDevice], transports: Sequence[str], staging_nbytes: int | None, *, tunes: bool
) -> tuple[Rig, Tuning | None]:
    """Return the rig and its tuning; None in place of a tuning where there is none.

    Copy queues are opened where the settings or the tuning ask for them, and where the tuning is yet to be measured.

    Args:
        devices: the ranks' logical devices.
        transports: by rank: ``auto``, ``staged`` or ``mapped``.
        staging_nbytes: bytes for all slots; None for the settings'.
        tunes: whether a tuning is to be taken, or measured where there is none.

    Raises:
        UnsupportedError, OutOfMemoryError: as :class:`Rig` does.
    """
    path = env.get().path
    with ExitStack() as undo:
        rig = Rig(devices, transports, staging_nbytes, copies=path == "copies")
        undo.callback(rig.close)
        kept = store.load(rig) if tunes and env.get().tuning != "redo" else None
        wants_copies = kept.copies if kept else tunes and not instance.validating()
        if path != AUTO or not wants_copies or not _can_copy(rig):
            undo.pop_all()
            return rig, kept
    try:
        return Rig(devices, transports, staging_nbytes, copies=True), kept
    except (UnsupportedError, OutOfMemoryError):
        return Rig(devices, transports, staging_nbytes), kept


def _can_copy(rig: Rig) -> bool:
    """Say whether every rank imports the slots and has a queue that copies beside its kernels."""
    if checks.SLOTS in env.debug_checks() or any(transport.mirror for transport in rig.transports):
        return False
    return all(device.transfer is not device.compute for device in rig.devices)
