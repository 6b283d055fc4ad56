"""The sub-allocator: few VkDeviceMemory blocks, one VkBuffer over each, pieces of them as buffers."""

from __future__ import annotations

import ctypes
import heapq
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vkpar import env, text
from vkpar.errors import DeviceLostError, OutOfMemoryError, UnsupportedError
from vkpar.vulkan import api, physical
from vkpar.vulkan.memory import memtypes
from vkpar.vulkan.memory.accounting import ARRAYS, Books
from vkpar.vulkan.memory.buffer import Buffer, BufferRange, SharedBuffer
from vkpar.vulkan.memory.memtypes import HOST_CACHED, HOST_COHERENT, HOST_VISIBLE
from vkpar.vulkan.memory.pool import Piece, Pool, Room, padded, round_up
from vkpar.vulkan.physical import DeviceInfo

_LARGEST_USERS = 3  # named where memory runs out


class _Backing(NamedTuple):
    """What Vulkan has behind a block; ``nbytes`` is what it takes of the heap, ``type`` the memory's type."""

    memory: Any
    buffer: Any
    mapped: int
    heap: int
    nbytes: int
    type: int


class Allocator:
    """Hands out pieces of a device's memory; :mod:`~vkpar.vulkan.memory.pool` says which, ``memtypes`` of what kind.

    Args:
        device: the VkDevice.
        info: what the device is.
        families: the queue families that use the buffers.
        books: where everything is booked; its own by default.
        name: the device's, for messages; the driver's name for it by default.
    """

    def __init__(
        self, device: Any, info: DeviceInfo, families: tuple[int, ...], books: Books | None = None, name: str = ""
    ) -> None:
        self._vk = api.load()
        self._device = device
        self._info = info
        self._name = name or info.name
        self._families = sorted(set(families))
        self._books = books or Books()
        self._pool = Pool(info.memory_bytes, self._new_block, self._destroy, info.limits.max_allocation)
        self._live: set[Buffer] = set()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that its buffers hold, padding included."""
        with self._lock:
            return sum(buffer.reserved for buffer in self._live)

    @property
    def trimmable(self) -> int:
        """Bytes of blocks that :meth:`trim` would free."""
        return self._pool.trimmable

    def allocate(
        self,
        nbytes: int,
        kind: str = memtypes.DEVICE,
        *,
        purpose: str,
        label: Callable[[], str] | None = None,
        alone: bool = False,
        total: int | None = None,
    ) -> Buffer:
        """Return a new buffer, aligned to 256 bytes and padded to a multiple of that.

        Where memory runs out, the empty blocks are freed and it is tried again, at last in a block of its own size.

        Args:
            nbytes: its size.
            kind: ``device``, ``upload`` or ``readback``.
            purpose: what it is booked for: ``arrays``, ``staging`` or ``slots``.
            label: says what it holds, for messages.
            alone: give it a block of its own.
            total: bytes of all that it is a part of, for messages.

        Raises:
            UnsupportedError: more than the driver allows in one allocation, or no such memory.
            OutOfMemoryError: no memory is left, or ``VKPAR_MAX_MEMORY`` does not allow so much.
        """
        reserved = padded(nbytes)
        check_size(self._info, nbytes, reserved)
        try:
            with self._lock:
                self._check_limit(reserved, purpose)
                piece = self._take(reserved, kind, alone)
                backing: _Backing = piece.block.backing
                mapped = backing.mapped + piece.offset if backing.mapped else 0
                buffer = Buffer(backing.buffer, piece.offset, nbytes, reserved, mapped, piece, purpose, label)
                self._live.add(buffer)
                self._books.buffer(purpose, backing.heap, reserved)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(error.result, error.call, self._state(total or nbytes, kind, label)) from error
        return buffer

    def check_total(self, nbytes: int) -> None:
        """Refuse memory for an array that is more than the heap has, before any of its sub-buffers is allocated.

        Raises:
            OutOfMemoryError
        """
        heap = self._info.heaps[memtypes.heap_of(self._info, memtypes.DEVICE)]
        if nbytes > heap.nbytes:
            message = (
                f"an array of {nbytes} bytes ({text.units(nbytes)}) does not fit {self._name}: its memory, heap "
                f"{heap.index}, has {heap.nbytes} bytes ({text.units(heap.nbytes)}) in all. Store smaller elements, or "
                "split the array over several devices; vkpar.plan_memory says beforehand what fits"
            )
            raise OutOfMemoryError("VK_ERROR_OUT_OF_DEVICE_MEMORY", "vkAllocateMemory", message=message)
        try:
            with self._lock:
                self._check_limit(nbytes, ARRAYS)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(error.result, error.call, self._state(nbytes, memtypes.DEVICE)) from error

    def _check_limit(self, reserved: int, purpose: str) -> None:
        limit = env.get().max_memory
        if limit and purpose == ARRAYS and self._books.of(ARRAYS) + reserved > limit:
            raise OutOfMemoryError("VK_ERROR_OUT_OF_DEVICE_MEMORY", f"an allocation within VKPAR_MAX_MEMORY={limit}")

    def _take(self, reserved: int, kind: str, alone: bool) -> Piece:
        try:
            return self._pool.take(reserved, kind, alone=alone)
        except OutOfMemoryError:
            self._pool.trim()
            try:
                return self._pool.take(reserved, kind, alone=alone)
            except OutOfMemoryError:
                if alone:
                    raise
            return self._pool.take(reserved, kind, alone=True)

    def _state(self, nbytes: int, kind: str, asking: Callable[[], str] | None = None) -> str:
        """Say what was asked for, which ``asking`` labels, and what there is, for the error that nothing is left."""
        heap = self._books.heaps(physical.read_heaps(self._info))[memtypes.heap_of(self._info, kind)]
        budget = "no budget known" if heap.budget is None else f"a budget of {heap.budget}"
        largest = heapq.nlargest(_LARGEST_USERS, self._users(asking).items(), key=lambda user: user[1])
        named = "; ".join(f"{name() if callable(name) else name}: {held} bytes" for name, held in largest)
        return (
            f"{nbytes} bytes asked of {self._name}; heap {heap.index} has {heap.total} bytes and {budget}, of "
            f"which this device uses {heap.used} and keeps {heap.cached} free in its blocks; "
            f"largest users: {named or 'none'}"
        )

    def _users(self, asking: Callable[[], str] | None) -> dict[Callable[[], str] | str, int]:
        """Return the bytes of everything but what ``asking`` labels; the buffers of an array share a label."""
        users: dict[Callable[[], str] | str, int] = {}
        with self._lock:
            for buffer in self._live:
                if asking is None or buffer.label is not asking:
                    user = buffer.label or buffer.purpose
                    users[user] = users.get(user, 0) + buffer.nbytes
        return users

    def release(self, buffer: Buffer) -> None:
        """Take a buffer back; no pending submission may use it. A second call does nothing."""
        with self._lock:
            if buffer in self._live:
                self._live.remove(buffer)
                self._books.buffer(buffer.purpose, buffer.piece.block.backing.heap, buffer.reserved, -1)
                self._pool.give(buffer.piece)

    def trim(self) -> int:
        """Free the empty blocks that are kept for later; return how many bytes they had."""
        with self._lock:
            return self._pool.trim()

    def room(self) -> Room:
        """Return how much is free in the blocks, and in what pieces."""
        with self._lock:
            return self._pool.room()

    def _new_block(self, nbytes: int, kind: str) -> _Backing:
        vk = self._vk
        with ExitStack() as undo:
            buffer = create_buffer(self._device, self._info, nbytes, self._families)
            undo.callback(vk.destroy, "Buffer", self._device, buffer)
            needs = vk.ffi.new("VkMemoryRequirements*")
            vk.lib.vkGetBufferMemoryRequirements(self._device, buffer, needs)
            number = memtypes.choose(self._info, kind, needs.memoryTypeBits)
            memory = self._allocate_memory(int(needs.size), number)
            undo.callback(free_memory, self._device, memory)
            vk.check(vk.lib.vkBindBufferMemory(self._device, buffer, memory, 0), "vkBindBufferMemory")
            mapped = self._map(memory, nbytes) if memtypes.is_mapped(self._info, kind, number) else 0
            undo.pop_all()
        made = _Backing(memory, buffer, mapped, self._info.memory_types[number][1], int(needs.size), number)
        self._books.block(made.heap, made.nbytes)
        return made

    def _allocate_memory(self, nbytes: int, kind: int) -> Any:
        vk = self._vk
        made = vk.ffi.new("VkDeviceMemory*")
        info = vk.struct("VkMemoryAllocateInfo", allocationSize=nbytes, memoryTypeIndex=kind)
        result = vk.lib.vkAllocateMemory(self._device, info, vk.ffi.NULL, made)
        if result < 0:
            error = vk.error(result, "vkAllocateMemory")
            known = isinstance(error, (OutOfMemoryError, DeviceLostError))
            raise error if known else OutOfMemoryError(error.result, error.call)
        vk.count("DeviceMemory", 1)
        return made[0]

    def _map(self, memory: Any, nbytes: int) -> int:
        vk = self._vk
        pointer = vk.ffi.new("void**")
        result = vk.lib.vkMapMemory(self._device, memory, 0, nbytes, 0, pointer)
        vk.check(result, "vkMapMemory")
        return vk.address(pointer[0])

    def _destroy(self, backing: _Backing) -> None:
        self._vk.destroy("Buffer", self._device, backing.buffer)
        free_memory(self._device, backing.memory)
        self._books.block(backing.heap, backing.nbytes, -1)

    def close(self) -> None:
        """Free every block; nothing may be pending on the device."""
        with self._lock:
            for buffer in self._live:
                self._books.buffer(buffer.purpose, buffer.piece.block.backing.heap, buffer.reserved, -1)
            self._live.clear()
            self._pool.clear()


def check_size(info: DeviceInfo, nbytes: int, reserved: int) -> None:
    """Refuse ``nbytes`` that take ``reserved`` bytes, more than the driver allows in one allocation.

    Raises:
        UnsupportedError
    """
    most = info.limits.max_allocation
    if reserved > most:
        raise UnsupportedError(
            f"{nbytes} bytes asked of {info.name}, whose largest allocation is {most} bytes (maxMemoryAllocationSize)"
        )


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


def host_bytes(address: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return ``nbytes`` of host memory as a writable NumPy array."""
    return np.frombuffer(host_view(address, nbytes), np.uint8)


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
        self.heap = info.memory_types[kind][1]
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
