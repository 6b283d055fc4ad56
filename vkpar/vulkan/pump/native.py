"""The binding of the C helper ``_pump``, which submits, enqueues programs of batches, bridges timelines and waits."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from vkpar.errors import OutOfMemoryError, UnsupportedError
from vkpar.timeouts import SLICE_NS
from vkpar.vulkan import api
from vkpar.vulkan.pump.ports import HISTOGRAM_BUCKETS, Batch, BridgeStats, QueueHandles, enqueue_lock

# What fails on a group's behalf, in the helper's order; the last three are a vendor's, under whichever names.
_GROUP_CALLS = ("vkWaitSemaphores", "vkSignalSemaphore", "vkQueueSubmit", "stream wait", "stream copy", "stream write")
_CARRIED, _AFTER, _BEGINS = 1 << 31, 1 << 30, 1 << 29  # among the slots that are read, as the helper has them

_Item = TypeVar("_Item")


class CQueue:
    """A queue's submissions, counted on its timeline.

    Args:
        handles: of Vulkan.
        naps: waits look at the timeline every 60 us or so for their first 20 ms, and block only then: some GPUs'
            drivers wake blocked threads up to 7 ms late.
        skips: the timeline may skip values of batches that are submitted together.
    """

    def __init__(self, handles: QueueHandles, *, naps: bool = False, skips: bool = False) -> None:
        self._c = helper()
        self.handle = self._c.lib.vkp_queue_new(*map(api.load().address, vars(handles).values()))
        _require(self._c, self.handle, "vkp_queue_new")
        self._c.lib.vkp_queue_habits(self.handle, naps, skips)
        # Read in place: a C call gives up the GIL, and getting it back takes up to 5 ms beside a busy thread.
        self._last = self._c.lib.vkp_queue_last_word(self.handle)
        self._submitted = self._c.lib.vkp_queue_submitted_word(self.handle)
        self._value = self._c.ffi.new("uint64_t*")
        self.stream: Any = None  # what gathers operations for the device's compute queue

    @property
    def last(self) -> int:
        """The highest timeline value that a submitted batch, or what the stream has gathered, will signal."""
        return int(self._last[0])

    @property
    def submitted(self) -> int:
        """The same without what the stream has gathered, and what a thread is about to submit."""
        return int(self._submitted[0])

    def is_sending(self) -> bool:
        """Say whether a thread is about to submit some of what :attr:`last` counts."""
        return self.handle is not None and bool(self._c.lib.vkp_queue_sending(self.handle))

    def pair(self, other: CQueue) -> None:
        """Make each submission wait for all that ``other``, a queue of the same device, was given before."""
        self._c.lib.vkp_queue_pair(self.handle, other.handle)

    def submit(self, command: Any) -> int:
        """Submit one command buffer and return the value that it will signal."""
        vk = api.load()
        with enqueue_lock:
            result = self._c.lib.vkp_submit(self.handle, vk.address(command), self._value)
            value = int(self._value[0])
        if result < 0:
            raise vk.error(result, *_refused([self], "vkQueueSubmit"))
        return value

    def wait_idle(self, function: Any) -> None:
        """Call vkQueueWaitIdle, the ``function``, with no submission meanwhile."""
        with enqueue_lock:
            result = self._c.lib.vkp_queue_idle(self.handle, api.load().address(function))
        api.load().check(result, "vkQueueWaitIdle")

    def close(self) -> None:
        """Free the helper's queue."""
        handle, self.handle = self.handle, None  # an interrupted close must not free it twice
        if handle is not None:
            self._last = self._submitted = self._c.ffi.new("uint64_t*", self._last[0])
            self._c.lib.vkp_queue_free(handle)


class CShape:
    """What programs of the same batches but for the command buffers have in common, ready for the C helper.

    Attributes:
        nqueues: how many queues the group has.
    """

    def __init__(self, c: Any, group: Any, queues: Sequence[CQueue], batches: Sequence[Batch]) -> None:
        self._c, self._group, self._queues = c, group, queues
        self.nqueues = len(queues)
        ffi, address = c.ffi, api.load().address
        holds = [batch.hold or (c.ffi.NULL, 0) for batch in batches]
        carried, after, begins = _CARRIED.__or__, _AFTER.__or__, ((), (_BEGINS,))
        read_start, reads = _flatten(
            [
                [*begins[batch.begins], *batch.reads, *map(carried, batch.carried), *map(after, batch.after)]
                for batch in batches
            ]
        )
        write_start, writes = _flatten([batch.writes for batch in batches])
        self._number = len(batches)
        self._ranks = ffi.new("uint32_t[]", [batch.rank for batch in batches])
        self._slots = [ffi.new("uint32_t[]", words) for words in (read_start, reads, write_start, writes)]
        self._gates = (
            ffi.new("uint64_t[]", [address(semaphore) for semaphore, _ in holds]),
            ffi.new("uint64_t[]", [value for _, value in holds]),
        )
        self._opens = ffi.new("uint8_t[]", [batch.opens for batch in batches])
        transfers = [transfer for batch in batches for transfer in batch.transfers]
        starts, pieces = _flatten([transfer.pieces for transfer in transfers])
        pairs = zip(transfers, starts, strict=False)
        named = [(item.src, item.dst, item.lane, first, len(item.pieces)) for item, first in pairs]
        self._transfers = ffi.new("vkp_transfer[]", named), ffi.new("vkp_piece[]", pieces)

    def program(self, commands: list[Any]) -> CProgram:
        """Return a program of the batches with these command buffers."""
        c = self._c
        handles = api.load().ffi.new("VkCommandBuffer[]", commands)
        words = c.ffi.cast("uint64_t*", handles)
        handle = c.lib.vkp_program_new(self._group, self._number, self._ranks, words, *self._slots, *self._gates)
        _require(c, handle, "vkp_program_new")
        program = CProgram(c, handle, self._queues)
        transfers, pieces = self._transfers
        if len(transfers):
            made = c.lib.vkp_program_transfers(handle, self._opens, len(transfers), transfers, len(pieces), pieces)
            api.load().check(made, "vkp_program_transfers")
        return program


class CProgram:
    """A program held by the C helper."""

    def __init__(self, c: Any, handle: Any, queues: Sequence[CQueue]) -> None:
        self._c, self.handle, self._queues = c, handle, queues
        self._values = c.ffi.new("uint64_t[]", len(queues))
        self._failed = c.ffi.new("uint32_t*")
        self._has_preludes = False

    def enqueue(self) -> list[int]:
        """Submit every batch in one uninterruptible step; return each queue's last timeline value.

        A failure aborts the group; on an aborted group nothing is submitted.

        Raises:
            VulkanError: a submission failed, or the group was aborted before.
        """
        with enqueue_lock:
            result = self._c.lib.vkp_enqueue(self.handle, self._values, self._failed)
            values = self._c.ffi.unpack(self._values, len(self._queues))
        if result < 0:
            raise _enqueue_failed(result, int(self._failed[0]), values, *_refused(self._queues, "vkQueueSubmit"))
        return list(values)

    def set_preludes(self, commands: Sequence[Any] | None) -> None:
        """Have later submissions begin with these command buffers, by queue; with none from ``None`` on."""
        if commands is None and not self._has_preludes:
            return
        address = api.load().address
        for rank in range(len(self._queues)):
            given = commands[rank] if commands is not None and rank < len(commands) else None
            self._c.lib.vkp_program_prelude(self.handle, rank, 0 if given is None else address(given))
        self._has_preludes = commands is not None

    def touch(self, touches: Sequence[tuple[int, ...]]) -> None:
        """Say what it does to arrays, in order, as :meth:`vkpar.vulkan.pump.ledger.Ledger.touches` has it."""
        made = self._c.ffi.new("vkp_touch[]", touches)
        api.load().check(self._c.lib.vkp_program_touch(self.handle, len(touches), made), "vkp_program_touch")

    def last(self) -> list[int]:
        """Return each queue's last timeline value, whatever was submitted to it."""
        return [queue.last for queue in self._queues]

    def close(self) -> None:
        """Free the helper's program."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._c.lib.vkp_program_free(handle)


class CGroup:
    """A group held by the C helper: its waiter threads never take the GIL."""

    def __init__(self, queues: Sequence[CQueue], nslots: int) -> None:
        self._c = helper()
        self._queues = queues
        handles = self._c.ffi.new("vkp_queue*[]", [queue.handle for queue in queues])
        self.handle = self._c.lib.vkp_group_new(len(queues), handles, nslots)
        _require(self._c, self.handle, "vkp_group_new")
        self._error = self._c.lib.vkp_group_error_word(self.handle)  # read in place, as CQueue's
        self.number = int(self._c.lib.vkp_group_number(self.handle))  # in the ledger

    def set_native(self, dst: int, src: int, semaphore: Any) -> None:
        """Let ``dst`` wait on ``semaphore``: ``src``'s timeline as ``dst``'s device knows it."""
        self._c.lib.vkp_group_native(self.handle, dst, src, api.load().address(semaphore))

    def set_local(self, dst: int, semaphore: Any) -> None:
        """Name the timeline of ``dst``'s device that only the host signals."""
        self._c.lib.vkp_group_local(self.handle, dst, api.load().address(semaphore))

    def set_slots(self, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Give the host address of the memory that ranks share, and each slot's first byte in it and length."""
        new = self._c.ffi.new
        self._c.lib.vkp_group_slots(self.handle, base, new("uint64_t[]", offsets), new("uint64_t[]", sizes))

    def set_mapped(self, rank: int, address: int) -> None:
        """Let ``rank`` have its slots at ``address``, laid out alike; no link to or from it is native.

        The bridge copies slots between the rank and the others: see ``copy_slot`` in ``_pump_bridge.h``.
        """
        self._c.lib.vkp_group_mapped(self.handle, rank, address)

    def start(self, spin_ns: int) -> None:
        """Start a waiter thread per source queue that is bridged somewhere.

        Raises:
            OutOfMemoryError: the system starts no thread.
        """
        error = self._c.lib.vkp_group_start(self.handle, spin_ns, SLICE_NS)
        if error:
            raise OutOfMemoryError(
                "VK_ERROR_OUT_OF_HOST_MEMORY",
                "pthread_create",
                message=f"the system has nothing left for a thread between ranks: {os.strerror(error)}",
            )

    def shape(self, batches: Sequence[Batch]) -> CShape:
        """Prepare ``batches``, given in one global order, for programs with any command buffers."""
        return CShape(self._c, self.handle, self._queues, batches)

    def program(self, batches: Sequence[Batch]) -> CProgram:
        """Prepare ``batches``, given in one global order, with their command buffers."""
        return self.shape(batches).program([batch.command for batch in batches])

    def stop(self) -> None:
        """End the waiter threads, after the copy that each is at; parked batches stay parked."""
        if self.handle is not None:
            self._c.lib.vkp_group_stop(self.handle)

    def doubt(self) -> None:
        """Have :meth:`abort` take for lost what programs wrote that are done, too, as far as the ledger goes back."""
        if self.handle is not None:
            self._c.lib.vkp_group_doubt(self.handle)

    def abort(self) -> None:
        """Let every parked batch run, its data undefined, so that the queues drain; nothing is enqueued any more.

        What the programs that are not done were to write is lost from here on, says the ledger.
        """
        if self.handle is not None:
            self._c.lib.vkp_group_abort(self.handle)

    def error(self) -> int:
        """Return the VkResult that stopped the bridge, or the thread that submits; 0 where none did."""
        return int(self._error[0])

    def failed(self) -> tuple[str, int]:
        """Return the call that :meth:`error` is of, and the queue whose device it was made on."""
        if self.handle is None:
            return self._failed
        queue = self._c.ffi.new("uint32_t*")
        call = _GROUP_CALLS[self._c.lib.vkp_group_failed(self.handle, queue)]
        status = self._c.lib.vkp_group_status(self.handle)
        return f"{call} (status {status})" if status else call, int(queue[0])

    def stats(self) -> BridgeStats:
        """Return the bridge threads' counters."""
        out = self._c.ffi.new("uint64_t[]", 5 + HISTOGRAM_BUCKETS + len(self._queues))
        self._c.lib.vkp_group_stats(self.handle, out)
        bridges, spins, blocks, copies, copied_bytes, *rest = self._c.ffi.unpack(out, len(out))
        histogram, pending = tuple(rest[:HISTOGRAM_BUCKETS]), tuple(rest[HISTOGRAM_BUCKETS:])
        return BridgeStats(bridges, spins, blocks, copies, copied_bytes, histogram, pending)

    def close(self) -> None:
        """Stop, and free the helper's group."""
        if self.handle is not None:
            self.stop()
            self._error, self._failed = self._c.ffi.new("int32_t*", self._error[0]), self.failed()
            handle, self.handle = self.handle, None
            self._c.lib.vkp_group_free(handle)


class Waiter:
    """A prepared wait for one timeline value per queue."""

    def __init__(self, queues: Sequence[CQueue]) -> None:
        self._c = helper()
        self._handles = self._c.ffi.new("vkp_queue*[]", [queue.handle for queue in queues])
        self._queues = queues

    def wait(self, values: Sequence[int], timeout_ns: int, spin_ns: int) -> int:
        """Wait until each queue has its value of ``values``; return how many queues, in order, have it.

        Raises:
            VulkanError: the wait failed, for example because the device was lost.
        """
        ffi = self._c.ffi
        reached = ffi.new("uint32_t*")
        wanted = ffi.new("uint64_t[]", values)
        result = self._c.lib.vkp_wait(self._handles, wanted, len(self._queues), timeout_ns, spin_ns, reached)
        if result < 0:
            raise api.load().error(result, *_refused(self._queues, "vkWaitSemaphores"))
        return int(reached[0])


def _refused(queues: Sequence[CQueue], call: str) -> tuple[str, str]:
    """Return what failed, ``call`` where no stream did, and which operations the drivers have refused to take."""
    told = [queue.stream.unsent() for queue in queues if queue.stream is not None]
    refused = [(failed, unsent) for failed, unsent in told if unsent]
    return refused[0][0] if refused else call, "; ".join(unsent for _, unsent in refused)


def _require(c: Any, handle: Any, call: str) -> None:
    if handle == c.ffi.NULL:
        raise OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", call)


def _flatten(parts: Sequence[Sequence[_Item]]) -> tuple[list[int], list[_Item]]:
    start = [0]
    flat: list[_Item] = []
    for part in parts:
        flat += part
        start.append(len(flat))
    return start, flat


def _enqueue_failed(result: int, rank: int, values: Sequence[int], call: str, unsent: str) -> Exception:
    what = f"rank {rank}" if rank < len(values) else "nothing was submitted, the group is aborted"
    detail = f"{what}; timelines at {list(values)}" + (f"; {unsent}" if unsent else "")
    error = api.load().error(result, call, detail)
    if rank < len(values):
        error.rank = rank  # type: ignore[attr-defined]
    return error


@functools.cache
def helper() -> ModuleType:
    """Return the compiled helper, with its functions in ``lib``.

    Raises:
        UnsupportedError: the helper was not built, or does not load into this Python.
    """
    try:
        return importlib.import_module("vkpar.vulkan.pump._pump")
    except ImportError as error:
        raise UnsupportedError(f"vkpar's C helper cannot be loaded ({error}): {_way_out()}") from error


def _way_out() -> str:
    """Say how to get the C helper: from the installed package that a clone hides, else by building it."""
    mine = Path(__file__).resolve().parents[3]
    folders = [Path(folder or ".").resolve() for folder in sys.path]
    for folder in folders:
        if folder != mine and any((folder / "vkpar" / "vulkan" / "pump").glob("_pump.*so")):
            return (
                f"Python took the folder {mine / 'vkpar'}, which was never built, and not the package installed "
                f"in {folder}, since {_why_first(mine)}. Start Python in another folder, or build this one: "
                "pip install -e . there"
            )
    return (
        "with a C compiler and the Python headers there (Debian and Ubuntu: apt install gcc libc6-dev python3-dev) "
        "reinstall vkpar; in a clone run python -m vkpar.vulkan.pump.build"
    )


def _why_first(folder: Path) -> str:
    """Say why Python looks into a folder before others."""
    if str(folder) in map(os.path.realpath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))):
        return "PYTHONPATH names its parent"
    return "Python was started there" if folder == Path.cwd() else "a script that lies beside it was started"


def wait(queues: Sequence[CQueue], values: Sequence[int], timeout_ns: int, spin_ns: int = 0) -> int:
    """Wait until each queue's timeline has its value; return how many, in order, have it (all: success).

    Raises:
        VulkanError: the wait failed, for example because the device was lost.
    """
    return Waiter(queues).wait(values, timeout_ns, spin_ns) if queues else 0
