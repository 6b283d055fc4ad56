"""Host memory that a device has imported for its user: copies from and to it go straight, past the staging ring."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vkpar.errors import UnsupportedError, VulkanError
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory.buffer import BufferRange, SharedBuffer
from vkpar.vulkan.memory.hostmemory import HostBlock, HostImport
from vkpar.vulkan.memory.queues import CopyQueue

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_leaked: list[Any] = []  # imports of devices that were given up, which may still write to the memory


@dataclass(eq=False)
class HostWindow:
    """Host memory as one device sees it.

    Attributes:
        copies: number of copies that were begun and not waited for to their end, interrupted ones included.
        retired: no further copy may use it; a finalizer may set this.
    """

    block: HostBlock
    memory: HostImport = field(repr=False)
    shared: SharedBuffer = field(repr=False)
    copies: int = 0
    retired: bool = False
    last: int = 0  # timeline value that a retired one with copies waits for

    def holds(self, address: int, nbytes: int) -> bool:
        """Say whether all of these bytes lie in the window."""
        start = self.block.address
        return not self.retired and start <= address and address + nbytes <= start + self.block.nbytes


class HostImports:
    """The windows of one device.

    Args:
        device: the VkDevice.
        info: what it is.
        queue: what the copies run on, in program order with the device's other work.
        kernels: that queue runs kernels too.
    """

    def __init__(self, device: Any, info: DeviceInfo, queue: CopyQueue, *, kernels: bool) -> None:
        self._device = device
        self._info = info
        self._queue = queue
        self._kernels = kernels
        self._windows: list[HostWindow] = []
        self._lock = threading.Lock()  # never taken in a finalizer

    def add(self, block: HostBlock) -> HostWindow:
        """Import ``block``.

        Raises:
            UnsupportedError: the driver cannot import this kind of memory.
            OutOfMemoryError: the driver cannot pin so much.
        """
        with self._lock:
            try:
                memory = HostImport(self._device, self._info, block, self._queue.family)
            except VulkanError as error:
                if error.result != "VK_ERROR_INVALID_EXTERNAL_HANDLE":
                    raise
                raise UnsupportedError(f"{self._info.name} cannot import this kind of host memory") from error
            made = HostWindow(block, memory, replace(memory.shared(), kernels=self._kernels))
            self._windows.append(made)
        return made

    def upload(self, source: _Bytes, target: Sequence[BufferRange]) -> bool:
        """Copy ``source`` to ``target`` and wait; do nothing and return False where ``source`` is not imported."""
        return bool(self._windows) and self._copy(source, target, to_host=False)

    def download(self, source: Sequence[BufferRange], target: _Bytes) -> bool:
        """Copy ``source`` to ``target`` and wait; do nothing and return False where ``target`` is not imported."""
        return bool(self._windows) and self._copy(target, source, to_host=True)

    def _copy(self, host: _Bytes, other: Sequence[BufferRange], *, to_host: bool) -> bool:
        address = host.__array_interface__["data"][0]
        with self._lock:
            found = next((window for window in self._windows if window.holds(address, host.size)), None)
            if found is None:
                return False
            found.copies += 1  # before the submission, so that no interrupt makes a copy go unseen
            here = BufferRange(found.memory.buffer, address - found.block.address, host.size)
            value = self._submit(found.shared, here, other, to_host)
        self._queue.wait(value)
        with self._lock:
            found.copies -= 1
        return True

    def _submit(self, shared: SharedBuffer, host: BufferRange, other: Sequence[BufferRange], to_host: bool) -> int:
        def record(frame: Any) -> None:
            frame.commands.record_acquire(shared, [host])
            pair = (other, [host]) if to_host else ([host], other)
            frame.commands.record_copies(*pair)
            frame.commands.record_release(shared, [host])

        return self._queue.run(record)

    def drop(self, window: HostWindow, given_up: Callable[[], bool]) -> None:
        """Wait for the copies of ``window``, then free its import; a second call does nothing.

        Where the wait fails, for want of memory, a later :meth:`reap` frees it, or :meth:`close`.

        Args:
            window: one that :meth:`add` returned.
            given_up: says that the device is closing, and will free the import itself.
        """
        with self._lock:
            if window not in self._windows:
                return
            window.retired = True
            value = self._queue.last if window.copies else 0
        try:
            while value and not self._queue.passed(value):
                if given_up():
                    return
        except VulkanError:
            return
        with self._lock:
            self._free(window)

    def reap(self) -> None:
        """Free the retired windows whose copies are done."""
        if not any(window.retired for window in self._windows):
            return
        with self._lock:
            for window in [window for window in self._windows if window.retired]:
                if window.copies:
                    window.last = window.last or self._queue.last
                    if not self._queue.passed(window.last, 0):
                        continue
                self._free(window)

    def _free(self, window: HostWindow) -> None:
        if window in self._windows:
            self._queue.confirm()
            window.memory.close()
            self._windows.remove(window)

    def leak(self) -> None:
        """Keep the memory for ever: the device may still use it."""
        _leaked.extend(self._windows)

    def close(self) -> None:
        """Free every import; nothing may be pending."""
        with self._lock:
            while self._windows:
                self._windows.pop().memory.close()
