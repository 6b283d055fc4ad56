"""Own slots: a rank's copies of the staging slots in its device's memory, which is faster than the host's."""

from __future__ import annotations

from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.accounting import SLOTS
from vkpar.vulkan.memory.buffer import Buffer, SharedBuffer


class OwnSlots:
    """One rank's copies of all slots, laid out as the arena is. The queues of the device share them.

    Raises:
        OutOfMemoryError: the device has no room for them.
    """

    def __init__(self, device: LogicalDevice, nbytes: int) -> None:
        self._device = device
        self._buffer: Buffer | None = device.allocate(nbytes, purpose=SLOTS)

    def shared(self) -> SharedBuffer:
        """Return them as the rank's command buffers name them; nobody else sees them."""
        assert self._buffer is not None
        return SharedBuffer(self._buffer.range(), self._device.compute.family, foreign=False)

    def close(self) -> None:
        """Give the memory back; nothing that uses it may be pending."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._device.allocator.release(buffer)
