"""Host memory that devices import: the memory itself, views of it, and an import on one device."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkpar.errors import OutOfMemoryError, UnsupportedError, within_limits
from vkpar.vulkan import api
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory.buffer import BufferRange, SharedBuffer
from vkpar.vulkan.memory.memory import create_buffer
from vkpar.vulkan.memory.memtypes import HOST_CACHED, HOST_COHERENT, HOST_VISIBLE
from vkpar.vulkan.memory.pool import round_up


def host_view(address: int, nbytes: int) -> Any:
    """Return a writable cffi buffer over ``nbytes`` of host memory."""
    ffi = api.load().ffi
    return ffi.buffer(ffi.cast("char*", address), nbytes)


def host_bytes(address: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return ``nbytes`` of host memory as a writable NumPy array."""
    return np.frombuffer(host_view(address, nbytes), np.uint8)


class HostArena:
    """Private anonymous host memory that several devices import.

    Attributes:
        nbytes: its size, a multiple of the alignment asked for.
        address: the host address, aligned likewise.

    Raises:
        OutOfMemoryError: the system has no such memory.
    """

    def __init__(self, nbytes: int, alignment: int) -> None:
        alignment = max(alignment, mmap.PAGESIZE)
        self.nbytes = round_up(nbytes, alignment)
        size, flags = self.nbytes + alignment - mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map: mmap.mmap | None = None
        try:
            with within_limits(f"{nbytes} bytes of host memory"):
                self._map = mmap.mmap(-1, size, flags=flags)
        except OverflowError as error:
            raise OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", "mmap", f"{nbytes} bytes: {error}") from error
        # After a fork the child must not share pages that devices write.
        self._map.madvise(mmap.MADV_DONTFORK)
        ffi = api.load().ffi
        base = api.load().address(ffi.from_buffer(self._map))
        self.address = round_up(base, alignment)
        _arenas.add(self)

    def view(self, offset: int, nbytes: int) -> Any:
        """Return a writable cffi buffer over ``nbytes`` from ``offset``."""
        return host_view(self.address + offset, nbytes)

    def close(self) -> None:
        """Unmap the memory; every import must be closed before."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def forget(self) -> None:
        """Never unmap the memory: a forked child has other memory in its place."""
        if self._map is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))
            self._map = None


_arenas: weakref.WeakSet[HostArena] = weakref.WeakSet()


def _forget_arenas() -> None:
    for arena in list(_arenas):
        arena.forget()


os.register_at_fork(after_in_child=_forget_arenas)


@dataclass(frozen=True)
class HostBlock:
    """``nbytes`` of host memory from ``address``, which ``owner`` keeps alive."""

    address: int
    nbytes: int
    owner: Any = field(repr=False)


class HostImport:
    """Host memory, imported by one device.

    Raises:
        UnsupportedError: the driver cannot import this memory as a storage buffer.
    """

    def __init__(
        self, device: Any, info: DeviceInfo, arena: HostArena | HostBlock, family: int, others: Collection[int] = ()
    ) -> None:
        vk = self._vk = api.load()
        self._device = device
        self._family = family
        self._foreign = info.features.foreign_queue_family
        self._arena = arena
        if not info.features.host_import:
            raise UnsupportedError(f"{info.name} lacks VK_EXT_external_memory_host")
        # Where the buffer changes owners, each batch acquires it from the foreign family, whoever had it before.
        families = [family] if self._foreign else sorted({family, *others})
        with ExitStack() as undo:
            kind = vk.vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
            self.buffer = create_buffer(device, info, arena.nbytes, families, external=kind)
            undo.callback(vk.destroy, "Buffer", device, self.buffer)
            self._memory = self._import(info)
            undo.callback(vk.destroy, "DeviceMemory", device, self._memory)
            vk.check(vk.lib.vkBindBufferMemory(device, self.buffer, self._memory, 0), "vkBindBufferMemory")
            undo.pop_all()

    def _import(self, info: DeviceInfo) -> Any:
        vk = self._vk
        pointer = vk.ffi.cast("void*", self._arena.address)
        handle_type = vk.vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
        kind = self._memory_type(info, pointer, handle_type)
        self.heap = info.memory_types[kind][1]
        chain = vk.struct("VkImportMemoryHostPointerInfoEXT", handleType=handle_type, pHostPointer=pointer)
        allocate = vk.struct(
            "VkMemoryAllocateInfo", pNext=chain, allocationSize=self._arena.nbytes, memoryTypeIndex=kind
        )
        made = vk.making("DeviceMemory", self._device)
        detail = f"import of {self._arena.nbytes} bytes of host memory on {info.name}"
        return vk.make(made, "vkAllocateMemory", self._device, allocate, vk.ffi.NULL, detail=detail)

    def _memory_type(self, info: DeviceInfo, pointer: Any, handle_type: int) -> int:
        vk = self._vk
        properties = vk.struct("VkMemoryHostPointerPropertiesEXT")
        function = vk.device_function(self._device, "vkGetMemoryHostPointerPropertiesEXT")
        result = function(self._device, handle_type, pointer, properties)
        vk.check(result, "vkGetMemoryHostPointerPropertiesEXT", info.name)
        needs = vk.ffi.new("VkMemoryRequirements*")
        vk.lib.vkGetBufferMemoryRequirements(self._device, self.buffer, needs)
        allowed = needs.memoryTypeBits & properties.memoryTypeBits
        for wanted in (HOST_VISIBLE | HOST_COHERENT | HOST_CACHED, HOST_VISIBLE | HOST_COHERENT):
            for index, (flags, _) in enumerate(info.memory_types):
                if allowed & (1 << index) and flags & wanted == wanted:
                    return index
        raise UnsupportedError(f"{info.name} cannot import host memory as coherent storage")

    def shared(self) -> SharedBuffer:
        """Return all of it as command buffers name it."""
        return SharedBuffer(BufferRange(self.buffer, 0, self._arena.nbytes), self._family, self._foreign)

    def close(self) -> None:
        """Drop the import; nothing that uses it may be pending."""
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            self._vk.destroy("Buffer", self._device, buffer)
            self._vk.destroy("DeviceMemory", self._device, self._memory)
