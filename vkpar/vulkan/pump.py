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

HISTOGRAM_BUCKETS = 128


def bucket_ns(index: int) -> int:
    """Return the least latency in ns of a histogram bucket; there are four buckets per power of two."""
    return index if index < 4 else (4 + index % 4) << (index // 4 - 1)


def bucket_of(ns: int) -> int:
    """Return the bucket that counts a latency; the last one takes all from 7.5 s up."""
    power = ns.bit_length() - 1
    return min(ns if ns < 4 else 4 * (power - 1) + (ns >> power - 2 & 3), HISTOGRAM_BUCKETS - 1)


@dataclass(frozen=True)
class Batch:
    """One submission: ``command`` on ``rank``'s queue, and the slots that it reads and writes.

    It waits for the value on ``gate``, a timeline of the rank's device, too: a test holds it up that way.
    """

    rank: int
    command: Any
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    gate: tuple[Any, int] | None = None


@dataclass(frozen=True)
class BridgeStats:
    """What the bridge threads did.

    Attributes:
        bridges: batches that they let run (not those that an abort did).
        spins: looks at a source that saw it while spinning; ``blocks``: those that had to block.
        copies: slots that they copied, ``copied_bytes`` in all.
        histogram: for each of ``bridges`` the time from seeing the last source that it took, copies included, to the
            signal having been made; the i-th number counts those from ``bucket_ns(i)`` up.
        pending_by_rank: batches still parked, by destination.
    """

    bridges: int
    spins: int
    blocks: int
    copies: int
    copied_bytes: int
    histogram: tuple[int, ...]
    pending_by_rank: tuple[int, ...]

    @property
    def pending(self) -> int:
        """Batches still parked."""
        return sum(self.pending_by_rank)


@dataclass(frozen=True)
class QueueHandles:
    """The raw handles and entry points of a queue, in the order in which ``vkp_queue_new`` takes them."""

    device: Any
    queue: Any
    timeline: Any
    submit: Any
    wait: Any
    signal: Any
    counter: Any


class QueuePort(Protocol):
    """A queue's submissions, counted on its timeline."""

    stream: Any  # what gathers operations for the device's compute queue, None where nothing does

    @property
    def last(self) -> int:
        """The highest timeline value that a submitted batch, or what the stream has gathered, will signal."""

    @property
    def submitted(self) -> int:
        """The same without what the stream has gathered."""

    def pair(self, other: Any) -> None:
        """Make each submission wait for all that ``other``, a queue of the same device, was given before."""

    def submit(self, command: Any) -> int:
        """Submit one command buffer and return the value that it will signal."""

    def wait_idle(self, function: Any) -> None:
        """Call vkQueueWaitIdle, the ``function``, with no submission meanwhile."""

    def close(self) -> None:
        """Free what the port holds."""


class ProgramPort(Protocol):
    """Batches that are enqueued together."""

    def enqueue(self) -> list[int]:
        """Submit every batch in one uninterruptible step; return each rank's last timeline value.

        A failure aborts the group; on an aborted group nothing is submitted.
        """

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

    def set_slots(self, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Give the host address of the memory that ranks share, and each slot's first byte in it and length."""

    def set_mapped(self, rank: int, address: int) -> None:
        """Let ``rank`` have its slots at ``address``, laid out alike; no link to or from it is native.

        What it reads of others, and others of it, the bridge copies: see ``copy_slot`` in ``_pump_bridge.h``.
        """

    def start(self, spin_ns: int) -> None:
        """Start a waiter thread per source rank that is bridged somewhere."""

    def program(self, batches: Sequence[Batch]) -> ProgramPort:
        """Prepare ``batches``, given in one global order."""

    def stop(self) -> None:
        """End the waiter threads, after the copy that each is at; parked batches stay parked."""

    def abort(self) -> None:
        """Let every parked batch run, its data undefined, so that the queues drain; nothing is enqueued any more."""

    def error(self) -> int:
        """Return the VkResult that stopped the bridge, 0 where none did."""

    def stats(self) -> BridgeStats:
        """Return the counters."""

    def close(self) -> None:
        """Stop, and free what the port holds."""


class CQueue:
    """A queue driven by the C helper."""

    def __init__(self, handles: QueueHandles, *, naps: bool = False) -> None:
        self._c = _c_helper()
        self.handle = self._c.lib.vkp_queue_new(*map(api.load().address, vars(handles).values()))
        _require(self._c, self.handle, "vkp_queue_new")
        self._c.lib.vkp_queue_naps(self.handle, naps)
        # Read in place: a C call gives up the GIL, and getting it back takes up to 5 ms beside a busy thread.
        self._last = self._c.lib.vkp_queue_last_word(self.handle)
        self._submitted = self._c.lib.vkp_queue_submitted_word(self.handle)
        self._value = self._c.ffi.new("uint64_t*")
        self.stream: Any = None  # what gathers operations for the device's compute queue

    @property
    def last(self) -> int:
        return int(self._last[0])

    @property
    def submitted(self) -> int:
        return int(self._submitted[0])

    def pair(self, other: CQueue) -> None:
        self._c.lib.vkp_queue_pair(self.handle, other.handle)

    def submit(self, command: Any) -> int:
        vk = api.load()
        with enqueue_lock:
            result = self._c.lib.vkp_submit(self.handle, vk.address(command), self._value)
            value = int(self._value[0])
        vk.check(result, "vkQueueSubmit", _unsent([self]))
        return value

    def wait_idle(self, function: Any) -> None:
        """Call vkQueueWaitIdle, the ``function``, with no submission meanwhile."""
        with enqueue_lock:
            result = self._c.lib.vkp_queue_idle(self.handle, api.load().address(function))
        api.load().check(result, "vkQueueWaitIdle")

    def close(self) -> None:
        handle, self.handle = self.handle, None  # an interrupted close must not free it twice
        if handle is not None:
            self._last = self._submitted = self._c.ffi.new("uint64_t*", self._last[0])
            self._c.lib.vkp_queue_free(handle)


class CProgram:
    """A program held by the C helper."""

    def __init__(self, c: Any, group: Any, queues: Sequence[CQueue], batches: Sequence[Batch]) -> None:
        self._c, self._queues = c, queues
        nranks = len(queues)
        ffi, address = c.ffi, api.load().address
        gates = [batch.gate or (c.ffi.NULL, 0) for batch in batches]
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
            ffi.new("uint64_t[]", [address(semaphore) for semaphore, _ in gates]),
            ffi.new("uint64_t[]", [value for _, value in gates]),
        )
        _require(c, self.handle, "vkp_program_new")
        self._values = ffi.new("uint64_t[]", nranks)
        self._failed = ffi.new("uint32_t*")

    def enqueue(self) -> list[int]:
        with enqueue_lock:
            result = self._c.lib.vkp_enqueue(self.handle, self._values, self._failed)
            values = self._c.ffi.unpack(self._values, len(self._queues))
        if result < 0:
            raise _enqueue_failed(result, int(self._failed[0]), values, _unsent(self._queues))
        return list(values)

    def last(self) -> list[int]:
        return [queue.last for queue in self._queues]

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self._c.lib.vkp_program_free(handle)


class CGroup:
    """A group held by the C helper: its waiter threads never take the GIL."""

    def __init__(self, queues: Sequence[CQueue], nslots: int) -> None:
        self._c = _c_helper()
        self._queues = queues
        handles = self._c.ffi.new("vkp_queue*[]", [queue.handle for queue in queues])
        self.handle = self._c.lib.vkp_group_new(len(queues), handles, nslots)
        _require(self._c, self.handle, "vkp_group_new")
        self._error = self._c.lib.vkp_group_error_word(self.handle)  # read in place, as CQueue's

    def set_native(self, dst: int, src: int, semaphore: Any) -> None:
        self._c.lib.vkp_group_native(self.handle, dst, src, api.load().address(semaphore))

    def set_local(self, dst: int, semaphore: Any) -> None:
        self._c.lib.vkp_group_local(self.handle, dst, api.load().address(semaphore))

    def set_slots(self, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        new = self._c.ffi.new
        self._c.lib.vkp_group_slots(self.handle, base, new("uint64_t[]", offsets), new("uint64_t[]", sizes))

    def set_mapped(self, rank: int, address: int) -> None:
        self._c.lib.vkp_group_mapped(self.handle, rank, address)

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
        if self.handle is not None:
            self._c.lib.vkp_group_abort(self.handle)

    def error(self) -> int:
        return int(self._error[0])

    def stats(self) -> BridgeStats:
        out = self._c.ffi.new("uint64_t[]", 5 + HISTOGRAM_BUCKETS + len(self._queues))
        self._c.lib.vkp_group_stats(self.handle, out)
        bridges, spins, blocks, copies, copied_bytes, *rest = self._c.ffi.unpack(out, len(out))
        histogram, pending = tuple(rest[:HISTOGRAM_BUCKETS]), tuple(rest[HISTOGRAM_BUCKETS:])
        return BridgeStats(bridges, spins, blocks, copies, copied_bytes, histogram, pending)

    def close(self) -> None:
        if self.handle is not None:
            self.stop()
            self._error = self._c.ffi.new("int32_t*", self._error[0])
            handle, self.handle = self.handle, None
            self._c.lib.vkp_group_free(handle)


class Waiter:
    """A prepared wait for one timeline value per queue."""

    def __init__(self, queues: Sequence[CQueue]) -> None:
        self._c = _c_helper()
        self._handles = self._c.ffi.new("vkp_queue*[]", [queue.handle for queue in queues])
        self._queues = queues

    def wait(self, values: Sequence[int], timeout_ns: int, spin_ns: int) -> int:
        ffi = self._c.ffi
        reached = ffi.new("uint32_t*")
        wanted = ffi.new("uint64_t[]", values)
        result = self._c.lib.vkp_wait(self._handles, wanted, len(self._queues), timeout_ns, spin_ns, reached)
        if result < 0:
            unsent = _unsent(self._queues)
            raise api.load().error(result, "vkQueueSubmit" if unsent else "vkWaitSemaphores", unsent)
        return int(reached[0])


def _unsent(queues: Sequence[CQueue]) -> str:
    """Say which operations the drivers have refused to take; empty for none."""
    return "; ".join(filter(None, (queue.stream.unsent() for queue in queues if queue.stream is not None)))


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


def _enqueue_failed(result: int, rank: int, values: Sequence[int], unsent: str = "") -> Exception:
    what = f"rank {rank}" if rank < len(values) else "nothing was submitted, the group is aborted"
    detail = f"{what}; timelines at {list(values)}" + (f"; {unsent}" if unsent else "")
    error = api.load().error(result, "vkQueueSubmit", detail)
    if rank < len(values):
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


def make_queue(handles: QueueHandles, *, naps: bool = False) -> QueuePort:
    """Return the port of a queue.

    Args:
        handles: of Vulkan.
        naps: waits look at the timeline every 60 us or so for their first 20 ms, and block only then: some GPUs'
            drivers wake blocked threads up to 7 ms late.
    """
    if kind() == "c":
        return CQueue(handles, naps=naps)
    from vkpar.vulkan import pump_python

    return pump_python.PyQueue(handles, naps=naps)


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
