"""Opens a rig with the queues that its plan needs, and loads its tuning or has it measured."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack

from vkpar import env
from vkpar.comm.engine.engine import Engine
from vkpar.comm.engine.spanning import SpanningEngine
from vkpar.comm.plan.choose import Tuning
from vkpar.comm.record import checks
from vkpar.comm.record.builder import ProgramBuilder
from vkpar.comm.rig.choice import AUTO
from vkpar.comm.rig.processes.world import World
from vkpar.comm.rig.rig import Rig
from vkpar.comm.tune import measure, store
from vkpar.device import Device
from vkpar.errors import OutOfMemoryError, UnsupportedError
from vkpar.timeouts import MEASURED_SECONDS
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.machine import instance

_log = logging.getLogger("vkpar")


def open_rig(
    devices: Sequence[LogicalDevice], transports: Sequence[str], staging_nbytes: int | None, *, tunes: bool
) -> tuple[Rig, Tuning | None]:
    """Return the rig and its kept tuning; None for the tuning where none was kept.

    The rig has copy queues where the settings or the tuning ask for them, and where a tuning is yet to be measured.

    Args:
        devices: the ranks' logical devices.
        transports: by rank: ``auto``, ``staged`` or ``mapped``.
        staging_nbytes: bytes for all slots; None for the settings'.
        tunes: whether a tuning is to be taken, or measured where there is none.

    Raises:
        UnsupportedError: the ranks' devices cannot take the transports, or be linked as the settings say.
        OutOfMemoryError: a device has no room for its slots.
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


def open_engine(
    devices: Sequence[Device],
    transports: Sequence[str],
    staging_nbytes: int | None,
    *,
    algorithm: str,
    wire: str,
    timeout: float,
    tunes: bool,
    world: World | None = None,
) -> tuple[Engine, Tuning | None]:
    """Return an engine on the devices, which are to close it, and the kept tuning of its rig.

    Raises:
        InvalidUsageError: a device is closed.
        UnsupportedError, OutOfMemoryError: as :func:`open_rig` does.
    """
    with ExitStack() as inside:
        for device in devices:  # no other thread closes one meanwhile
            inside.enter_context(device.logical.gate.lock())
            device.logical.gate.check()
        logical = [device.logical for device in devices]
        if world is None:
            rig, kept = open_rig(logical, transports, staging_nbytes, tunes=tunes)
        else:
            rig, kept = Rig(logical, transports, world.staging_nbytes, world=world), None
        with ExitStack() as undo:
            undo.callback(rig.close)
            made = Engine if world is None else SpanningEngine
            try:
                engine = made(devices, rig, ProgramBuilder(rig, algorithm, wire), timeout)
            except BaseException as error:
                if world is not None:
                    world.fail(error)  # before it is closed
                raise
            undo.pop_all()
        for device in devices:
            device.adopt(engine)
    return engine, kept


def tune(engine: Engine, kept: Tuning | None) -> None:
    """Give the engine the tuning ``kept`` of its rig; measure the rig where there is none and it can be measured.

    Raises:
        CommunicatorError: the communicator failed while it was measured.
    """
    if kept is None and not instance.validating() and engine.health.timeout >= MEASURED_SECONDS:
        _log.info(
            "measuring this rig, once, for about %.0f s: which algorithm is fast at which size (kept in %s)",
            measure.SECONDS,
            store.path(engine.rig) or "no file: there is no home directory",
        )
        try:
            kept = measure.run(engine)
        except OutOfMemoryError as error:
            _log.warning("the rig is not measured: %s", error)
    if kept is not None:
        engine.adopt(kept)


def _can_copy(rig: Rig) -> bool:
    """Say whether every rank imports the slots and has a queue that copies beside its kernels."""
    if rig.carriers is not None:
        return False
    if checks.SLOTS in env.debug_checks() or any(transport.mirror for transport in rig.transports):
        return False
    return all(device.transfer is not device.compute for device in rig.devices)
