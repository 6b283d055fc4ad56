"""Operations of a graph, recorded by the C helper into command buffers of others."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from vkpar.vulkan import api, capturing
from vkpar.vulkan.stream import Stream


class Recording:
    """Command buffers of one stream's device that are recorded once and submitted as often as wanted.

    Its operations have the barriers that the stream's have. Between them, others may record into the open command
    buffer, and call :meth:`strange` then.

    Raises:
        OutOfMemoryError: no room for it.
    """

    def __init__(self, stream: Stream) -> None:
        self._vk, self._lib, self._ffi, self._stream = api.load(), stream._lib, stream._ffi, stream
        result = self._ffi.new("int32_t*")
        made = self._lib.vkp_recording_new(stream.handle, result)
        self._check(result[0])
        self._handle = self._ffi.gc(made, self._lib.vkp_recording_free)

    def begin(self) -> Any:
        """Begin the next command buffer and return its handle."""
        made = self._ffi.new("uint64_t*")
        self._check(self._lib.vkp_recording_begin(self._handle, made))
        return self._vk.ffi.cast("VkCommandBuffer", made[0])

    def add(self, operation: capturing.Operation) -> None:
        """Record an operation."""
        self._check(operation.record(self._handle, *operation.arguments))

    def copy(self, parts: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Record copies; of each the source's VkBuffer and byte, the target's, and the number of bytes."""
        flat = [number for part in parts for number in part]
        packed = struct.pack(f"={len(flat)}Q", *flat)
        self._check(self._lib.vkp_recording_copy(self._handle, 0, len(parts), packed), "vkCmdCopyBuffer")

    def strange(self) -> None:
        """Note that others recorded into the open command buffer."""
        self._lib.vkp_recording_strange(self._handle)

    def end(self) -> None:
        """End the open command buffer."""
        self._check(self._lib.vkp_recording_end(self._handle))

    def stats(self) -> tuple[int, int]:
        """Return the numbers of operations and of barriers between them."""
        out = self._ffi.new("uint64_t[2]")
        self._lib.vkp_recording_stats(self._handle, out)
        return int(out[0]), int(out[1])

    def _check(self, result: int, call: str = "") -> None:
        if result:
            raise self._stream.error(result, call)

    def close(self) -> None:
        """Free the command buffers, of which none may be pending."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._ffi.release(handle)
