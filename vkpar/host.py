"""Makes arrays of host memory that NumPy and devices share, and takes elements from other libraries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.arrays.dlpack import imported
from vkpar.arrays.host import HostArray, HostMemory
from vkpar.arrays.shape import dimensions
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan.memory.hostmemory import HostArena, HostBlock
from vkpar.vulkan.memory.memory import check_size
from vkpar.vulkan.memory.pool import round_up


def host_array(shape: int | Sequence[int], dtype: object, devices: Device | Iterable[Device]) -> HostArray:
    """Return a new array of zeros in host memory that NumPy and all ``devices`` share.

    The memory is private, page-aligned and not there in forked children; drivers pin it as long as it is imported.

    Args:
        shape: its dimensions, 0 included.
        dtype: what ``np.dtype`` takes, or ``"bfloat16"``.
        devices: opened devices, at least one.

    Raises:
        InvalidUsageError: no shape, dtype or opened device.
        UnsupportedError: a device whose driver cannot import host memory, or not so much; the message names it.
        OutOfMemoryError: no memory is left.

    Examples:
        >>> with vkpar.host_array((2,), "float32", [device]) as h:
        ...     h.numpy()[:] = 3
        ...     device.array(h).tolist()
        [3.0, 3.0]
    """
    dims, kind = dimensions(shape), dtypes.resolve(dtype)
    opened = _opened(devices)
    nbytes = math.prod(dims) * kind.itemsize
    alignment = _alignment(opened)
    for device in opened:
        check_size(device.info, nbytes, round_up(nbytes, alignment))
    block = _allocate(nbytes, alignment) if nbytes else _nothing()
    return HostArray(HostMemory(block, dims, kind, opened), dims, kind, opened)


def register_host(array: np.ndarray[Any, Any], devices: Device | Iterable[Device]) -> HostArray:
    """Let ``devices`` import the memory of a NumPy array that exists already, and keep it alive.

    Its address and length in bytes must be multiples of what the drivers ask for, mostly 4096. After a fork the child
    has the memory, too; a write of either side may then part the two, as for any private memory.

    Args:
        array: writable and C-contiguous, of plain numbers in native byte order.
        devices: opened devices, at least one.

    Raises:
        InvalidUsageError: an array that is not like that; the message names the alignment and what is over.
        UnsupportedError: a device whose driver cannot import host memory, or not this; the message names it.
        OutOfMemoryError: a driver cannot pin so much.

    Examples:
        >>> import mmap
        >>> page = np.frombuffer(mmap.mmap(-1, 1 << 16), np.float32)  # begins and ends at a page's border
        >>> with vkpar.register_host(page, [device]) as h:
        ...     page[:3] = [1, 2, 3]
        ...     device.array(h).sum().item()
        6.0
    """
    if not isinstance(array, np.ndarray):
        raise InvalidUsageError(f"cannot register a {type(array).__name__}; it takes a NumPy array")
    kind = dtypes.resolve(array.dtype)
    if array.dtype != kind.numpy:
        raise InvalidUsageError(f"cannot register {array.dtype}: it is not in native byte order")
    if not array.flags.writeable:
        raise InvalidUsageError("cannot register a read-only array")
    if not array.flags.c_contiguous:
        raise InvalidUsageError("cannot register an array that is not C-contiguous")
    opened = _opened(devices)
    alignment = _alignment(opened)
    address = array.__array_interface__["data"][0]
    if array.nbytes and (address % alignment or array.nbytes % alignment):
        raise InvalidUsageError(
            f"address and length must be multiples of {alignment} bytes (minImportedHostPointerAlignment): the address "
            f"0x{address:x} is {address % alignment} bytes past one, the length {array.nbytes} is "
            f"{array.nbytes % alignment} past one; vkpar.host_array makes memory that is aligned so"
        )
    for device in opened:
        check_size(device.info, array.nbytes, array.nbytes)
    block = HostBlock(address, array.nbytes, array) if array.nbytes else _nothing()
    return HostArray(HostMemory(block, array.shape, kind, opened), array.shape, kind, opened)


def _opened(devices: Device | Iterable[Device]) -> list[Device]:
    """Return the devices, each once, checked to be open and able to import host memory."""
    found = list(devices) if isinstance(devices, Iterable) else [devices]
    for device in found:
        if not isinstance(device, Device):
            raise InvalidUsageError(f"expected an opened vkpar.Device, not {type(device).__name__}")
        if not device.logical.info.features.host_import:
            raise UnsupportedError(f"{device} cannot import host memory (VK_EXT_external_memory_host)")
    if not found:
        raise InvalidUsageError("name at least one opened device")
    return list(dict.fromkeys(found))


def _alignment(devices: list[Device]) -> int:
    return max(1, *(device.limits.host_import_alignment for device in devices))


def _allocate(nbytes: int, alignment: int) -> HostBlock:
    arena = HostArena(nbytes, alignment)
    return HostBlock(arena.address, arena.nbytes, arena)


def _nothing() -> HostBlock:
    """Return an address without bytes."""
    owner = np.empty(1, np.complex128)
    return HostBlock(owner.__array_interface__["data"][0], 0, owner)


def from_dlpack(x: Any, device: Device) -> Array:
    """Return a new array on ``device`` with a copy of the elements of another library's array.

    Args:
        x: what has ``__dlpack__`` and ``__dlpack_device__`` and lies in host memory, such as a NumPy array, a torch
            tensor on the CPU or a :class:`HostArray`; a DLPack capsule that nobody has used. Any strides, bfloat16 too.
        device: an opened device.

    Raises:
        InvalidUsageError: not an exporter, or a capsule that was used already; a closed device.
        DLPackError: elements on another device than the host, or of a dtype that NumPy and vkpar do not have.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> vkpar.from_dlpack(np.eye(2, dtype=np.float32), device).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if not isinstance(device, Device):
        raise InvalidUsageError(f"expected an opened vkpar.Device, not {type(device).__name__}")
    device.logical.check_open()
    if isinstance(x, HostArray) or (isinstance(x, np.ndarray) and dtypes.bfloat16 == x.dtype):  # NumPy exports none
        return device.array(x)
    return device.array(imported(x))
