"""Which type of memory is taken for what: a pure function of what the driver lists.

========  =====================================================================================================
kind      the first of these that the driver has, and among equals the first that it lists
========  =====================================================================================================
device    device-local and not host-visible; device-local; host-visible and coherent; host-visible
upload    device-local, host-visible and coherent, in a heap of more than 256 MiB (resizable BAR); as ``host``
host      host-visible and coherent, not device-local; host-visible and coherent
readback  host-visible, coherent and cached, not device-local; the same, device-local; host-visible and coherent
========  =====================================================================================================

``device`` is for arrays and for copies of the slots, ``upload`` and ``readback`` for the rings through which arrays
are written and read, ``host`` for uploads where that memory is full or not wanted, ``readback`` also for the slots of
a rank that cannot import host memory. Device-local heaps of 256 MiB or less are windows that drivers use themselves.
Types that need a feature which is not enabled (protected, lazily allocated, AMD's device-coherent ones) are never
taken. Full device memory is not replaced by another kind: arrays that silently lie in host memory would be slower by
orders of magnitude.
"""

from __future__ import annotations

from typing import NamedTuple

from vkpar.errors import UnsupportedError
from vkpar.vulkan.machine.physical import DeviceInfo

DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 1, 2, 4, 8
_NEVER = 0x10 | 0x20 | 0x40 | 0x80  # lazily allocated, protected, device-coherent and device-uncached (AMD)
_HOST = HOST_VISIBLE | HOST_COHERENT
_NAMES = {DEVICE_LOCAL: "device-local", HOST_VISIBLE: "host-visible", HOST_COHERENT: "coherent", HOST_CACHED: "cached"}
_WINDOW = 256 << 20  # bytes of the heap that stands for a BAR which was not resized, at most
DEVICE, UPLOAD, HOST, READBACK = "device", "upload", "host", "readback"


class _Wish(NamedTuple):
    flags: int
    without: int = 0
    heap_above: int = -1


_STAGED = (_Wish(_HOST, DEVICE_LOCAL), _Wish(_HOST))
_PREFERENCES = {
    DEVICE: (_Wish(DEVICE_LOCAL, HOST_VISIBLE), _Wish(DEVICE_LOCAL), _Wish(_HOST), _Wish(HOST_VISIBLE)),
    UPLOAD: (_Wish(DEVICE_LOCAL | _HOST, heap_above=_WINDOW), *_STAGED),
    HOST: _STAGED,
    READBACK: (_Wish(_HOST | HOST_CACHED, DEVICE_LOCAL), _Wish(_HOST | HOST_CACHED), _Wish(_HOST)),
}
KINDS = (DEVICE, UPLOAD, READBACK)  # those that are asked for first


def choose(info: DeviceInfo, kind: str, allowed: int = -1) -> int:
    """Return the index of the memory type for ``kind``.

    Args:
        info: the device.
        kind: ``device``, ``upload``, ``host`` or ``readback``.
        allowed: the types that a buffer takes (memoryTypeBits); all by default.

    Raises:
        UnsupportedError: the device has no such memory.
    """
    for wish in _PREFERENCES[kind]:
        for index, (flags, heap) in enumerate(info.memory_types):
            fits = flags & wish.flags == wish.flags and not flags & (wish.without | _NEVER)
            if fits and allowed & (1 << index) and info.heaps[heap].nbytes > wish.heap_above:
                return index
    raise UnsupportedError(f"{info.name} has no {kind} memory")


def heap_of(info: DeviceInfo, kind: str) -> int:
    """Return the index of the heap that memory of ``kind`` comes from; raises as :func:`choose` does."""
    return info.memory_types[choose(info, kind)][1]


def is_mapped(info: DeviceInfo, kind: str, number: int) -> bool:
    """Say whether memory of ``kind`` and of type ``number`` is mapped: arrays only where the host reads them fast."""
    fast = _HOST | HOST_CACHED
    return kind != DEVICE or info.memory_types[number][0] & fast == fast


def describe(info: DeviceInfo, number: int) -> str:
    """Return the type ``number`` in words: its heap and flags."""
    flags, heap = info.memory_types[number]
    return (
        f"type {number} of heap {heap} ({', '.join(name for flag, name in _NAMES.items() if flags & flag) or 'host'})"
    )
