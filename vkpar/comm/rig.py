"""What a communicator owns on its devices: staging, links, and the pump's group."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

from vkpar import env
from vkpar.comm import links
from vkpar.comm.slots import Arena
from vkpar.comm.transports import mapped, staged
from vkpar.comm.transports.mapped import MappedTransport
from vkpar.comm.transports.staged import StagedTransport
from vkpar.errors import DeviceLostError, UnsupportedError, VulkanError
from vkpar.vulkan import api, pump
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.queue import drain
from vkpar.vulkan.semaphore import TimelineSemaphore

_log = logging.getLogger("vkpar")
Transport = StagedTransport | MappedTransport
AUTO = "auto"
TRANSPORTS = (AUTO, staged.NAME, mapped.NAME)
# Longer than most hops between GPUs: a blocked wait on NVIDIA takes 0.1 to 7 ms to wake.
_SPIN_NS = 500_000


class Rig:
    """The ranks' devices, tied together.

    Args:
        devices: the ranks' logical devices.
        transports: by rank: ``auto``, ``staged`` or ``mapped``.
        staging_nbytes: bytes for all slots; None for the settings'.

    Attributes:
        ports: the ranks' compute queues as the pump knows them.
        links: one per ordered pair.
        arena: the staging memory.
        transports: how each rank reaches it.
        group: the pump's group.
        spin_ns: how long waits spin before they block: only where all ranks are GPUs and cores are to spare.

    Raises:
        UnsupportedError: ``staged`` on a device that cannot import host memory, or links that cannot be.
    """

    def __init__(
        self, devices: Sequence[LogicalDevice], transports: Sequence[str], staging_nbytes: int | None = None
    ) -> None:
        self.devices = list(devices)
        self.ports: list[Any] = [device.compute.port for device in devices]
        infos = [device.info for device in devices]
        most = min(min(info.limits.max_storage_buffer_range, info.limits.max_allocation) for info in infos)
        alignment = max(info.limits.host_import_alignment for info in infos)
        self.spin_ns = _spin_ns(devices)
        self.transports: list[Transport] = []
        with ExitStack() as undo:
            self.arena = Arena(len(devices), alignment, most, staging_nbytes)
            undo.callback(self.arena.close)
            self._of_rank = [undo.enter_context(ExitStack()) for _ in devices]
            for rank, device in enumerate(devices):
                transport = _transport(device, self.arena, transports[rank])
                self._of_rank[rank].callback(transport.close)
                self.transports.append(transport)
            mapped = {rank for rank, transport in enumerate(self.transports) if transport.mirror}
            self.links = links.plan(infos, mapped)
            self.group = pump.make_group(self.ports, self.arena.nslots)
            undo.callback(self.group.close)
            self._share_slots()
            self._connect()
            undo.callback(self.group.stop)
            self.group.start(self.spin_ns)
            self._resources = undo.pop_all()

    def _share_slots(self) -> None:
        self.group.set_slots(self.arena.memory.address, *self.arena.layout())
        for rank, transport in enumerate(self.transports):
            if transport.mirror:
                self.group.set_mapped(rank, transport.mirror)

    def _connect(self) -> None:
        for link in self.links:
            if link.kind == links.NATIVE:
                shared = links.share(self.devices[link.src].compute, self.devices[link.dst])
                self._of_rank[link.dst].callback(shared.close)
                self.group.set_native(link.dst, link.src, shared.handle)
        for dst in sorted({link.dst for link in self.links if link.kind == links.BRIDGED}):
            local = TimelineSemaphore(self.devices[dst].handle, host_only=True)
            self._of_rank[dst].callback(local.close)
            self.group.set_local(dst, local.handle)

    def reached(self) -> list[int]:
        """Return each rank's timeline value now."""
        return [device.compute.reached for device in self.devices]

    def last(self) -> list[int]:
        """Return, by rank, the timeline value at which all that was submitted is done."""
        return [device.compute.last for device in self.devices]

    def bridge_counters(self) -> dict[str, Any]:
        """Return what the bridge threads did, for ``stats`` and errors."""
        bridge = self.group.stats()
        return {
            "bridges": bridge.bridges,
            "bridges_pending": bridge.pending,
            "bridges_pending_by_rank": list(bridge.pending_by_rank),
            "bridge_spins": bridge.spins,
            "bridge_blocks": bridge.blocks,
            "bridge_copies": bridge.copies,
            "bridge_copied_bytes": bridge.copied_bytes,
            "bridge_latency_ns": {pump.bucket_ns(index): n for index, n in enumerate(bridge.histogram) if n},
        }

    def bridge_error(self, result: int) -> VulkanError:
        """Return the typed error for what stopped the bridge."""
        return api.load().error(result, "vkWaitSemaphores", "in the bridge between ranks")

    def confirm(self) -> None:
        """Let the validation layer see that what the ranks' timelines say is done."""
        for device in self.devices:
            device.compute.confirm()

    def drain(self, values: Sequence[int], patience: float) -> list[int]:
        """Wait for each rank's timeline value; return the late ranks where none moved for ``patience`` seconds."""
        return drain([device.compute for device in self.devices], values, patience)

    def abandon(self, late: Collection[int]) -> None:
        """Stop the bridge and free what is on all ranks but the ``late`` ones, which still use theirs.

        The group stays: its counters can be asked for after a failure.
        """
        self.group.stop()
        for rank, own in enumerate(self._of_rank):
            if rank not in late:
                own.close()

    def close(self) -> None:
        """Stop the bridge and free everything; no submission of the group may be pending."""
        self._resources.close()


def _transport(device: LogicalDevice, arena: Arena, wanted: str) -> Transport:
    """Return the wanted transport; ``auto`` maps where the driver cannot import the memory."""
    if wanted == mapped.NAME:
        return MappedTransport(device, arena)
    try:
        return StagedTransport(device, arena)
    except (UnsupportedError, VulkanError) as error:
        if wanted == staged.NAME or isinstance(error, DeviceLostError):
            raise
        if device.info.device_uuid not in _told:
            _told.add(device.info.device_uuid)
            _log.warning("%s: the host copies its slots (transport mapped): %s", device.info.name, error)
        return MappedTransport(device, arena)


_told: set[str] = set()  # devices whose fallback was logged


def _spin_ns(devices: Sequence[LogicalDevice]) -> int:
    wanted = env.get().spin_us
    if wanted is not None:
        return 1000 * wanted
    cores = len(os.sched_getaffinity(0))
    return _SPIN_NS if cores > len(devices) and not any(device.info.is_cpu for device in devices) else 0
