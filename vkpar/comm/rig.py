"""What a communicator owns on its devices: staging, links, and the pump's group."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from vkpar import env
from vkpar.comm import links
from vkpar.comm.slots import Arena
from vkpar.comm.transports.staged import StagedTransport
from vkpar.errors import VulkanError
from vkpar.vulkan import api, pump
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.semaphore import TimelineSemaphore

_log = logging.getLogger("vkpar")
# Longer than most hops between GPUs: a blocked wait on NVIDIA takes 0.1 to 7 ms to wake.
_SPIN_NS = 500_000


class Rig:
    """The ranks' devices, tied together.

    Attributes:
        devices: the ranks' logical devices.
        ports: their compute queues as the pump knows them.
        links: one per ordered pair.
        arena: the staging memory.
        transports: how each rank reaches it.
        group: the pump's group.
        spin_ns: how long waits spin before they block: only where all ranks are GPUs and cores are to spare.
    """

    def __init__(self, devices: Sequence[LogicalDevice]) -> None:
        self.devices = list(devices)
        self.ports: list[Any] = [device.compute.port for device in devices]
        infos = [device.info for device in devices]
        self.links = links.plan(infos)
        most = min(min(info.limits.max_storage_buffer_range, info.limits.max_allocation) for info in infos)
        alignment = max(info.limits.host_import_alignment for info in infos)
        self.spin_ns = _spin_ns(devices)
        self.transports: list[StagedTransport] = []
        with ExitStack() as undo:
            self.arena = Arena(len(devices), alignment, most)
            undo.callback(self.arena.close)
            for device in devices:
                transport = StagedTransport(device, self.arena)
                undo.callback(transport.close)
                self.transports.append(transport)
            self.group = pump.make_group(self.ports, self.arena.nslots)
            undo.callback(self.group.close)
            self._connect(undo)
            undo.callback(self.group.stop)
            self.group.start(self.spin_ns)
            self._resources = undo.pop_all()

    def _connect(self, undo: ExitStack) -> None:
        for link in self.links:
            if link.kind == links.NATIVE:
                shared = links.share(self.devices[link.src].compute, self.devices[link.dst])
                undo.callback(shared.close)
                self.group.set_native(link.dst, link.src, shared.handle)
        for dst in sorted({link.dst for link in self.links if link.kind == links.BRIDGED}):
            local = TimelineSemaphore(self.devices[dst].handle, host_only=True)
            undo.callback(local.close)
            self.group.set_local(dst, local.handle)

    def bridge_error(self, result: int) -> VulkanError:
        """Return the typed error for what stopped the bridge."""
        return api.load().error(result, "vkWaitSemaphores", "in the bridge between ranks")

    def confirm(self) -> None:
        """Let the validation layer see that what the ranks' timelines say is done."""
        for device in self.devices:
            device.compute.confirm()

    def drain(self, values: Sequence[int], patience: float) -> list[int]:
        """Wait for each rank's timeline value; return the ranks that stood still for ``patience`` seconds."""
        pairs = enumerate(zip(self.devices, values, strict=True))
        return [rank for rank, (device, value) in pairs if not device.compute.drained(patience, value)]

    def close(self) -> None:
        """Stop the bridge and free everything; no submission of the group may be pending."""
        self._resources.close()


def _spin_ns(devices: Sequence[LogicalDevice]) -> int:
    wanted = env.get().spin_us
    if wanted is not None:
        return 1000 * wanted
    cores = len(os.sched_getaffinity(0))
    return _SPIN_NS if cores > len(devices) and not any(device.info.is_cpu for device in devices) else 0
