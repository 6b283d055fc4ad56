"""Which transport each rank of a rig gets, and what carries slots between its cards."""

from __future__ import annotations

import logging
from collections.abc import Sequence

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


def carriers(
    devices: Sequence[LogicalDevice], transports: Sequence[str], base: int, *, copies: bool, alone: bool
) -> tuple[Carriers | None, str]:
    """Return what carries slots from number ``base`` on, and which road that is; or None, and why that is so.

    No reason is given to ranks among which nobody would look for such a road.

    Raises:
        UnsupportedError: the ranks are to have it, and cannot.
    """
    wanted = {name for name in transports if name in (AUTO, peer.NAME)}
    forced = peer.NAME in wanted
    if len(wanted) < 1 or len(set(transports)) > 1:
        vendor, road = None, "every rank is to have the transport, or none" if forced else ""
    elif copies or not alone:
        vendor, road = None, "VKPAR_PATH=copies" if copies else "ranks in several processes"
    elif env.get().slow_links > 1:
        vendor, road = None, "VKPAR_SLOW_LINKS plays a slow road through host memory"
    else:
        vendor, road = peer.offer([device.info for device in devices])
    if vendor is not None:
        try:
            return Carriers(devices, vendor, base), road
        except (UnsupportedError, VulkanError) as error:
            if forced or isinstance(error, DeviceLostError):
                raise
            _log.warning("slots are not carried between the cards: %s", error)
            return None, str(error)
    if forced:
        raise UnsupportedError(f"transport {peer.NAME}: {road}; take auto")
    return None, road if {device.info.driver_id for device in devices} <= set(peer.vendors()) else ""


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
