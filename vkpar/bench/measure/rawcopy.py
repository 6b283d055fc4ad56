"""What copies between host and device are measured against: vkCmdCopyBuffer alone, and one memcpy on the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory import memtypes
from vkpar.vulkan.memory.accounting import STAGING
from vkpar.vulkan.memory.buffer import Buffer, BufferRange
from vkpar.vulkan.memory.hostmemory import host_bytes
from vkpar.vulkan.queue import Frame


class RawCopies:
    """Copies of an array's bytes from and to host-visible memory of the kinds that the rings use.

    Attributes:
        spare: host memory as large as the array, for the memcpy.
    """

    def __init__(self, array: Array, uploads: Buffer, reads: Buffer) -> None:
        self._logical = array.device.logical
        self._array = array.ranges()
        self._uploads, self._reads = [uploads.range()], [reads.range()]
        self.spare = np.ones(array.shape, array.dtype.numpy)

    def upload(self) -> None:
        """Copy to the device and wait."""
        self._copy(self._uploads, self._array)

    def download(self) -> None:
        """Copy from the device and wait."""
        self._copy(self._array, self._reads)

    def _copy(self, source: list[BufferRange], target: list[BufferRange]) -> None:
        def record(frame: Frame) -> None:
            frame.commands.record_order()
            frame.commands.record_copies(source, target)
            frame.commands.record_host_release()

        queue = self._logical.transfer
        queue.wait(queue.run(record))


@contextmanager
def raw_copies(array: Array) -> Iterator[RawCopies]:
    """Make what copies ``array`` for the length of a ``with`` block."""
    logical = array.device.logical
    made: list[Buffer] = []
    try:
        for kind in (logical.staging.upload_kind, memtypes.READBACK):
            made.append(_touched(logical, array.nbytes, kind))
        yield RawCopies(array, *made)
    finally:
        logical.synchronize()
        for buffer in made:
            logical.allocator.release(buffer)


def _touched(logical: LogicalDevice, nbytes: int, kind: str) -> Buffer:
    buffer = logical.allocator.allocate(nbytes, kind, purpose=STAGING, alone=True)
    host_bytes(buffer.mapped, nbytes)[:] = 1
    return buffer


def ways(device: Device) -> dict[str, str]:
    """Return which memory arrays and the rings through which they are written and read lie in.

    A small write and a read of it make the rings, as far as they are used at all.
    """
    logical = device.logical
    device.array(np.ones(4, np.uint8)).numpy()
    rings = logical.staging.memory_types
    types = {
        "arrays": memtypes.choose(device.info, memtypes.DEVICE),
        "upload ring": rings.get(memtypes.UPLOAD),
        "read ring": rings.get(memtypes.READBACK),
    }
    return {
        name: "none, the host copies straight" if number is None else memtypes.describe(device.info, number)
        for name, number in types.items()
    }
