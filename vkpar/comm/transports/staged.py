"""Staged: every rank imports the same host memory (VK_EXT_external_memory_host) and reads and writes it in place."""

from __future__ import annotations

from vkpar.comm.slots import Arena
from vkpar.vulkan.buffer import SharedBuffer
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory import HostImport

NAME = "staged"


class StagedTransport:
    """One rank's view of the arena.

    Raises:
        UnsupportedError: the rank's device cannot import host memory.
    """

    name = NAME

    def __init__(self, device: LogicalDevice, arena: Arena) -> None:
        self._import = HostImport(device.handle, device.info, arena.memory, device.compute.family)

    def shared(self) -> SharedBuffer:
        """Return the arena as the rank's command buffers name it."""
        return self._import.shared()

    def close(self) -> None:
        """Drop the import."""
        self._import.close()
