"""The sub-allocator: few VkDeviceMemory blocks, one VkBuffer over each, pieces of them as buffers.

An interrupt may raise an exception between any two steps in Python. One thing therefore says which pieces are in use,
the set of leases, and a piece changes hands by one step: its lease enters that set or leaves it. Free lists and
accounting follow from the set. A flag is raised before a change and lowered after it; a call that finds the flag
raised rebuilds free lists and accounting from the leases and the blocks. It also frees a block that was not finished,
or not quite freed (see :mod:`~vkpar.vulkan.api`): the allocator knows each block from before the driver is asked for
it. Where an interrupt keeps a caller from getting its buffer, the buffer dies with the exception's traceback, as a
dropped buffer does, and its lease tells the allocator.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from vkpar import env, text
from vkpar.errors import DeviceLostError, OutOfMemoryError, UnsupportedError, VulkanError
from vkpar.vulkan import api
from vkpar.vulkan.machine import drivers
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory import memtypes
from vkpar.vulkan.memory.accounting import ARRAYS, LIMITED, Accounting
from vkpar.vulkan.memory.buffer import Buffer, Lease
from vkpar.vulkan.memory.pool import Piece, Pool, Room, padded

_Made = TypeVar("_Made")

_SPENT = object()  # there is no more relief
_LARGEST_USERS = 3  # named where memory runs out


@dataclass(eq=False)
class _Backing:
    """What Vulkan has behind a block.

    Attributes:
        handles: the buffer and its memory, as they are recorded.
        heap: where it lies; ``nbytes`` is what it takes of that, ``type`` the memory's type.
        whole: there is all of it.
    """

    handles: tuple[api.Making, api.Making]
    buffer: Any = None
    mapped: int = 0
    heap: int = 0
    nbytes: int = 0
    type: int = 0
    whole: bool = False


def _no_relief() -> Iterator[None]:
    yield from ()


class Allocator:
    """Hands out pieces of a device's memory; :mod:`~vkpar.vulkan.memory.pool` says which, ``memtypes`` of what kind.

    Args:
        device: the VkDevice.
        info: what the device is.
        families: the queue families that use the buffers.
        accounting: the device's, of which the allocator's is a part; none by default.
        relief: frees what can be spared where memory runs out, and yields whenever there may be room now.
        name: the device's, for messages; the driver's name for it by default.

    Attributes:
        dropped: the leases of buffers that nobody holds any more; they are in use until :meth:`release`.
    """

    def __init__(
        self,
        device: Any,
        info: DeviceInfo,
        families: tuple[int, ...],
        accounting: Accounting | None = None,
        relief: Callable[[], Iterator[None]] = _no_relief,
        name: str = "",
    ) -> None:
        self._vk = api.load()
        self._device = device
        self._info = info
        self._name = name or info.name
        self._families = sorted(set(families))
        self._accounting = Accounting(accounting)
        self._whole_accounting = accounting or self._accounting
        self._relief = relief
        self._pool = Pool(info.memory_bytes, self._new_block, self._destroy, info.limits.max_allocation)
        self._live: set[Lease] = set()
        self.dropped: deque[Lease] = deque()
        self._lock = threading.Lock()
        self._torn = False  # free lists and accounting may not say what the leases do
        self._unfinished: _Backing | None = None  # the newest block's, which may not be in the pool

    @property
    def used(self) -> int:
        """Bytes that its buffers hold, padding included."""
        return sum(lease.reserved for lease in self._live.copy())

    @property
    def trimmable(self) -> int:
        """Bytes of blocks that :meth:`trim` would free."""
        with self._lock:
            self._mend()
            return self._pool.trimmable

    @property
    def ndropped(self) -> int:
        """How many blocks went back to the driver so far."""
        return self._pool.ndropped

    def allocate(
        self,
        nbytes: int,
        kind: str = memtypes.DEVICE,
        *,
        purpose: str,
        label: Callable[[], str] | None = None,
        alone: bool = False,
        total: int | None = None,
        spares: bool = False,
    ) -> Buffer:
        """Return a new buffer, aligned to 256 bytes and padded to a multiple of that.

        Where memory runs out, the empty blocks are freed and it is tried again, at last in a block of its own size;
        then with whatever relief there is.

        Args:
            nbytes: its size.
            kind: ``device``, ``upload`` or ``readback``.
            purpose: what it is booked for, one of those in :mod:`~vkpar.vulkan.memory.accounting`.
            label: says what it holds, for messages.
            alone: give it a block of its own.
            total: bytes of all that it is a part of, for messages.
            spares: ask for no relief, since something else will do.

        Raises:
            UnsupportedError: more than the driver allows in one allocation, or no such memory.
            OutOfMemoryError: no memory is left, or ``VKPAR_MAX_MEMORY`` does not allow so much.
        """
        check_size(self._info, nbytes, padded(nbytes))

        def attempt() -> Buffer:
            return self._hand_out(nbytes, kind, purpose, label, alone)

        return self._relieved(attempt, _no_relief if spares else self._relief, lambda: (total or nbytes, kind, label))

    def check_total(self, nbytes: int, purpose: str = ARRAYS) -> None:
        """Refuse an array that is larger than its memory may be, before any of its sub-buffers is allocated.

        Raises:
            OutOfMemoryError: the heap is smaller, or ``VKPAR_MAX_MEMORY`` does not allow so much.
        """
        heap = self._info.heaps[memtypes.heap_of(self._info, memtypes.DEVICE)]
        if nbytes > heap.nbytes:
            message = (
                f"an array of {nbytes} bytes ({text.units(nbytes)}) does not fit {self._name}: its memory, heap "
                f"{heap.index}, has {heap.nbytes} bytes ({text.units(heap.nbytes)}) in all. Store smaller elements, or "
                "split the array over several devices; vkpar.plan_memory says beforehand what fits"
            )
            raise OutOfMemoryError("VK_ERROR_OUT_OF_DEVICE_MEMORY", "vkAllocateMemory", message=message)

        def attempt() -> None:
            with self._lock:
                self._mend()
                self._check_limit(nbytes, purpose)

        if env.get().max_memory:
            self._relieved(attempt, self._relief, lambda: (nbytes, memtypes.DEVICE, None))

    def _relieved(
        self,
        attempt: Callable[[], _Made],
        relief: Callable[[], Iterator[None]],
        asked: Callable[[], tuple[int, str, Callable[[], str] | None]],
    ) -> _Made:
        """Return what ``attempt`` does, after each measure of ``relief`` once more; say what was ``asked`` in vain."""
        measures = relief()
        while True:
            try:
                return attempt()
            except OutOfMemoryError as error:  # kept no longer: its traceback holds the frames of what asked
                if next(measures, _SPENT) is _SPENT:
                    raise OutOfMemoryError(error.result, error.call, self._state(*asked())) from error

    def _hand_out(self, nbytes: int, kind: str, purpose: str, label: Callable[[], str] | None, alone: bool) -> Buffer:
        reserved = padded(nbytes)
        with self._lock:
            self._mend()
            self._check_limit(reserved, purpose)
            self._torn = True
            piece = self._take(reserved, kind, alone)
            backing: _Backing = piece.block.backing
            mapped = backing.mapped + piece.offset if backing.mapped else 0
            buffer = Buffer(backing.buffer, piece.offset, nbytes, reserved, mapped, piece, purpose, label)
            buffer.lease = Lease(buffer, self.dropped.append)
            self._live.add(buffer.lease)
            self._accounting.buffer(purpose, backing.heap, reserved)
            self._torn = False
        return buffer

    def _mend(self) -> None:
        """Make free lists and accounting anew where the last change did not come to its end; the lock is held."""
        if not self._torn:
            return
        blocks = list(self._pool.blocks())
        if self._unfinished is not None and all(block.backing is not self._unfinished for block in blocks):
            self._free(self._unfinished)
        for block in blocks:
            if not block.backing.whole:
                self._free(block.backing)
        self._pool.restore([lease.piece for lease in self._live], lambda backing: bool(backing.whole))
        self._accounting.clear()
        for block in self._pool.blocks():
            self._accounting.block(block.backing.heap, block.backing.nbytes)
        for lease in self._live:
            self._accounting.buffer(lease.purpose, lease.heap, lease.reserved)
        self._torn = False

    def _check_limit(self, reserved: int, purpose: str) -> None:
        limit = env.get().max_memory
        if limit and purpose in LIMITED and self._whole_accounting.of(*LIMITED) + reserved > limit:
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
        heap = self._whole_accounting.heaps(drivers.read_heaps(self._info))[memtypes.heap_of(self._info, kind)]
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
        for lease in self._live.copy():
            if asking is None or lease.label is not asking:
                user = lease.label or lease.purpose
                users[user] = users.get(user, 0) + lease.nbytes
        return users

    def release(self, given: Buffer | Lease) -> None:
        """Take a buffer back; no pending submission may use it. A second call does nothing."""
        lease = given.lease if isinstance(given, Buffer) else given
        with self._lock:
            self._mend()
            if lease in self._live:
                self._torn = True
                self._live.remove(lease)
                self._accounting.buffer(lease.purpose, lease.heap, lease.reserved, -1)
                self._pool.give(lease.piece)
                self._torn = False

    def trim(self) -> int:
        """Free the empty blocks that are kept for later; return how many bytes they had."""
        with self._lock:
            self._mend()
            self._torn = True
            freed = self._pool.trim()
            self._torn = False
            return freed

    def room(self) -> Room:
        """Return how much is free in the blocks, and in what pieces."""
        with self._lock:
            self._mend()
            return self._pool.room()

    def _new_block(self, nbytes: int, kind: str) -> _Backing:
        vk = self._vk
        made = _Backing((vk.making("Buffer", self._device), vk.making("DeviceMemory", self._device)))
        self._unfinished = made
        try:
            self._fill(made, nbytes, kind)
        except BaseException:
            self._free(made)
            raise
        self._accounting.block(made.heap, made.nbytes)
        return made

    def _fill(self, made: _Backing, nbytes: int, kind: str) -> None:
        vk = self._vk
        made.buffer = create_buffer(self._device, self._info, nbytes, self._families, made=made.handles[0])
        needs = vk.ffi.new("VkMemoryRequirements*")
        vk.lib.vkGetBufferMemoryRequirements(self._device, made.buffer, needs)
        number = memtypes.choose(self._info, kind, needs.memoryTypeBits)
        made.nbytes, made.heap, made.type = int(needs.size), self._info.memory_types[number][1], number
        memory = self._allocate_memory(made.nbytes, number, made.handles[1])
        vk.check(vk.lib.vkBindBufferMemory(self._device, made.buffer, memory, 0), "vkBindBufferMemory")
        made.mapped = self._map(memory, nbytes) if memtypes.is_mapped(self._info, kind, number) else 0
        made.whole = True

    def _allocate_memory(self, nbytes: int, kind: int, made: api.Making) -> Any:
        vk = self._vk
        info = vk.struct("VkMemoryAllocateInfo", allocationSize=nbytes, memoryTypeIndex=kind)
        try:
            return vk.make(made, "vkAllocateMemory", self._device, info, vk.ffi.NULL)
        except (OutOfMemoryError, DeviceLostError):
            raise
        except VulkanError as error:
            raise OutOfMemoryError(error.result, error.call) from error

    def _map(self, memory: Any, nbytes: int) -> int:
        vk = self._vk
        pointer = vk.ffi.new("void**")
        result = vk.lib.vkMapMemory(self._device, memory, 0, nbytes, 0, pointer)
        vk.check(result, "vkMapMemory")
        return vk.address(pointer[0])

    def _destroy(self, backing: _Backing) -> None:
        self._free(backing)
        self._accounting.block(backing.heap, backing.nbytes, -1)

    def _free(self, backing: _Backing) -> None:
        """Free what there is of ``backing``; where that is interrupted, the next call goes on."""
        backing.whole = False
        for made in backing.handles:
            self._vk.discard(made, self._device)

    def close(self) -> None:
        """Free every block; nothing may be pending on the device."""
        with self._lock:
            self._torn = True
            self._live.clear()
            self._mend()
            self._pool.clear()
            self._accounting.clear()


def check_size(info: DeviceInfo, nbytes: int, reserved: int) -> None:
    """Refuse an allocation of ``nbytes``, ``reserved`` with padding, that is larger than the driver allows.

    Raises:
        UnsupportedError: it is larger.
    """
    most = info.limits.max_allocation
    if reserved > most:
        raise UnsupportedError(
            f"{nbytes} bytes asked of {info.name}, whose largest allocation is {most} bytes (maxMemoryAllocationSize)"
        )


def create_buffer(
    device: Any,
    info: DeviceInfo,
    nbytes: int,
    families: list[int],
    *,
    external: int = 0,
    made: api.Making | None = None,
) -> Any:
    """Return a VkBuffer for storage and copies, shared by ``families``; it is recorded as ``made``.

    ``external`` is the type of the handle that its memory is imported by; 0 for memory of the device's own.
    """
    vk = api.load()
    constants = vk.vk
    chain = vk.struct("VkExternalMemoryBufferCreateInfo", handleTypes=external) if external else vk.ffi.NULL
    shared = len(families) > 1
    texels = constants.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT if info.reads_texels else 0
    create = vk.struct(
        "VkBufferCreateInfo",
        pNext=chain,
        size=nbytes,
        usage=constants.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        | constants.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
        | constants.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        | texels,
        sharingMode=constants.VK_SHARING_MODE_CONCURRENT if shared else constants.VK_SHARING_MODE_EXCLUSIVE,
        queueFamilyIndexCount=len(families) if shared else 0,
        pQueueFamilyIndices=families if shared else [],
    )
    return vk.create("Buffer", device, create, made=made)
