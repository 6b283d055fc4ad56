"""Eager launching: operations go by one call each into the open command buffer of a device's compute queue."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vkpar.errors import InvalidUsageError, OutOfMemoryError, VulkanError
from vkpar.vulkan import api, capturing
from vkpar.vulkan.machine import instance
from vkpar.vulkan.memory.buffer import BufferRange, paired
from vkpar.vulkan.pipelines.kernel import Pipeline
from vkpar.vulkan.pump import ledger
from vkpar.vulkan.pump.ledger import PLACES, READS, REPLACES
from vkpar.vulkan.queue import Queue

# What the C helper's entries return besides VkResults.
_BUSY: Final = 1001
_REFUSED: Final = (1002, 1003)  # closed; in a forked child
_CAPTURES: Final = 1004  # the calling thread captures
_LOST: Final = 1005  # a failed collective has spoiled what the operation reads
_LONG_WAY: Final = 1006  # something is spoiled: look closer
_NAMES: Final = 8
_NONE: Final = 0xFFFFFFFF
PUSHED: Final = 32  # descriptors that every driver with VK_KHR_push_descriptor pushes at a time

# Entry points in the order of `calls` in the helper; the last one is an extension's.
_FUNCTIONS: Final = (
    "vkCreateCommandPool",
    "vkDestroyCommandPool",
    "vkResetCommandPool",
    "vkAllocateCommandBuffers",
    "vkBeginCommandBuffer",
    "vkEndCommandBuffer",
    "vkCmdPipelineBarrier",
    "vkCmdBindPipeline",
    "vkCmdBindDescriptorSets",
    "vkCmdPushConstants",
    "vkCmdDispatch",
    "vkCmdCopyBuffer",
    "vkCmdFillBuffer",
    "vkCreateDescriptorPool",
    "vkDestroyDescriptorPool",
    "vkResetDescriptorPool",
    "vkAllocateDescriptorSets",
    "vkUpdateDescriptorSets",
    "vkCmdPushDescriptorSetKHR",
)
_CALLS: Final = (*_FUNCTIONS, "vkQueueSubmit")  # by the number that the helper has for what failed

_PART: Final = struct.Struct("=5Q").pack


class Binding(NamedTuple):
    """What a dispatch binds, from ``back`` bytes before an address on.

    Attributes:
        nbytes: bytes of the binding.
        back: how far before the address it begins.
        low: how far before the address that begins which it uses, of ``used`` bytes.
        kind: what it does to these, as :mod:`vkpar.vulkan.pump.ledger` names it.
    """

    nbytes: int
    back: int
    low: int
    used: int
    kind: int

    @classmethod
    def of(cls, nbytes: int, kind: int) -> Binding:
        """Return one that begins at the address and is used as a whole."""
        return cls(nbytes, 0, 0, nbytes, kind)


_names: list[str] = []  # of operations, by the number that the helper keeps


def name_number(name: str) -> int:
    """Return the number under which the helper keeps the name of an operation."""
    if name not in _names:
        _names.append(name)
    return _names.index(name)


def name_of(number: int) -> str:
    """Return the name that has a number."""
    return _names[number]


@dataclass(frozen=True)
class StreamStats:
    """What a stream has done.

    Attributes:
        operations: appended; ``submissions``: of gathered ones.
        barriers: recorded, one at the begin of each command buffer included.
        buffers: command buffers that exist; ``descriptor_pools`` that belong to them.
        gathered: operations in the open command buffer now.
    """

    operations: int
    submissions: int
    barriers: int
    buffers: int
    descriptor_pools: int
    gathered: int


class Stream:
    """The open command buffer of a compute queue, and those that it was before.

    Operations run in the order of the calls; :attr:`Queue.last` counts the open buffer. Whatever is submitted to the
    device's queues by other ways, and whoever waits for them, submits the open buffer first. Where a driver refuses
    that, nothing in it is lost: the error is raised by the next call, which tries again first and appends nothing if
    that fails, and by every wait.

    Args:
        device: the VkDevice.
        queue: its compute queue, of the C helper.
        barriers: put a full barrier before every operation.
        rate: bytes a nanosecond that kernels move, for estimates of how long operations take.

    Attributes:
        handle: the helper's, for :attr:`Stream.entry`.
        watched: the instance where the validation layer is on.
        entry: the helper's function that appends a dispatch; ``null`` stands for the plan's own push constants there.
    """

    def __init__(self, device: Any, queue: Queue, *, barriers: bool = False, rate: int = 100) -> None:
        vk = self._vk = api.load()
        self._queue, self._rate, self._device = queue, rate, vk.address(device)
        port: Any = queue.port
        self._lib, self._ffi = port._c.lib, port._c.ffi
        found = [vk.device_function(device, name) for name in _FUNCTIONS]
        functions = self._ffi.new("uint64_t[]", [0 if each is None else vk.address(each) for each in found])
        told = instance.validating() and queue.exportable
        idle = vk.address(vk.device_function(device, "vkQueueWaitIdle")) if told else 0
        made = self._lib.vkp_stream_new(port.handle, queue.family, barriers, rate, idle, functions)
        if made == self._ffi.NULL:
            detail = "no memory, or no thread, for the device's open command buffer"
            raise OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", "vkp_stream_new", detail)
        self.handle = self._ffi.gc(made, self._lib.vkp_stream_free)
        self.entry = self._lib.vkp_launch
        self.null = self._ffi.NULL
        self._copying = name_number("copy")
        lib = self._lib
        self._recorded = {
            lib.vkp_launch: lib.vkp_recording_launch,
            lib.vkp_copy: lib.vkp_recording_copy,
            lib.vkp_fill: lib.vkp_recording_fill,
        }
        self._kernels: weakref.WeakKeyDictionary[Any, Pipeline] = weakref.WeakKeyDictionary()  # by plan
        self.watched = instance.get() if instance.validating() else None

    def plan(
        self,
        name: str,
        pipeline: Pipeline,
        bindings: Sequence[Binding],
        groups: tuple[int, int, int],
        push: bytes = b"",
        cost_ns: int = 0,
    ) -> Any:
        """Return a dispatch that lacks nothing but addresses.

        Args:
            name: of the operation, for errors.
            pipeline: made for this stream (``pushes`` as :func:`pushes` says).
            bindings: what it binds.
            groups: numbers of work-groups.
            push: the push constants; empty where each launch brings its own.
            cost_ns: an estimate of its time; that of moving the bytes is the least.
        """
        nbytes = sum(each.nbytes for each in bindings)
        made = self._ffi.new("vkp_plan*", {"binding": len(bindings)})
        layout = pipeline.layout
        made.pipeline = self._vk.address(pipeline.handle)
        made.layout, made.set_layout = self._vk.address(layout.handle), self._vk.address(layout.set_layout)
        made.pushes, made.push_nbytes = layout.pushes, layout.push_nbytes
        made.name, made.bindings, made.groups = name_number(name), len(bindings), groups
        made.cost_ns = min(max(cost_ns, 1000 + nbytes // self._rate), _NONE)
        self._kernels[made] = pipeline
        self._ffi.memmove(made.push, push, len(push))
        for index, each in enumerate(bindings):
            item = made.binding[index]
            item.nbytes, item.back, item.low, item.used, item.kind = each
        return made

    def launch(self, plan: Any, addresses: bytes, push: bytes | None = None, *, pins: Sequence[object] = ()) -> None:
        """Append a dispatch.

        Args:
            plan: of :meth:`plan`.
            addresses: packed, of each binding the VkBuffer and the byte in it from which the plan counts.
            push: the push constants where the plan has none.
            pins: what keeps the memory, for a graph.

        Raises:
            VulkanError: what the driver said, now or when it was given what had gathered before.
            InvalidUsageError, DeviceLostError: the device was closed or given up.
        """
        self._settle(self.entry, pins, plan, addresses, self.null if push is None else push)

    def dispatch(
        self,
        name: str,
        pipeline: Pipeline,
        ranges: Sequence[BufferRange],
        push: bytes,
        groups: tuple[int, int, int],
        cost_ns: int = 0,
        bindings: Sequence[Binding] | None = None,
    ) -> None:
        """Append a dispatch on ``ranges``; raises as :meth:`launch` does.

        ``bindings`` says what it does to them; by default it may write to some of what it is not kept from writing.
        """
        own = len(push) <= 128
        bindings = bindings or [
            Binding.of(item.nbytes, PLACES if index not in pipeline.read_only else READS)
            for index, item in enumerate(ranges)
        ]
        plan = self.plan(name, pipeline, bindings, groups, push if own else b"", cost_ns)
        addresses = self._packed(
            (item.buffer, item.offset + each.back) for item, each in zip(ranges, bindings, strict=True)
        )
        self.launch(plan, addresses, None if own else push, pins=_owners(ranges))

    def copy(self, name: str, source: Sequence[BufferRange], target: Sequence[BufferRange]) -> None:
        """Append copies of the bytes of ``source`` to ``target``, as many; raises as :meth:`launch` does."""
        pairs = list(paired(source, target))
        parts = self._packed((a.buffer, a.offset, b.buffer, b.offset, a.nbytes) for a, b in pairs)
        pins = _owners((*source, *target))
        self._settle(self._lib.vkp_copy, pins, name_number(name), len(pairs), parts)

    def copy_part(
        self, source: int, start: int, target: int, at: int, nbytes: int, pins: Sequence[object] = ()
    ) -> None:
        """Append the copy of one piece, of VkBuffers given as numbers; raises as :meth:`launch` does."""
        self._settle(self._lib.vkp_copy, pins, self._copying, 1, _PART(source, start, target, at, nbytes))

    def copy_parts(self, count: int, parts: bytes, pins: Sequence[object]) -> None:
        """Append the copies of pieces, of each the five numbers that :meth:`copy_part` takes, of 64 bits."""
        self._settle(self._lib.vkp_copy, pins, self._copying, count, parts)

    def fill(self, name: str, target: Sequence[BufferRange], word: int) -> None:
        """Append fills with a 32-bit word; offsets and lengths are multiples of 4. Raises as :meth:`launch` does."""
        parts = self._packed((item.buffer, item.offset, item.nbytes) for item in target)
        self._settle(self._lib.vkp_fill, _owners(target), name_number(name), len(target), parts, word)

    def _packed(self, rows: Iterable[tuple[Any, ...]]) -> bytes:
        address = self._vk.address
        flat = [item if isinstance(item, int) else address(item) for row in rows for item in row]
        return struct.pack(f"={len(flat)}Q", *flat)

    def _settle(self, entry: Any, pins: Sequence[object], *arguments: Any) -> None:
        """Call an entry of the helper; where all command buffers are pending, wait for the oldest and call it again.

        Where this thread captures, the operation goes into the graph; ``pins`` keep its memory.
        """
        while True:
            result = entry(self.handle, *arguments)
            if result == 0:
                return
            if result == _CAPTURES:
                self._capture(entry, pins, arguments)
                return
            self._make_way(result)

    def resume(self, result: int, plan: Any, addresses: bytes, push: Any, pins: Sequence[object]) -> bool:
        """Go on with a call of :attr:`entry` that appended nothing, as :meth:`launch` does, which see.

        Returns:
            False, and nothing done, where failures have spoiled something, so that the call has to look closer.
        """
        if result == _LONG_WAY:
            return False
        if result != _CAPTURES:
            self._make_way(result)
        self._settle(self.entry, pins, plan, addresses, push)
        return True

    def _capture(self, entry: Any, pins: Sequence[object], arguments: tuple[Any, ...]) -> None:
        kernel = self._kernels[arguments[0]] if entry is self.entry else None
        number = arguments[0].name if kernel is not None else arguments[0]
        touches = self._touches_of_kernel(*arguments[:2]) if kernel is not None else self._touches_of(arguments)
        operation = capturing.Operation(_names[number], self._recorded[entry], arguments, (*pins, kernel), touches)
        capturing.current().add(self, operation)

    def _touches_of_kernel(self, plan: Any, addresses: bytes) -> list[tuple[int, ...]]:
        """Return what a dispatch does to memory, what it reads first."""
        places, made = struct.unpack(f"={2 * plan.bindings}Q", addresses), list[tuple[int, ...]]()
        for index in range(plan.bindings):
            item, start = plan.binding[index], places[2 * index + 1]
            made.append((self._device, places[2 * index], start - item.low, start - item.low + item.used, item.kind))
        return sorted(made, key=lambda touch: touch[-1] != READS)

    def _touches_of(self, arguments: tuple[Any, ...]) -> list[tuple[int, ...]]:
        """Return what copies, or fills where there are four arguments, do to memory."""
        _, count, parts, *word = arguments
        made: list[tuple[int, ...]] = []
        for row in struct.iter_unpack("=3Q" if word else "=5Q", parts[: count * (24 if word else 40)]):
            buffer, start, nbytes = row[-3:]
            if not word:
                made.append((self._device, row[0], row[1], row[1] + nbytes, READS))
            made.append((self._device, buffer, start, start + nbytes, REPLACES))
        return made

    def operation(self, name: str, plan: Any, addresses: bytes, pins: Sequence[object]) -> capturing.Operation:
        """Return a dispatch as a graph takes it; the last of ``pins`` is its kernel."""
        return capturing.Operation(name, self._recorded[self.entry], (plan, addresses, self.null), pins)

    def capture(self, *, on: bool) -> None:
        """Have what this thread asks for go to its capture from now on, or end that."""
        self._lib.vkp_stream_capture(self.handle, on)

    def trace(self, filled: tuple[Any, ...] | None) -> None:
        """Have the helper fill a ``vkp_trace``, the first of what is given, from now on; None submits and ends it."""
        self._lib.vkp_stream_trace(self.handle, self.null if filled is None else filled[0])
        self._traced = filled  # which the helper points at

    def _make_way(self, result: int) -> None:
        if result != _BUSY:
            raise self.error(result)
        self._queue.wait(self._lib.vkp_stream_oldest(self.handle))

    def error(self, result: int, call: str = "") -> Exception:
        """Return the typed error of what an entry returned; ``call`` is what failed where the stream does not know."""
        if result == _LOST:
            return ledger.error_of()
        if result in _REFUSED:
            try:
                with self._queue.gate.lock():
                    self._queue.gate.check()
            except Exception as refusal:
                return refusal
            return InvalidUsageError("the device is closing")
        failed, unsent = self.unsent()
        return self._vk.error(result, call or failed, unsent)

    def unsent(self) -> tuple[str, str]:
        """Return the function that failed last, and which operations the driver refused so far; empty for none."""
        found, lost, failed = (self._ffi.new("uint32_t[]", number) for number in (_NAMES, 1, 1))
        count = self._lib.vkp_stream_unsent(self.handle, found, _NAMES, lost, failed)
        call = _CALLS[failed[0]]
        if not count:
            return call, ""
        names = ", ".join(_names[number] for number in found if number != _NONE)
        which = f"{names} ({count} operations)"
        if lost[0]:
            return call, f"{self._queue.device_name}: lost: {which}; close the device and open it anew"
        return call, f"{self._queue.device_name}: not submitted yet: {which}"

    def flush(self) -> None:
        """Submit what has gathered.

        Raises:
            VulkanError: what the driver says; everything stays gathered.
        """
        result = self._lib.vkp_stream_flush(self.handle)
        if result < 0:
            raise self.error(result)

    def stats(self) -> StreamStats:
        """Return the counters."""
        out = self._ffi.new("uint64_t[]", 6)
        self._lib.vkp_stream_stats(self.handle, out)
        return StreamStats(*map(int, out))

    def refuse(self) -> None:
        """Take no operations any more; what has gathered is still submitted when somebody waits for it."""
        self._lib.vkp_stream_refuse(self.handle)

    def abandon(self) -> VulkanError | None:
        """Submit what has gathered, or else drop it and return why: the device is about to be closed."""
        try:
            self.flush()
        except VulkanError as error:
            self.close(leak=True)
            return error
        return None

    def close(self, *, leak: bool = False) -> None:
        """End its thread and free the command buffers, which may not be pending; ``leak`` leaves them alone."""
        self._lib.vkp_stream_close(self.handle, leak)


def _owners(ranges: Iterable[BufferRange]) -> tuple[object, ...]:
    return tuple(item.owner for item in ranges if item.owner is not None)


def pushes(extensions: Iterable[str], bindings: int) -> bool:
    """Say whether a stream pushes the descriptors of kernels with so many bindings."""
    return "VK_KHR_push_descriptor" in extensions and bindings <= PUSHED
