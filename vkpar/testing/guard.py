"""Arrays between guard words, which say when a kernel wrote where it should not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar import dtypes, text
from vkpar.arrays.array import Array
from vkpar.arrays.layout import WIDE
from vkpar.arrays.shape import dimensions
from vkpar.arrays.storage import GUARD, Storage
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.accounting import ARRAYS
from vkpar.vulkan.memory.pool import round_up

_SHOWN: Final = 3  # places
_EXTRA: Final = 2 * GUARD + WIDE + ALIGNMENT
_ODD: Final = 2654435761  # every word differs, so that guard words moved elsewhere are seen, too

# Arrays that somebody wants to check later: the pytest plugin does at a test's end. None where nobody does.
made: list[Guarded] | None = None


class Guarded(Array):
    """An array with guard words before and behind it, made by :func:`guarded`; or a view of one.

    It is an array like any other. Kernels of your own bind the guard words behind it, too, so that what they write
    there arrives even with drivers that drop writes beyond a binding; unless the kernel asks for the array's
    ``.length()``, which has to be its own.

    Examples:
        >>> import vkpar.testing
        >>> a = vkpar.testing.guarded(device, 100)
        >>> a += 1
        >>> a.check()
    """

    _before: Array | None = None  # all bytes when the view was made

    def __getitem__(self, key: Any) -> Guarded:
        """Return a view, which remembers what lies around it now: its :meth:`check` looks at that, too."""
        view = super().__getitem__(key)
        view._before = self._all().copy() if view.size and view.steps is None else None
        return view

    @classmethod
    def fresh(cls, device: Device, shape: tuple[int, ...], dtype: DType, nbytes: int, purpose: str = ARRAYS) -> Array:
        """Return a new array without guard words, as results of operations are."""
        return Array.fresh(device, shape, dtype, nbytes, purpose)

    def _all(self) -> Array:
        """Return all bytes of the memory, guard words included."""
        return Array(self.storage, 0, (self.storage.nbytes,), dtypes.resolve("uint8"))

    def check(self) -> None:
        """Wait for the work on the array and fail where anything around it was written.

        Around an array are its guard words, 16 KiB on each side. Around a view that ``a[key]`` made, of elements that
        lie side by side, is all the rest of the array as well: nothing there may have changed since the view was made.

        Raises:
            AssertionError: something was written; the message says where, and on which device.
            InvalidUsageError: the array or its device is closed.
        """
        __tracebackhide__ = True
        guards, last = self.storage.guards
        now, was, first, end = self._all().numpy(), guards, GUARD, last
        if self._before is not None:
            first, end = self.byte_offset, self.byte_offset + self.nbytes
            was = np.concatenate([guards[:GUARD], self._before.numpy()[GUARD:last], guards[last:]])
        changed = now != was
        changed[first:end] = False
        if changed.any():
            if made is not None:  # what is said once is not said again at the test's end
                made[:] = [array for array in made if array.storage is not self.storage]
            raise AssertionError(self._message(np.flatnonzero(changed), first, end, now))

    def _message(self, places: NDArray[np.intp], first: int, end: int, now: NDArray[np.uint8]) -> str:
        size = self.dtype.itemsize
        elements = np.unique((places - first) // size)
        count = (end - first) // size
        lines = [
            f"{text.number(len(elements), 'element')} outside of {self!r} written: "
            f"{int((elements < 0).sum()):,} before it, {int((elements >= count).sum()):,} behind it"
        ]
        near = sorted(elements.tolist(), key=lambda each: -each - 1 if each < 0 else each - count)
        for element in near[:_SHOWN]:
            at = first + element * size
            raw = now[max(at, 0) : at + size].tobytes()
            value = np.frombuffer(raw, self.dtype.numpy)[0] if len(raw) == size else raw.hex()
            lines.append(f"  element {element} of {count} is now {value!s}")
        if len(near) > _SHOWN:
            lines.append(f"  ... and {len(near) - _SHOWN:,} more, from element {elements[0]} to {elements[-1]}")
        return "\n".join(lines)


def guarded(device: Device, shape: int | Sequence[int], dtype: object = "float32") -> Guarded:
    """Return a new array of zeros between guard words of 16 KiB, to find writes beyond its ends.

    Args:
        device: where it lives.
        shape: its dimensions, of one element at least.
        dtype: of its elements.

    Raises:
        InvalidUsageError: no opened device, an unknown dtype, a bad shape, an array without elements, or one that is
            too large for a kernel to bind with its guard words.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> import vkpar.testing
        >>> out = vkpar.testing.guarded(device, (2, 3))
        >>> b = vkpar.add(device.ones((2, 3)), 1, out=out)
        >>> out.check()  # raises where something was written beyond it
    """
    if not isinstance(device, Device):
        raise InvalidUsageError(f"guarded() takes an opened vkpar.Device, not {device!r}")
    kind, dims = dtypes.resolve(dtype), dimensions(shape)
    nbytes = math.prod(dims) * kind.itemsize
    most = min(device.limits.max_storage_buffer_range, device.limits.max_buffer)
    if not nbytes or nbytes + _EXTRA > most:
        raise InvalidUsageError(f"a guarded array has from 1 to {most - _EXTRA:,} bytes, not {nbytes:,}")
    total = GUARD + round_up(nbytes, WIDE) + GUARD
    storage = Storage(device, total, lambda: f"guarded array {dims} {kind}")
    guards = (np.arange(total // 4, dtype=np.uint64) * _ODD % 2**32).astype(np.uint32).view(np.uint8)
    guards[GUARD : GUARD + nbytes] = 0
    storage.guards = guards, GUARD + nbytes
    array = Guarded(storage, GUARD, dims, kind)
    array._all().write(guards)
    if made is not None:
        made.append(array)
    return array
