"""Staged: every rank imports the same host memory (VK_EXT_external_memory_host) and reads and writes it in place."""

from __future__ import annotations

from typing import Any

from vkpar.comm.slots import Arena
from vkpar.vulkan.buffer import SharedBuffer
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory import HostImport

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

    def __init__(self, device: LogicalDevice, arena: Arena) -> None:
        self._arena = arena
        self._import = HostImport(device.handle, device.info, arena.memory, device.compute.family)

    def shared(self) -> SharedBuffer:
        """Return the arena as the rank's command buffers name it."""
        return self._import.shared()

    def view(self, offset: int, nbytes: int) -> Any:
        """Return what the rank wrote at ``offset``."""
        return self._arena.memory.view(offset, nbytes)

    def close(self) -> None:
        """Drop the import."""
        self._import.close()
