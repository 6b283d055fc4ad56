"""Arrays in pieces that a kernel can bind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vkpar.arrays.array import Array, check_same_device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.kernels.binding import can_begin
from vkpar.kernels.kernel import Kernel

_PIECE = 256  # elements: at multiples every device can bind, if it can at the array's own begin


def pieces(*arrays: Array, kernel: Kernel | None = None) -> Iterator[tuple[Array, ...]]:
    """Cut arrays of one size into flat views that kernels can bind, all at the same elements.

    An array of more bytes than the device has in one buffer, or binds at once, cannot be given to a :class:`Kernel`
    whole. What works element by element runs on the pieces instead::

        for x, y in vkpar.pieces(a, b, kernel=kernel):
            kernel(x, y, elements=x.size)

    Args:
        arrays: of the same size, on one device; arrays that can be bound as they are come in one piece.
        kernel: cut so that ``elements=`` of each piece takes no more work-groups in x than the device starts in a call
            of this kernel. Without one, that is left to whoever counts the groups.

    Raises:
        InvalidUsageError: other sizes, arrays of several devices, or closed ones.
        UnsupportedError: views that no cut suits: a buffer of one ends where another cannot be bound.

    Examples:
        >>> [len(part) for (part,) in vkpar.pieces(device.zeros(1000))]
        [1000]
    """
    check_same_device(*arrays)
    for array in arrays:
        array.check_free()
    total = arrays[0].size if arrays else 0
    if any(array.size != total for array in arrays):
        raise InvalidUsageError(f"pieces of arrays of different sizes: {', '.join(str(a.size) for a in arrays)}")
    for number, array in enumerate(arrays):
        array.check_contiguous(f"array {number} of pieces()")
    flat = [array.reshape(-1) for array in arrays]
    most = total
    if kernel is not None and arrays:
        most = kernel.local_size[0] * arrays[0].device.limits.max_workgroup_count[0]
    return iter([tuple(array[start:stop] for array in flat) for start, stop in _cuts(flat, total, most)])


def _cuts(arrays: Sequence[Array], total: int, most: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < total:
        count = min(most, *(_bindable(array, start) for array in arrays))
        if count < total - start and not all(can_begin(array, start + count) for array in arrays):
            count = count // _PIECE * _PIECE
        if not count:
            raise UnsupportedError(
                f"no piece from element {start} on suits all of {', '.join(map(repr, arrays))}: a sub-buffer of one "
                "ends where another cannot be bound; take view.copy() of those that are views"
            )
        yield start, start + count
        start += count


def _bindable(array: Array, start: int) -> int:
    """Return how many elements from ``start`` on a kernel can bind."""
    room = array.memory.reach(array.byte_offset + start * array.dtype.itemsize)
    return min(array.size - start, min(room, array.device.limits.max_storage_buffer_range) // array.dtype.itemsize)
