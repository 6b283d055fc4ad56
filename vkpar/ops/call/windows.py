"""What kernels bind of arrays, in how many dispatches, by how many work-groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vkpar.arrays.array import Array
from vkpar.errors import UnsupportedError
from vkpar.vulkan.machine.physical import ALIGNMENT

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.memory.buffer import BufferRange

GROUP: Final = 256 * 4  # elements that one work group of an elementwise kernel covers


def writable_in_place(out: Array) -> bool:
    """Tell whether kernels can write ``out``: halves have to begin on a 32-bit word."""
    return out.dtype.itemsize == 4 or out.window(0, 1)[1] % 2 == 0


def fold_groups(device: Device, count: int) -> tuple[int, int, int]:
    """Return a two-dimensional grid of at least ``count`` work groups."""
    width, height, _ = device.limits.max_workgroup_count
    rows = -(-count // width)
    if rows > height:
        raise UnsupportedError(f"{device.info.name}: {count} work groups exceed the device's {width} x {height}")
    return -(-count // rows), rows, 1


def spans(total: int, *operands: tuple[Array, int], pairs: bool) -> Iterator[tuple[int, int]]:
    """Cut ``total`` elements into (start, count) parts that one dispatch covers, with a binding for each operand.

    Args:
        total: how many elements.
        operands: arrays, and which of their elements each begins at.
        pairs: starts are even, since kernels write halves in pairs. Two elements of an array that is read may lie to
            either side of a border between sub-buffers then: :func:`window` copies these.
    """
    start = 0
    while start < total:
        count = min(total - start, *(array.reach(first + start) for array, first in operands))
        if count < total - start:
            count = count // GROUP * GROUP or (max(count // 2, 1) * 2 if pairs else count)
        yield start, count
        start += count


def binding_room(device: Device) -> int:
    """Return how many bytes of an array one binding holds in any case, wherever the array begins."""
    limits = device.limits
    return min(limits.max_storage_buffer_range - ALIGNMENT, limits.max_buffer, limits.max_allocation)


def window(array: Array, start: int, count: int) -> tuple[BufferRange, int]:
    """Return a bindable range over elements, of a copy where they lie to either side of a border."""
    if array.reach(start) >= count:
        return array.window(start, count)
    return array.reshape(-1)[start : start + count].copy().window()
