"""The copies that ``vkpar bench copy`` measures, and what they must leave behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import vkpar
from vkpar.arrays.array import Array
from vkpar.arrays.host import HostArray
from vkpar.bench.measure import rawcopy
from vkpar.device import Device
from vkpar.dtypes import uint32
from vkpar.errors import UnsupportedError
from vkpar.vulkan.memory import memtypes

Elements = np.ndarray[Any, np.dtype[np.uint32]]

_SPREAD: Final = 4  # the largest array's elements for each one that is copied
_ODD: Final = np.uint32(2654435761)  # makes numbers that are all different, and none like its neighbours
_CHECKED: Final = 1 << 24  # elements compared at a time


@dataclass(frozen=True)
class Copy:
    """One way to copy.

    Attributes:
        writes: to the device, not from it.
        region: in the array that it takes; None for all of a contiguous one.
        spread: the array's elements for each one that is copied.
        imported: the host's side is memory that the device has imported.
    """

    writes: bool
    region: str | None = None
    spread: int = 1
    imported: bool = False

    @property
    def factor(self) -> int:
        """How many times as long as a contiguous copy it may take."""
        return 1 if self.region is None else 2


COPIES: Final = {
    "upload": Copy(writes=True),
    "download": Copy(writes=False),
    "upload_host": Copy(writes=True, imported=True),
    "download_host": Copy(writes=False, imported=True),
    "read_rows": Copy(writes=False, region="rows", spread=2),
    "read_steps": Copy(writes=False, region="steps", spread=4),
    "write_rows": Copy(writes=True, region="rows", spread=2),
    "write_steps": Copy(writes=True, region="steps", spread=4),
}


def most_bytes(device: Device) -> int:
    """Return how many bytes can be copied: four times as many for the array, as many again for each raw copy."""
    logical = device.logical
    memory = logical.memory()
    # The array takes one buffer, of less than the largest: SwiftShader refuses one of as many bytes as it names.
    limits = [max(device.limits.max_allocation // _SPREAD - 4096, 4096)]
    for kind in (memtypes.DEVICE, memtypes.UPLOAD, memtypes.READBACK):
        heap = memory.heaps[memtypes.heap_of(device.info, kind)]
        limits.append((heap.total if heap.budget is None else heap.budget) // (2 * _SPREAD))
    if memory.limit:
        limits.append(memory.limit // _SPREAD)
    return min(limits)


class Copies:
    """One device's arrays, and copies of ``nbytes`` from and to them; ``nbytes`` is rounded to a rectangle of uint32.

    Attributes:
        nbytes: what each copy moves.
        refused: why there are no copies of imported memory; empty where there are.
    """

    def __init__(self, device: Device, nbytes: int, names: tuple[str, ...], stack: ExitStack) -> None:
        count = max(1, nbytes // 4)
        self._cols = 1 << (count.bit_length() - 1) // 2
        self._rows = count // self._cols
        self._count = self._rows * self._cols
        self.nbytes = 4 * self._count
        self._device = device
        spread = max(COPIES[name].spread for name in names)
        self._array = device.empty(spread * self._count, uint32)
        self._mirror = np.arange(self._array.size, dtype=np.uint32) * _ODD
        self._array.write(self._mirror)
        self._source = self._mirror[: self._count] + np.uint32(1)
        self._target = np.zeros_like(self._source)
        self.raw = stack.enter_context(rawcopy.raw_copies(self._array[: self._count]))
        self._imported: HostArray | None = None
        self.refused = ""
        if any(COPIES[name].imported for name in names):
            self._import(stack)
        self.names = [name for name in names if not (self.refused and COPIES[name].imported)]

    def _import(self, stack: ExitStack) -> None:
        try:
            self._imported = stack.enter_context(vkpar.host_array(self._count, uint32, self._device))
        except UnsupportedError as error:
            self.refused = str(error)

    def memcpy(self) -> None:
        """Copy as many bytes on the host, between arrays that were used before."""
        np.copyto(self.raw.spare, self._source)

    def seconds(self, call: Callable[[], None]) -> float:
        """Return the time of ``call`` on the idle device, until the device is idle again."""
        self._device.synchronize()
        start = time.perf_counter()
        call()
        self._device.synchronize()
        return time.perf_counter() - start

    def call(self, name: str) -> Callable[[], None]:
        """Return what makes the copy ``name``."""
        copy = COPIES[name]
        array, region = self._part(self._array, copy)
        shape = (self._rows, self._cols) if copy.region else (self._count,)
        if copy.imported:
            assert self._imported is not None
            host = self._imported
            return (lambda: array.write(host)) if copy.writes else (lambda: _read(array, None, host))
        source, target = self._source.reshape(shape), self._target.reshape(shape)
        return (lambda: array.write(source, region)) if copy.writes else (lambda: _read(array, region, target))

    def _part(self, whole: Any, copy: Copy) -> tuple[Any, Any]:
        """Return the part of ``whole``, on the device or the host, that a copy takes, and its region there."""
        part = whole[: copy.spread * self._count]
        if copy.region == "rows":
            return part.reshape(self._rows, 2 * self._cols), np.s_[:, : self._cols]
        if copy.region == "steps":
            return part.reshape(2 * self._rows, 2 * self._cols), np.s_[::2, ::2]
        return part, None

    def wrong(self, name: str) -> int:
        """Make a copy of fresh data; return how many elements are not what they must be, around it too."""
        copy = COPIES[name]
        host = self._imported.numpy() if self._imported is not None and copy.imported else self._host(copy)
        array, region = self._part(self._mirror, copy)
        seen = array if region is None else array[region]
        if copy.writes:
            self._array.write(self._mirror)
            host += _ODD
            self.call(name)()
            seen[...] = host.reshape(seen.shape)
            return self._differing()
        self._mirror += _ODD
        self._array.write(self._mirror)
        host[...] = 0
        self.call(name)()
        return int(np.count_nonzero(host.reshape(seen.shape) != seen))

    def _host(self, copy: Copy) -> Elements:
        return self._source if copy.writes else self._target

    def _differing(self) -> int:
        """Return how many elements of the device's array are not those of its mirror."""
        starts = range(0, self._array.size, _CHECKED)
        parts = ((self._array[start : start + _CHECKED].numpy(), start) for start in starts)
        return sum(int(np.count_nonzero(part != self._mirror[start : start + len(part)])) for part, start in parts)


def _read(array: Array, region: Any, target: Elements | HostArray) -> None:
    array.read(region, out=target)
