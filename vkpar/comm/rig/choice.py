"""Which transport each rank of a rig gets, and what carries slots between its cards."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from vkpar import env
from vkpar.comm.rig.arena import Arena
from vkpar.comm.rig.carriers import Carriers
from vkpar.comm.rig.transports import mapped, peer, staged
from vkpar.comm.rig.transports.mapped import MappedTransport
from vkpar.comm.rig.transports.staged import StagedTransport
from vkpar.errors import DeviceLostError, UnsupportedError, VulkanError
from vkpar.vulkan.device import LogicalDevice

_log = logging.getLogger("vkpar")
Transport = StagedTransport | MappedTransport
AUTO = "auto"
TRANSPORTS = (AUTO, staged.NAME, mapped.NAME, peer.NAME)
_told: set[str] = set()  # devices whose fallback was logged


@dataclass(frozen=True)
class Wanted:
    """What a rig is to be.

    Attributes:
        transports: by rank, as the user has it.
        copies: kernels may work on copies of the slots.
        alone: all ranks live in this process.
    """

    transports: tuple[str, ...]
    copies: bool
    alone: bool

    @property
    def forced(self) -> bool:
        """Whether slots are to be carried, or nothing is to be opened."""
        return peer.NAME in self.transports

    def refusal(self) -> str | None:
        """Say why slots are not carried, whatever the cards; "" where nobody would ask, None where they may be."""
        asked = {name for name in self.transports if name in (AUTO, peer.NAME)}
        if not asked or len(set(self.transports)) > 1:
            return "every rank is to have the transport, or none" if self.forced else ""
        if self.copies or not self.alone:
            return "VKPAR_PATH=copies" if self.copies else "ranks in several processes"
        if env.get().slow_links > 1:
            return "VKPAR_SLOW_LINKS plays a slow road through host memory"
        return None


def carriers(devices: Sequence[LogicalDevice], wanted: Wanted, arena: Arena) -> tuple[Carriers | None, str]:
    """Return what carries slots, numbered after those of ``arena``, and which road that is; or None, and why not.

    No reason is given to ranks among which nobody would look for such a road.

    Raises:
        UnsupportedError: the ranks are to have it, and cannot.
    """
    with ExitStack() as held:  # a process that starts at the same time finds the cards free or taken, once for all
        return _carriers(devices, wanted, arena, held)


def _carriers(
    devices: Sequence[LogicalDevice], wanted: Wanted, arena: Arena, held: ExitStack
) -> tuple[Carriers | None, str]:
    infos = [device.info for device in devices]
    vendor, groups, refusal = None, None, wanted.refusal()
    if refusal is None:
        vendor, refusal = peer.offer(infos, held)
        if vendor is None and not wanted.forced and env.get().peer == "groups":
            vendor, groups, refusal = peer.offer_groups(infos, held)
    if vendor is not None:
        try:
            return Carriers(devices, vendor, arena, groups), refusal
        except (UnsupportedError, VulkanError) as error:
            if wanted.forced or isinstance(error, DeviceLostError):
                raise
            _log.warning("slots are not carried between the cards: %s", error)
            return None, str(error)
    if wanted.forced:
        raise UnsupportedError(f"transport {peer.NAME}: {refusal}; take auto")
    looked_for = env.get().peer == "groups" or {info.driver_id for info in infos} <= set(peer.vendors())
    return None, refusal if looked_for else ""


def transport(device: LogicalDevice, arena: Arena, wanted: str, copies: bool) -> Transport:
    """Return the wanted transport; ``auto`` takes ``mapped`` where the driver cannot import the memory.

    Raises:
        UnsupportedError: the driver cannot import the memory and ``staged`` or copies of the slots are wanted, or
            ``mapped`` is wanted together with copies.
        DeviceLostError: the device is lost.
    """
    if wanted == peer.NAME:
        wanted = AUTO  # for what is not carried
    if wanted == mapped.NAME:
        if copies:
            raise UnsupportedError(f"copies need imported memory; {device.info.name} is to be mapped (transport)")
        return MappedTransport(device, arena)
    try:
        return StagedTransport(device, arena, {queue.family for queue in device.queues} if copies else ())
    except (UnsupportedError, VulkanError) as error:
        if wanted == staged.NAME or isinstance(error, DeviceLostError):
            raise
        if copies:
            raise UnsupportedError(f"copies need imported memory: {error}") from error
        if device.info.device_uuid not in _told:
            _told.add(device.info.device_uuid)
            _log.warning("%s: %s (transport mapped): %s", device.info.name, mapped.COST, error)
        return MappedTransport(device, arena)
