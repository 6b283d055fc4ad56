"""Staged: every rank imports the same host memory (VK_EXT_external_memory_host) and reads and writes it in place."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vkpar.comm.rig.arena import Arena
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.accounting import SLOTS
from vkpar.vulkan.memory.buffer import SharedBuffer
from vkpar.vulkan.memory.hostmemory import HostImport

NAME = "staged"


class StagedTransport:
    """One rank's view of the arena.

    Attributes:
        mirror: 0, the rank has none.

    Raises:
        UnsupportedError: the rank's device cannot import host memory.
    """

    name = NAME
    mirror = 0

    def __init__(self, device: LogicalDevice, arena: Arena, families: Collection[int] = ()) -> None:
        self._arena = arena
        self._accounting = device.accounting
        self._import = HostImport(device.handle, device.info, arena.memory, device.compute.family, families)
        self._booked = arena.memory.nbytes
        self._accounting.imported(SLOTS, self._import.heap, self._booked)

    def shared(self) -> SharedBuffer:
        """Return the arena as the rank's command buffers name it."""
        return self._import.shared()

    def view(self, offset: int, nbytes: int) -> Any:
        """Return what the rank wrote at ``offset``."""
        return self._arena.memory.view(offset, nbytes)

    def close(self) -> None:
        """Drop the import."""
        self._import.close()
        booked, self._booked = self._booked, 0
        self._accounting.imported(SLOTS, self._import.heap, booked, -1)
