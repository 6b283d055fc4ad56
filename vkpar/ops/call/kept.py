"""Arrays that operations keep on a device for later calls: numbers computed once, and counters."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vkpar.errors import within_limits
from vkpar.vulkan import capturing

if TYPE_CHECKING:
    from vkpar.arrays.array import Array
    from vkpar.device import Device

_MOST: Final = 64  # of a device
_COUNTERS: Final = ("counters",)
_LEAST_COUNTERS: Final = 1024


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
    tables = device.plans.tables
    found = tables.get(_COUNTERS)
    if found is None or found.size < number:
        found = _uploaded(device, np.zeros(max(_LEAST_COUNTERS, 1 << (number - 1).bit_length()), np.uint32))
        tables[_COUNTERS] = found  # whatever another thread has kept meanwhile: that may be fewer
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
