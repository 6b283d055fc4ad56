"""Arrays whose memory the host sees, as on processors and integrated GPUs: the host copies, past the staging ring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.hostmemory import host_bytes
from vkpar.vulkan.memory.queues import CopyQueue

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# Some processors' memmove takes three to four times as long where the target begins so many bytes after the source, or
# less, in a page of 4 KiB (measured on an AMD EPYC, glibc 2.36: 256 MiB in 72 ms, not 25); in pieces of 4 MiB 34 ms.
_NEAR, _PAGE, _PIECE = 512, 4096, 4 << 20


def collide(target: int, source: int) -> bool:
    """Say whether copies between these addresses are slow."""
    return 0 < (target - source) % _PAGE < _NEAR


class MappedArrays:
    """Copies between NumPy memory and mapped memory of one device, once its work is done.

    Args:
        queue: the device's; a copy waits for all work that it was given before.
        least: bytes of the smallest upload; smaller ones go through the ring, which need not wait for the device.
    """

    def __init__(self, queue: CopyQueue, least: int) -> None:
        self._queue = queue
        self._least = least

    def upload(self, source: _Bytes, target: Sequence[BufferRange]) -> bool:
        """Copy ``source`` to ``target``; do nothing and return False where that is not mapped, or small."""
        return self.write(target, source.size, lambda: _copy_to(target, source))

    def download(self, source: Sequence[BufferRange], target: _Bytes) -> bool:
        """Copy ``source`` to ``target``; do nothing and return False where that is not mapped."""
        return self.read(source, lambda: _copy_from(source, target))

    def write(self, memory: Iterable[BufferRange], nbytes: int, copy: Callable[[], None]) -> bool:
        """Have ``copy`` write ``nbytes`` to ``memory``; False, and nothing done, where it is not mapped, or small."""
        return nbytes >= self._least and self._run(memory, copy, rewrites=True)

    def read(self, memory: Iterable[BufferRange], copy: Callable[[], None]) -> bool:
        """Have ``copy`` read ``memory``; False, and nothing done, where it is not mapped."""
        return self._run(memory, copy, rewrites=False)

    def _run(self, memory: Iterable[BufferRange], copy: Callable[[], None], *, rewrites: bool) -> bool:
        if not all(part.mapped for part in memory):
            return False
        self._hand_over(rewrites=rewrites)
        copy()
        return True

    def _hand_over(self, *, rewrites: bool) -> None:
        """Wait until the host may read the memory, or write to it; what it writes the next submission sees."""

        def record(frame: Any) -> None:
            frame.commands.record_host_release(rewrites=rewrites)

        self._queue.wait(self._queue.run(record))


def _copy_to(target: Sequence[BufferRange], source: _Bytes) -> None:
    start = 0
    for part in target:
        _copy(host_bytes(part.mapped, part.nbytes), source[start : start + part.nbytes])
        start += part.nbytes


def _copy_from(source: Sequence[BufferRange], target: _Bytes) -> None:
    start = 0
    for part in source:
        _copy(target[start : start + part.nbytes], host_bytes(part.mapped, part.nbytes))
        start += part.nbytes


def _copy(target: _Bytes, source: _Bytes) -> None:
    step = _PIECE if collide(target.ctypes.data, source.ctypes.data) else max(source.size, 1)
    for start in range(0, source.size, step):
        np.copyto(target[start : start + step], source[start : start + step])
