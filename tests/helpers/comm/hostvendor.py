"""A vendor's library in Python: "cards" are CPU drivers, their memory is the host's, and streams are threads.

It stands in for CUDA where carriers are tested without NVIDIA cards. Its streams can be held up, and can fail.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cffi import FFI

from vkpar.errors import VulkanError
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.hostmemory import HostArena, HostImport

_POLL_SECONDS = 0.0002


class HostMemory:
    """Host memory that a device imports."""

    def __init__(self, device: Any, info: DeviceInfo, families: Sequence[int], nbytes: int) -> None:
        self._arena = HostArena(nbytes, info.limits.host_import_alignment)
        self._import = HostImport(device, info, self._arena, families[0])
        self.address, self.nbytes, self.heap = self._arena.address, self._arena.nbytes, self._import.heap

    def range(self) -> BufferRange:
        return self._import.shared().range

    def write(self, words: Mapping[int, int]) -> None:
        for byte, word in words.items():
            ctypes.c_uint32.from_address(self.address + byte).value = word

    def close(self) -> None:
        self._import.close()
        self._arena.close()


class HostAlarm:
    """What writes flags that kernels and streams wait for."""

    def __init__(self, vendor: HostVendor) -> None:
        self._vendor = vendor

    def write(self, memory: BufferRange, *stages: Mapping[int, int]) -> None:
        place = next(each for each in self._vendor.memory if each.range() == memory)
        if place in self._vendor.mute:
            raise VulkanError("VK_ERROR_UNKNOWN", "a card that refuses")
        for words in stages:
            place.write(words)

    def idle(self) -> bool:
        return True


class HostStream:
    """A thread that does what it is given in turn."""

    def __init__(self, vendor: HostVendor, handle: int) -> None:
        self.handle = handle
        self._vendor = vendor
        self._left: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def give(self, what: Callable[[], None]) -> None:
        self._left.put(what)

    def _run(self) -> None:
        while (what := self._left.get()) is not None:
            self._vendor.go.wait()
            what()
            self._left.task_done()

    def idle(self) -> bool:
        return self._left.unfinished_tasks == 0

    def close(self) -> None:
        assert self.idle()
        self._left.put(None)
        self._thread.join()
        del self._vendor.streams[self.handle]


class HostCard:
    """One CPU driver."""

    def __init__(self, vendor: HostVendor) -> None:
        self._vendor, self.context = vendor, 1 + next(vendor.numbers)

    def reaches(self, other: Any) -> bool:
        return True

    def memory(
        self, device: Any, info: DeviceInfo, families: Sequence[int], nbytes: int, cards: Sequence[Any]
    ) -> HostMemory:
        made = HostMemory(device, info, families, nbytes)
        self._vendor.memory.append(made)
        return made

    def stream(self) -> HostStream:
        handle = 1 + next(self._vendor.numbers)
        self._vendor.streams[handle] = HostStream(self._vendor, handle)
        return self._vendor.streams[handle]

    def close(self) -> None:
        self.context = 0


class HostVendor:
    """The library.

    Attributes:
        go: cleared, it holds up every stream.
        mute: memory whose flags cannot be written.
        fails: the status that the next copies end with, 0 for success.
        copied: how many copies were given to streams, and their bytes.

    Args:
        masks: waits take a mask, as HIP's do.
    """

    name, alone = "the host", False

    def __init__(self, masks: bool = False) -> None:
        self.masks = masks
        self.numbers = itertools.count()
        self.streams: dict[int, HostStream] = {}
        self.memory: list[HostMemory] = []
        self.mute: list[HostMemory] = []
        self.go = threading.Event()
        self.go.set()
        self.fails, self.copied, self.copied_bytes = 0, 0, 0
        ffi = FFI()
        made = [
            ffi.callback("int32_t(void*)", lambda context: 0),
            ffi.callback("int32_t(void**)", lambda context: 0),
            ffi.callback(f"int32_t(uintptr_t, uint64_t, uint32_t, uint32_t{', uint32_t' * masks})", self._wait),
            ffi.callback("int32_t(uint64_t, uint64_t, size_t, uintptr_t)", self._copy),
            ffi.callback("int32_t(uintptr_t, uint64_t, uint32_t, uint32_t)", self._write),
        ]
        self._kept = made
        self.functions = tuple(int(ffi.cast("uintptr_t", function)) for function in made)

    def card(self, info: DeviceInfo) -> HostCard:
        return HostCard(self)

    def _wait(self, stream: int, address: int, value: int, flags: int, mask: int = 0xFFFFFFFF) -> int:
        assert mask == 0xFFFFFFFF
        word = ctypes.c_uint32.from_address(address)

        def wait() -> None:
            while (word.value - value) & 0x80000000:
                time.sleep(_POLL_SECONDS)

        self.streams[stream].give(wait)
        return 0

    def _copy(self, to: int, source: int, nbytes: int, stream: int) -> int:
        self.copied += 1
        self.copied_bytes += nbytes
        if not self.fails:
            self.streams[stream].give(lambda: ctypes.memmove(to, source, nbytes) and None)
        return self.fails

    def _write(self, stream: int, address: int, value: int, flags: int) -> int:
        def write() -> None:
            ctypes.c_uint32.from_address(address).value = value

        self.streams[stream].give(write)
        return 0
