"""Memory that another library has made, imported by file descriptor as a buffer of one device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from vkpar.errors import UnsupportedError
from vkpar.vulkan import api
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.memory import create_buffer
from vkpar.vulkan.memory.memtypes import DEVICE_LOCAL


class FdImport:
    """Memory behind a file descriptor (OPAQUE_FD), as a storage buffer of one device.

    Args:
        device: the VkDevice.
        info: what it is.
        families: the queue families that use it.
        descriptor: the file descriptor, which is the driver's from here on.
        nbytes: all of the memory.

    Raises:
        UnsupportedError: the device imports no such memory.
        VulkanError: the driver refuses.
    """

    def __init__(self, device: Any, info: DeviceInfo, families: Sequence[int], descriptor: int, nbytes: int) -> None:
        vk = self._vk = api.load()
        self._device, self._nbytes = device, nbytes
        with ExitStack() as undo:
            unread = undo.enter_context(ExitStack())
            unread.callback(os.close, descriptor)
            if "VK_KHR_external_memory_fd" not in info.extensions:
                raise UnsupportedError(f"{info.name} lacks VK_KHR_external_memory_fd")
            kind = vk.vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT
            self.buffer = create_buffer(device, info, nbytes, list(families), external=kind)
            undo.callback(vk.destroy, "Buffer", device, self.buffer)
            needs = vk.ffi.new("VkMemoryRequirements*")
            vk.lib.vkGetBufferMemoryRequirements(device, self.buffer, needs)
            number = self._memory_type(info, needs.memoryTypeBits)
            self.heap = info.memory_types[number][1]
            chain = vk.struct("VkImportMemoryFdInfoKHR", handleType=kind, fd=descriptor)
            asked = vk.struct("VkMemoryAllocateInfo", pNext=chain, allocationSize=nbytes, memoryTypeIndex=number)
            made = vk.making("DeviceMemory", device)
            detail = f"import of {nbytes} bytes by file descriptor on {info.name}"
            self._memory = vk.make(made, "vkAllocateMemory", device, asked, vk.ffi.NULL, detail=detail)
            unread.pop_all()  # the driver has taken it
            undo.callback(vk.destroy, "DeviceMemory", device, self._memory)
            vk.check(vk.lib.vkBindBufferMemory(device, self.buffer, self._memory, 0), "vkBindBufferMemory")
            undo.pop_all()

    @staticmethod
    def _memory_type(info: DeviceInfo, allowed: int) -> int:
        for number, (flags, _) in enumerate(info.memory_types):
            if allowed & (1 << number) and flags & DEVICE_LOCAL:
                return number
        raise UnsupportedError(f"{info.name} imports no memory of its own by file descriptor")

    def range(self) -> BufferRange:
        """Return all of it."""
        return BufferRange(self.buffer, 0, self._nbytes)

    def close(self) -> None:
        """Drop the import; nothing that uses it may be pending."""
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            self._vk.destroy("Buffer", self._device, buffer)
            self._vk.destroy("DeviceMemory", self._device, self._memory)
