"""What a communicator owns on its devices: staging, links, and the pump's group."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
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
        alignment = max(info.limits.host_import_alignment for info in infos)
        self.spin_ns = _spin_ns(devices)
        self._semaphores: list[TimelineSemaphore] = []
        self.transports: list[StagedTransport] = []
        self.arena = Arena(len(devices), alignment)
        self.group = pump.make_group(self.ports, self.arena.nslots)
        try:
            for device in devices:
                self.transports.append(StagedTransport(device, self.arena))
            self._connect()
            self.group.start(self.spin_ns)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        for link in self.links:
            if link.kind == links.NATIVE:
                shared = links.share(self.devices[link.src].compute, self.devices[link.dst])
                self._semaphores.append(shared)
                self.group.set_native(link.dst, link.src, shared.handle)
        for dst in sorted({link.dst for link in self.links if link.kind == links.BRIDGED}):
            local = TimelineSemaphore(self.devices[dst].handle, host_only=True)
            self._semaphores.append(local)
            self.group.set_local(dst, local.handle)

    def bridge_error(self, result: int) -> VulkanError:
        """Return the typed error for what stopped the bridge."""
        return api.load().error(result, "vkWaitSemaphores", "in the bridge between ranks")

    def close(self) -> None:
        """Stop the bridge and free everything; no submission of the group may be pending."""
        self.group.stop()
        self.group.close()
        for semaphore in self._semaphores:
            semaphore.close()
        for transport in self.transports:
            transport.close()
        self._semaphores.clear()
        self.transports.clear()
        self.arena.close()


def _spin_ns(devices: Sequence[LogicalDevice]) -> int:
    wanted = env.get().spin_us
    if wanted is not None:
        return 1000 * wanted
    cores = len(os.sched_getaffinity(0))
    return _SPIN_NS if cores > len(devices) and not any(device.info.is_cpu for device in devices) else 0
