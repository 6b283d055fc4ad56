"""The sub-allocator: few VkDeviceMemory blocks, one VkBuffer over each, first fit inside."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from vkpar.errors import OutOfMemoryError, UnsupportedError
from vkpar.vulkan import api
from vkpar.vulkan.buffer import Buffer, BufferRange, SharedBuffer
from vkpar.vulkan.physical import DeviceInfo

ALIGNMENT = 256  # the largest minStorageBufferOffsetAlignment that Vulkan allows
_BLOCK_BYTES = 64 << 20

DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 1, 2, 4, 8
# Property sets by falling preference; the first one that a memory type has is taken.
_PREFERENCES = {
    "device": ((DEVICE_LOCAL,), ()),
    "upload": ((HOST_VISIBLE, HOST_COHERENT),),
    "readback": ((HOST_VISIBLE, HOST_COHERENT, HOST_CACHED), (HOST_VISIBLE, HOST_COHERENT)),
}


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``number``."""
    return -(-number // multiple) * multiple


@dataclass(eq=False)
class _Block:
    memory: Any
    buffer: Any
    nbytes: int
    purpose: str
    mapped: int
    dedicated: bool
    free: list[tuple[int, int]] = field(default_factory=list)  # (offset, nbytes), by offset, never adjacent

    def take(self, nbytes: int) -> int | None:
        for index, (offset, room) in enumerate(self.free):
            if room >= nbytes:
                self.free[index : index + 1] = [(offset + nbytes, room - nbytes)] if room > nbytes else []
                return offset
        return None

    def give(self, offset: int, nbytes: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self.free, (offset, nbytes)]):
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self.free = merged

    @property
    def empty(self) -> bool:
        return self.free == [(0, self.nbytes)]


class Allocator:
    """Hands out pieces of a device's memory for a purpose: ``device``, ``upload`` or ``readback``.

    Args:
        device: the VkDevice.
        info: what the device is.
        families: the queue families that use the buffers.
    """

    def __init__(self, device: Any, info: DeviceInfo, families: tuple[int, ...]) -> None:
        self._vk = api.load()
        self._device = device
        self._info = info
        self._families = sorted(set(families))
        self._blocks: list[_Block] = []
        self._lock = threading.Lock()
        self.used = 0

    def allocate(self, nbytes: int, purpose: str = "device", *, alone: bool = False) -> Buffer:
        """Return a new buffer, aligned to 256 bytes and padded to a multiple of 16 or more.

        Args:
            nbytes: its size.
            purpose: ``device``, ``upload`` or ``readback``.
            alone: give it a block of its own.

        Raises:
            UnsupportedError: more than the driver allows in one allocation.
            OutOfMemoryError: no memory is left.
        """
        reserved = round_up(max(nbytes, 1), ALIGNMENT)
        if reserved > self._info.limits.max_allocation:
            raise UnsupportedError(
                f"{nbytes} bytes asked of {self._info.name}, whose largest allocation is "
                f"{self._info.limits.max_allocation} bytes (maxMemoryAllocationSize)"
            )
        with self._lock:
            block, offset = self._place(reserved, purpose, alone)
            self.used += reserved
        mapped = block.mapped + offset if block.mapped else 0
        return Buffer(block.buffer, offset, nbytes, reserved, mapped, block)

    def release(self, buffer: Buffer) -> None:
        """Take a buffer back; no pending submission may use it."""
        with self._lock:
            block: _Block = buffer.block
            block.give(buffer.offset, buffer.reserved)
            self.used -= buffer.reserved
            if block.empty and (block.dedicated or self._has_other_empty(block)):
                self._blocks.remove(block)
                self._destroy(block)

    def _has_other_empty(self, block: _Block) -> bool:
        return any(b is not block and b.empty and b.purpose == block.purpose for b in self._blocks)

    def _place(self, nbytes: int, purpose: str, alone: bool) -> tuple[_Block, int]:
        for block in [] if alone else self._blocks:
            if block.purpose == purpose and not block.dedicated:
                offset = block.take(nbytes)
                if offset is not None:
                    return block, offset
        dedicated = alone or nbytes > self._block_bytes() // 2
        block = self._new_block(nbytes if dedicated else self._block_bytes(), purpose, dedicated)
        self._blocks.append(block)
        offset = block.take(nbytes)
        assert offset is not None
        return block, offset

    def _block_bytes(self) -> int:
        share = self._info.memory_bytes // 16 or _BLOCK_BYTES
        return min(_BLOCK_BYTES, max(share // ALIGNMENT * ALIGNMENT, 1 << 20))

    def _new_block(self, nbytes: int, purpose: str, dedicated: bool) -> _Block:
        vk = self._vk
        with ExitStack() as undo:
            buffer = create_buffer(self._device, self._info, nbytes, self._families)
            undo.callback(vk.destroy, "Buffer", self._device, buffer)
            needs = vk.ffi.new("VkMemoryRequirements*")
            vk.lib.vkGetBufferMemoryRequirements(self._device, buffer, needs)
            kind = self._memory_type(needs.memoryTypeBits, purpose)
            memory = self._allocate_memory(int(needs.size), kind)
            undo.callback(free_memory, self._device, memory)
            vk.check(vk.lib.vkBindBufferMemory(self._device, buffer, memory, 0), "vkBindBufferMemory")
            mapped = 0 if purpose == "device" else self._map(memory, nbytes)
            undo.pop_all()
        return _Block(memory, buffer, nbytes, purpose, mapped, dedicated, [(0, nbytes)])

    def _allocate_memory(self, nbytes: int, kind: int) -> Any:
        vk = self._vk
        made = vk.ffi.new("VkDeviceMemory*")
        info = vk.struct("VkMemoryAllocateInfo", allocationSize=nbytes, memoryTypeIndex=kind)
        result = vk.lib.vkAllocateMemory(self._device, info, vk.ffi.NULL, made)
        if result < 0:
            heap = self._info.heaps[self._info.memory_types[kind][1]]
            detail = (
                f"{nbytes} bytes on {self._info.name}, heap {heap.index} of {heap.nbytes} bytes; "
                f"{self.used} bytes in use by this device's arrays"
            )
            error = vk.error(result, "vkAllocateMemory", detail)
            raise error if isinstance(error, OutOfMemoryError) else OutOfMemoryError(error.result, error.call, detail)
        vk.count("DeviceMemory", 1)
        return made[0]

    def _memory_type(self, allowed: int, purpose: str) -> int:
        for wanted in _PREFERENCES[purpose]:
            mask = sum(wanted)
            for index, (flags, _) in enumerate(self._info.memory_types):
                if allowed & (1 << index) and flags & mask == mask:
                    return index
        raise UnsupportedError(f"{self._info.name} has no {purpose} memory")

    def _map(self, memory: Any, nbytes: int) -> int:
        vk = self._vk
        pointer = vk.ffi.new("void**")
        result = vk.lib.vkMapMemory(self._device, memory, 0, nbytes, 0, pointer)
        vk.check(result, "vkMapMemory")
        return vk.address(pointer[0])

    def _destroy(self, block: _Block) -> None:
        self._vk.destroy("Buffer", self._device, block.buffer)
        free_memory(self._device, block.memory)

    def close(self) -> None:
        """Free every block; nothing may be pending on the device."""
        with self._lock:
            while self._blocks:
                self._destroy(self._blocks.pop())
            self.used = 0


def create_buffer(device: Any, info: DeviceInfo, nbytes: int, families: list[int], *, host_import: bool = False) -> Any:
    """Return a VkBuffer for storage and copies, shared by ``families``."""
    vk = api.load()
    constants = vk.vk
    external = vk.ffi.NULL
    if host_import:
        handle_type = constants.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
        external = vk.struct("VkExternalMemoryBufferCreateInfo", handleTypes=handle_type)
    shared = len(families) > 1
    texels = constants.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT if info.reads_texels else 0
    create = vk.struct(
        "VkBufferCreateInfo",
        pNext=external,
        size=nbytes,
        usage=constants.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        | constants.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
        | constants.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        | texels,
        sharingMode=constants.VK_SHARING_MODE_CONCURRENT if shared else constants.VK_SHARING_MODE_EXCLUSIVE,
        queueFamilyIndexCount=len(families) if shared else 0,
        pQueueFamilyIndices=families if shared else [],
    )
    return vk.create("Buffer", device, create)


def free_memory(device: Any, memory: Any) -> None:
    """Free a VkDeviceMemory."""
    vk = api.load()
    vk.lib.vkFreeMemory(device, memory, vk.ffi.NULL)
    vk.count("DeviceMemory", -1)


def host_view(address: int, nbytes: int) -> Any:
    """Return a writable cffi buffer over ``nbytes`` of host memory."""
    ffi = api.load().ffi
    return ffi.buffer(ffi.cast("char*", address), nbytes)


class HostArena:
    """Private anonymous host memory that several devices import.

    Attributes:
        nbytes: its size, a multiple of the alignment asked for.
        address: the host address, aligned likewise.
    """

    def __init__(self, nbytes: int, alignment: int) -> None:
        alignment = max(alignment, mmap.PAGESIZE)
        self.nbytes = round_up(nbytes, alignment)
        self._map: mmap.mmap | None = mmap.mmap(
            -1, self.nbytes + alignment - mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
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
        """Unmap it; every import must be closed before."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def forget(self) -> None:
        """Never unmap it: in a forked child it is not there, and other memory may have taken its place."""
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
    """Host memory as queue family ``family`` of one device sees it, and ``others`` that copy to and from it.

    Raises:
        UnsupportedError: the driver cannot import this memory as a storage buffer.
    """

    def __init__(
        self,
        device: Any,
        info: DeviceInfo,
        arena: HostArena | HostBlock,
        family: int,
        others: Collection[int] = (),
    ) -> None:
        vk = self._vk = api.load()
        self._device = device
        self._family = family
        self._foreign = info.features.foreign_queue_family
        self._arena = arena
        if not info.features.host_import:
            raise UnsupportedError(f"{info.name} lacks VK_EXT_external_memory_host")
        # Where it changes owners, each batch takes what it uses from the foreign family, whichever had it before.
        families = [family] if self._foreign else sorted({family, *others})
        with ExitStack() as undo:
            self.buffer = create_buffer(device, info, arena.nbytes, families, host_import=True)
            undo.callback(vk.destroy, "Buffer", device, self.buffer)
            self._memory = self._import(info)
            undo.callback(free_memory, device, self._memory)
            vk.check(vk.lib.vkBindBufferMemory(device, self.buffer, self._memory, 0), "vkBindBufferMemory")
            undo.pop_all()

    def _import(self, info: DeviceInfo) -> Any:
        vk = self._vk
        pointer = vk.ffi.cast("void*", self._arena.address)
        handle_type = vk.vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
        kind = self._memory_type(info, pointer, handle_type)
        chain = vk.struct("VkImportMemoryHostPointerInfoEXT", handleType=handle_type, pHostPointer=pointer)
        allocate = vk.struct(
            "VkMemoryAllocateInfo", pNext=chain, allocationSize=self._arena.nbytes, memoryTypeIndex=kind
        )
        made = vk.ffi.new("VkDeviceMemory*")
        detail = f"import of {self._arena.nbytes} bytes of host memory on {info.name}"
        vk.check(vk.lib.vkAllocateMemory(self._device, allocate, vk.ffi.NULL, made), "vkAllocateMemory", detail)
        vk.count("DeviceMemory", 1)
        return made[0]

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
            free_memory(self._device, self._memory)
