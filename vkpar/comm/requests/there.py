"""What stands for the devices and arrays of other processes, of which their forms alone are known."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from vkpar import dtypes
from vkpar.comm.requests.operands import ThereMemory
from vkpar.comm.schedule.processes import Division
from vkpar.device import Device
from vkpar.vulkan.machine.physical import DeviceInfo


class Told(NamedTuple):
    """What a process tells of an array: its form, and where it begins in which of the call's memories."""

    size: int
    dtype: str
    memory: int
    first: int


class ThereDevice:
    """Stands for a device of another process."""

    def __init__(self, info: DeviceInfo, where: str) -> None:
        self.info, self.name = info, f"{info.name} of {where}"

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __str__(self) -> str:
        return self.name


class ThereStorage:
    """Stands for the memory of an array of another process, in the place of :class:`vkpar.arrays.storage.Storage`."""

    def __init__(self) -> None:
        self.own = self.ready = ThereMemory()
        self.number = 1
        self.held_by: object = None

    def pin(self) -> ThereMemory:
        """Return what stands for the memory."""
        return self.own

    def check_free(self, _group: object) -> None:
        """Do nothing: its own process has looked."""


class ThereArray:
    """Stands for an array of another process, in the place of :class:`vkpar.Array`."""

    steps = None

    def __init__(self, device: ThereDevice, told: Told, storage: ThereStorage, key: Hashable) -> None:
        self.device, self.storage, self.key = device, storage, key
        self.size, self.byte_offset, self.dtype = told.size, told.first, dtypes.resolve(told.dtype)
        self.shape, self.nbytes = (told.size,), told.size * self.dtype.itemsize

    def check_contiguous(self, _name: str) -> None:
        """Do nothing: its own process has looked."""

    def check_writable(self, _name: str) -> None:
        """Do nothing: its own process has looked."""

    def touches(self, _kind: int) -> list[tuple[int, ...]]:
        """Return nothing: it is no memory of this process."""
        return []


def all_devices(
    devices: Sequence[Device], infos: Sequence[DeviceInfo], division: Division, names: Sequence[str]
) -> list[Any]:
    """Return by rank the device, or what stands for it."""
    ranks = division.ranks()
    return [
        devices[rank - ranks.start] if rank in ranks else ThereDevice(info, names[process])
        for rank, (info, process) in enumerate(zip(infos, division.processes, strict=True))
    ]
