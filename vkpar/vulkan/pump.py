"""Submits, programs of batches, bridged timelines and waits: the C helper where it was built, else Python.

A *queue* submits command buffers in order and signals one more value of its timeline for each. A *group* ties one
queue per rank together: it knows which slot each batch reads and writes, and so what each batch must wait for. A
*program* is a list of batches in one global order that is enqueued as a whole, again and again.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from vkpar import env
from vkpar.errors import CommunicatorError, InvalidUsageError, OutOfMemoryError, UnsupportedError
from vkpar.vulkan import api

# Every queue of the process sees all submissions in one total order: see the deadlock note in docs/algorithms.md.
enqueue_lock = threading.RLock()

HISTOGRAM_BUCKETS = 32


@dataclass(frozen=True)
class Batch:
    """One submission: ``command`` on ``rank``'s queue, and the slots that it reads and writes."""

    rank: int
    command: Any
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@dataclass(frozen=True)
class BridgeStats:
    """What the bridge threads did: bridged waits, how the source was seen, latency by powers of two of a ns."""

    bridges: int
    spins: int
    blocks: int
    pending: int
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class QueueHandles:
    """The raw handles and entry points of a queue."""

    device: Any
    queue: Any
    timeline: Any
    submit: Any
    wait: Any
    signal: Any
    counter: Any


class QueuePort(Protocol):
    """A queue's submissions, counted on its timeline."""

    @property
    def last(self) -> int:
        """The highest timeline value that a submitted batch will signal."""

    def pair(self, other: Any) -> None:
        """Make each submission wait for all that ``other``, a queue of the same device, was given before."""

    def submit(self, command: Any) -> int:
        """Submit one command buffer and return the value that it will signal."""

    def close(self) -> None:
        """Free what the port holds."""


class ProgramPort(Protocol):
    """Batches that are enqueued together."""

    def enqueue(self) -> list[int]:
        """Submit every batch in one uninterruptible step; return each rank's last timeline value."""

    def last(self) -> list[int]:
        """Return each rank's last timeline value, whatever was submitted to its queue."""

    def close(self) -> None:
        """Free what the port holds."""


class GroupPort(Protocol):
    """The queues of a communicator's ranks, their links and their slots."""

    def set_native(self, dst: int, src: int, semaphore: Any) -> None:
        """Let ``dst`` wait on ``semaphore``: ``src``'s timeline as ``dst``'s device knows it."""

    def set_local(self, dst: int, semaphore: Any) -> None:
        """Name the timeline of ``dst``'s device that only the host signals."""

    def start(self, spin_ns: int) -> None:
        """Start a waiter thread per source rank that is bridged somewhere."""

    def program(self, batches: Sequence[Batch]) -> ProgramPort:
        """Prepare ``batches``, given in one global order."""

    def stop(self) -> None:
        """End the waiter threads; parked batches stay parked."""

    def abort(self) -> None:
        """Let every parked batch run, its data undefined, so that the queues drain."""

    def error(self) -> int:
        """Return the VkResult that stopped the bridge, 0 where none did."""

    def stats(self) -> BridgeStats:
        """Return the counters."""

    def close(self) -> None:
        """Free what the port holds; call :meth:`stop` first."""


class CQueue:
    """A queue driven by the C helper."""

    def __init__(self, handles: QueueHandles) -> None:
        self._c = _c_helper()
        address = api.load().address
        self.handle = self._c.lib.vkp_queue_new(
            *(
                address(item)
                for item in (
                    handles.device,
                    handles.queue,
                    handles.timeline,
                    handles.submit,
                    handles.wait,
                    handles.signal,
                    handles.counter,
                )
            )
        )
        _require(self._c, self.handle, "vkp_queue_new")
        self._value = self._c.ffi.new("uint64_t*")

    @property
    def last(self) -> int:
        return int(self._c.lib.vkp_queue_last(self.handle))

    def pair(self, other: CQueue) -> None:
        self._c.lib.vkp_queue_pair(self.handle, other.handle)

    def submit(self, command: Any) -> int:
        vk = api.load()
        with enqueue_lock:
            result = self._c.lib.vkp_submit(self.handle, vk.address(command), self._value)
            value = int(self._value[0])
        vk.check(result, "vkQueueSubmit")
        return value

    def close(self) -> None:
        if self.handle is not None:
            self._c.lib.vkp_queue_free(self.handle)
            self.handle = None


class CProgram:
    """A program held by the C helper."""

    def __init__(self, c: Any, group: Any, queues: Sequence[CQueue], batches: Sequence[Batch]) -> None:
        self._c, self._queues = c, queues
        nranks = len(queues)
        ffi, address = c.ffi, api.load().address
        read_start, reads = _flatten([batch.reads for batch in batches])
        write_start, writes = _flatten([batch.writes for batch in batches])
        self.handle = c.lib.vkp_program_new(
            group,
            len(batches),
            ffi.new("uint32_t[]", [batch.rank for batch in batches]),
            ffi.new("uint64_t[]", [address(batch.command) for batch in batches]),
            ffi.new("uint32_t[]", read_start),
            ffi.new("uint32_t[]", reads),
            ffi.new("uint32_t[]", write_start),
            ffi.new("uint32_t[]", writes),
        )
        _require(c, self.handle, "vkp_program_new")
        self._values = ffi.new("uint64_t[]", nranks)
        self._failed = ffi.new("uint32_t*")

    def enqueue(self) -> list[int]:
        with enqueue_lock:
            result = self._c.lib.vkp_enqueue(self.handle, self._values, self._failed)
            values = self._c.ffi.unpack(self._values, len(self._queues))
        if result < 0:
            raise _enqueue_failed(result, int(self._failed[0]), values)
        return list(values)

    def last(self) -> list[int]:
        return [queue.last for queue in self._queues]

    def close(self) -> None:
        if self.handle is not None:
            self._c.lib.vkp_program_free(self.handle)
            self.handle = None


class CGroup:
    """A group held by the C helper: its waiter threads never take the GIL."""

    def __init__(self, queues: Sequence[CQueue], nslots: int) -> None:
        self._c = _c_helper()
        self._queues = queues
        handles = self._c.ffi.new("vkp_queue*[]", [queue.handle for queue in queues])
        self.handle = self._c.lib.vkp_group_new(len(queues), handles, nslots)
        _require(self._c, self.handle, "vkp_group_new")

    def set_native(self, dst: int, src: int, semaphore: Any) -> None:
        self._c.lib.vkp_group_native(self.handle, dst, src, api.load().address(semaphore))

    def set_local(self, dst: int, semaphore: Any) -> None:
        self._c.lib.vkp_group_local(self.handle, dst, api.load().address(semaphore))

    def start(self, spin_ns: int) -> None:
        error = self._c.lib.vkp_group_start(self.handle, spin_ns)
        if error:
            raise CommunicatorError(f"cannot start a bridge thread: errno {error}")

    def program(self, batches: Sequence[Batch]) -> CProgram:
        return CProgram(self._c, self.handle, self._queues, batches)

    def stop(self) -> None:
        if self.handle is not None:
            self._c.lib.vkp_group_stop(self.handle)

    def abort(self) -> None:
        self._c.lib.vkp_group_abort(self.handle)

    def error(self) -> int:
        return int(self._c.lib.vkp_group_error(self.handle))

    def stats(self) -> BridgeStats:
        out = self._c.ffi.new("uint64_t[]", 4 + HISTOGRAM_BUCKETS)
        self._c.lib.vkp_group_stats(self.handle, out)
        numbers = [int(number) for number in out]
        return BridgeStats(numbers[0], numbers[1], numbers[2], numbers[3], tuple(numbers[4:]))

    def close(self) -> None:
        if self.handle is not None:
            self._c.lib.vkp_group_free(self.handle)
            self.handle = None


class Waiter:
    """A prepared wait for one timeline value per queue."""

    def __init__(self, queues: Sequence[CQueue]) -> None:
        self._c = _c_helper()
        self._queues = self._c.ffi.new("vkp_queue*[]", [queue.handle for queue in queues])
        self._number = len(queues)

    def wait(self, values: Sequence[int], timeout_ns: int, spin_ns: int) -> int:
        ffi = self._c.ffi
        reached = ffi.new("uint32_t*")
        wanted = ffi.new("uint64_t[]", values)
        result = self._c.lib.vkp_wait(self._queues, wanted, self._number, timeout_ns, spin_ns, reached)
        api.load().check(result, "vkWaitSemaphores")
        return int(reached[0])


def _require(c: Any, handle: Any, call: str) -> None:
    if handle == c.ffi.NULL:
        raise OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", call)


def _flatten(parts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    start = [0]
    flat: list[int] = []
    for part in parts:
        flat += part
        start.append(len(flat))
    return start, flat


def _enqueue_failed(result: int, rank: int, values: Sequence[int]) -> Exception:
    error = api.load().error(result, "vkQueueSubmit", f"rank {rank}; timelines at {list(values)}")
    error.rank = rank  # type: ignore[attr-defined]
    return error


@functools.cache
def _c_helper() -> ModuleType:
    return importlib.import_module("vkpar.vulkan._pump")


@functools.cache
def _c_available() -> bool:
    try:
        _c_helper()
    except ImportError:
        return False
    return True


def kind() -> str:
    """Return ``"c"`` or ``"python"``: which helper this process uses.

    Raises:
        UnsupportedError: ``VKPAR_PUMP=c`` where the C helper was not built.
    """
    wanted = env.get().pump
    if wanted == "c" and not _c_available():
        raise UnsupportedError("VKPAR_PUMP=c: the C helper was not built; see `python -m vkpar.vulkan.pump_build`")
    return "python" if wanted == "python" or not _c_available() else "c"


def make_queue(handles: QueueHandles) -> QueuePort:
    """Return the port of a queue."""
    if kind() == "c":
        return CQueue(handles)
    from vkpar.vulkan import pump_python

    return pump_python.PyQueue(handles)


def make_group(queues: Sequence[Any], nslots: int) -> GroupPort:
    """Return a group over one queue per rank, with a table of ``nslots`` slots.

    Raises:
        InvalidUsageError: queues of the C helper beside queues of the Python fallback.
    """
    if len({type(queue) for queue in queues}) > 1:
        raise InvalidUsageError("some devices were opened with VKPAR_PUMP=c, others with python; open them alike")
    if isinstance(queues[0], CQueue):
        return CGroup(queues, nslots)
    from vkpar.vulkan import pump_python

    return pump_python.PyGroup(queues, nslots)


def wait(queues: Sequence[Any], values: Sequence[int], timeout_ns: int, spin_ns: int = 0) -> int:
    """Wait until each queue's timeline has its value; return how many, in order, have it (all: success).

    Raises:
        VulkanError: the wait failed, for example because the device was lost.
    """
    if not queues:
        return 0
    if isinstance(queues[0], CQueue):
        return Waiter(queues).wait(values, timeout_ns, spin_ns)
    from vkpar.vulkan import pump_python

    return pump_python.wait(queues, values, timeout_ns, spin_ns)
