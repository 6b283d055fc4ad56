"""Arrays that operations keep on a device for later calls: numbers computed once, and counters."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vkpar.dtypes import uint32
from vkpar.errors import within_limits
from vkpar.vulkan import capturing

if TYPE_CHECKING:
    from vkpar.arrays.array import Array
    from vkpar.device import Device
    from vkpar.ops.call.call import Call

_MOST: Final = 64  # of a device
_LEAST_WORDS: Final = 1024
_MOST_PARTS: Final = 1 << 18


def keep(device: Device, key: tuple[Any, ...], words: np.ndarray[Any, Any]) -> Array:
    """Upload a table and keep it as ``device.plans.tables[key]``, unless another thread has; return what is kept."""
    made = _uploaded(device, words)
    tables: dict[tuple[Any, ...], Array] = device.plans.tables
    if len(tables) >= _MOST:
        tables.clear()
    return tables.setdefault(key, made)


def counters(device: Device, number: int) -> Array:
    """Return ``number`` counters, or more, of uint32: kernels that count with them find zeros and leave zeros.

    Calls that count write to this array, so that none of them runs beside another one.
    """
    return _grown(device, "counters", number)


def parts(call: Call, number: int) -> Array:
    """Return room for ``number`` words that groups of one dispatch leave to the last of them, which counters tell.

    Several dispatches do not share it: those of another thread may come between them.
    """
    if number > _MOST_PARTS:
        return call.temporary((number,), uint32)
    return call.table(_grown(call.device, "parts", number))


def _grown(device: Device, name: str, number: int) -> Array:
    tables = device.plans.tables
    found = tables.get((name,))
    if found is None or found.size < number:
        found = _uploaded(device, np.zeros(max(_LEAST_WORDS, 1 << (number - 1).bit_length()), np.uint32))
        tables[name,] = found  # whatever another thread has kept meanwhile: that may be fewer
    return found


def _uploaded(device: Device, words: np.ndarray[Any, Any]) -> Array:
    """Upload a table; where this thread captures the device, by another thread, whose work is done before a launch."""
    capture = capturing.current()
    if capture is None:
        return device.array(words)
    made: list[Array] = []
    errors: list[BaseException] = []

    def upload() -> None:
        try:
            made.append(device.array(words))
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=upload, name="vkpar-table")
    with within_limits("a thread that uploads a table"):
        other.start()
    other.join()
    if errors:
        raise errors[0]
    return made[0]
