"""Mapped: a rank whose device cannot import host memory has a mirror of it, and the host copies slots to and fro."""

from __future__ import annotations

from typing import Any

from vkpar.comm.rig.arena import Arena
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.accounting import SLOTS
from vkpar.vulkan.memory.buffer import SharedBuffer
from vkpar.vulkan.memory.hostmemory import host_view
from vkpar.vulkan.memory.memory import Allocator
from vkpar.vulkan.memory.memtypes import READBACK

NAME = "mapped"
COST = "the host copies what ranks send, a core's copy more for each byte"


class MappedTransport:
    """One rank's mirror of the arena, in host-visible memory of its device.

    Attributes:
        mirror: the mirror's host address.

    Raises:
        OutOfMemoryError, UnsupportedError: the device has no such memory, or not enough.
    """

    name = NAME

    def __init__(self, device: LogicalDevice, arena: Arena) -> None:
        # One queue family alone: the buffer changes owners, which none that is shared between families could.
        self._family = device.compute.family
        self._foreign = device.info.features.foreign_queue_family
        self._memory = Allocator(device.handle, device.info, (self._family,), device.accounting)
        self._buffer = self._memory.allocate(arena.memory.nbytes, READBACK, purpose=SLOTS, alone=True)
        self.mirror = self._buffer.mapped
        self.view(0, arena.memory.nbytes)[:] = bytes(arena.memory.nbytes)

    def shared(self) -> SharedBuffer:
        """Return the mirror as the rank's command buffers name it."""
        return SharedBuffer(self._buffer.range(), self._family, self._foreign)

    def view(self, offset: int, nbytes: int) -> Any:
        """Return what the rank wrote at ``offset``."""
        return host_view(self.mirror + offset, nbytes)

    def close(self) -> None:
        """Give the mirror back; nothing that uses it may be pending."""
        self.mirror = 0
        self._memory.close()
