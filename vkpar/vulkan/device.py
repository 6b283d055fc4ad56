"""An opened device: queues, memory, pipelines and staging of one VkDevice."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from vkpar import env, timeouts
from vkpar.errors import DeviceLostError
from vkpar.timeouts import Deadline
from vkpar.vulkan import api, bulk
from vkpar.vulkan.command import check_dispatch
from vkpar.vulkan.gate import Gate
from vkpar.vulkan.machine import create, instance
from vkpar.vulkan.machine.drivers import read_heaps
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory import memtypes
from vkpar.vulkan.memory.accounting import ARRAYS, LIMITED, Accounting, DeviceMemory
from vkpar.vulkan.memory.buffer import Buffer, BufferRange, paired
from vkpar.vulkan.memory.imports import HostImports
from vkpar.vulkan.memory.mapped import MappedArrays
from vkpar.vulkan.memory.memory import Allocator
from vkpar.vulkan.memory.recycle import Divided, Recycler
from vkpar.vulkan.memory.subbuffers import SubBuffers, cut
from vkpar.vulkan.pipelines.kernel import Pipeline, PipelineCache, Traits
from vkpar.vulkan.pump.ledger import Ledger
from vkpar.vulkan.queue import Queue, drain
from vkpar.vulkan.reclaim import Reclaimer
from vkpar.vulkan.staging import HostCopies, Staging
from vkpar.vulkan.stream import Binding, Stream, pushes

_log = logging.getLogger("vkpar")
_LOOK_SECONDS = 0.001
_BARRIERS = "barriers"
_RATES = {"discrete": 1000}  # bytes a nanosecond that kernels move, by the kind of device; estimates
_numbers = itertools.count(1)
_MEMORY_CHECK, _UNWRITTEN = "memory", 0xFFFFFFFF  # NaN in every float type, -1 in every signed one


class LogicalDevice:
    """A VkDevice with what belongs to it.

    Args:
        info: the physical device.
        own: told of this object before anything is made: whoever that is may close it where an interrupt comes.

    Attributes:
        info: the physical device.
        label: its name and ``number``, which no other device of the process has, for messages.
        gate: every call passes it; shut by :meth:`close`.
        compute: the queue that kernels run on.
        transfer: the queue that uploads and downloads run on; the compute queue where there is no other.
        stream: gathers what runs on the compute queue.
        host: copies between the host and its memory.
        recycler: the memory of dropped arrays, for the next ones.
        ledger: what failed collectives have spoiled of its memory.
        keepers: who keeps memory for later, held weakly: they are asked for it before an allocation fails.
        users: what the device must outlive, until that is freed: rigs, and graphs' recordings.
        borrowers: who cannot be stopped and may still use memory of its arrays, see :meth:`lend`.
    """

    def __init__(self, info: DeviceInfo, own: Callable[[LogicalDevice], None] | None = None) -> None:
        self.info = info
        self._vk = api.load()
        self._process = os.getpid()
        self.number = next(_numbers)
        self.label = f"{info.name} #{self.number}"
        self.gate = Gate(self.label)
        self.users: set[object] = set()
        self.recycler: Recycler | Divided = Recycler(info.heaps[memtypes.heap_of(info, memtypes.DEVICE)].nbytes)
        self._closing = threading.RLock()
        self._is_open = self._drained = self._freed = False
        self.borrowers: set[object] = set()
        self.quarantined = False
        self._watched = instance.get() if instance.validating() else None
        create.require(info)
        self._made = self._vk.making("Device", info.handle)
        if own is not None:
            own(self)
        compute, transfer = create.choose_families(info)
        self._second: Queue | None = None
        self._has_second = compute != transfer and create.has_second(info, transfer)
        families = {compute: 1, transfer: 1 + self._has_second}
        with instance.gate.lock(), ExitStack() as undo:
            instance.gate.check()
            undo.callback(self._vk.discard, self._made, None)
            self.handle: Any = create.create_device(info, families, self._made)
            self.ledger = self.recycler.ledger = Ledger(self.handle)
            self.compute = self._queue(compute, "compute", undo)
            self.transfer = self.compute
            if transfer != compute:
                self.transfer = self._queue(transfer, "transfer", undo)
                self.compute.port.pair(self.transfer.port)
            self.stream = Stream(
                self.handle, self.compute, barriers=_BARRIERS in env.debug_checks(), rate=_RATES.get(info.type, 100)
            )
            undo.callback(self.stream.close)
            self.compute.port.stream = self.transfer.port.stream = self.stream
            self._keep_memory((compute, transfer))
            undo.callback(setattr, self, "_is_open", False)  # an interrupt may come between these two
            self._is_open = True
            undo.pop_all()

    def _keep_memory(self, families: tuple[int, int]) -> None:
        """Make what keeps and carries memory; families of queues share it."""
        self.accounting = Accounting()
        self._reclaimer = Reclaimer(self.info, self.gate, self.compute, self.transfer, lambda: self.recycler)
        self.keepers, relief = self._reclaimer.keepers, self._reclaimer.relief
        self.allocator = Allocator(self.handle, self.info, families, self.accounting, relief, self.label)
        traits = Traits.of(self.info, self.label)
        self.pipelines = PipelineCache(self.handle, self.gate, self.compute, traits)
        self.bulk = bulk.Copies(self.info, self.pipelines, self.stream, self.pushes)
        straight, ring_bytes = env.get().ring == "auto", env.get().ring_bytes
        kind = memtypes.UPLOAD if straight else memtypes.HOST
        self.staging = Staging(self.allocator, self.transfer, ring_bytes, kind)
        self.imports = HostImports(self.handle, self.info, self.transfer, kernels=self.transfer is self.compute)
        # Uploads that fit the ring need not wait there.
        mapped = MappedArrays(self.transfer, ring_bytes + 1) if straight else None
        self.host = HostCopies(self.gate, self.stream, self.staging, self.imports, mapped, self.reap)
        self._reclaimer.serve(self.allocator, self.imports.reap, self.pipelines.reap)

    def _queue(self, family: int, label: str, undo: ExitStack) -> Queue:
        queue = Queue(self.handle, self.info, family, label, self.gate)
        undo.callback(queue.close)
        return queue

    @property
    def queues(self) -> list[Queue]:
        """The queues that work can be pending on."""
        queues = [self.compute] if self.transfer is self.compute else [self.compute, self.transfer]
        return queues if self._second is None else [*queues, self._second]

    def copy_queues(self) -> list[Queue]:
        """Return the queues that copy beside the kernels: one that copies in, and one out where there is a second.

        There are none where the compute queue does everything. The second one is opened here; it waits for nothing
        but what it is told to, so that what it copies must be ordered by its submissions.
        """
        with self.gate.lock():
            self.gate.check()
            if self._has_second and self._second is None:
                self._second = Queue(self.handle, self.info, self.transfer.family, "transfer", self.gate, index=1)
            return self.queues[1:]

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self.gate.is_shut

    @property
    def serves(self) -> bool:
        """True where there is nothing to check, and nothing to raise, before dropped memory is handed out again."""
        watched = self._watched
        if self.gate.is_shut or (watched is not None and watched.messages):
            return False
        return not env.get().debug or _MEMORY_CHECK not in env.debug_checks()

    @property
    def done(self) -> bool:
        """True once nothing is left to close."""
        return self._freed or self.quarantined

    def check_open(self) -> None:
        """Refuse use after close and after a fork; raise the validation layer's messages.

        Raises:
            InvalidUsageError: the device is closed, or was opened before a fork.
            ValidationError: the validation layer has reported something since the last call.
        """
        self.gate.check()
        instance.get().raise_messages()

    def allocate_array(self, nbytes: int, label: Callable[[], str] | None = None, purpose: str = ARRAYS) -> SubBuffers:
        """Return memory for an array: as many new buffers as the driver's limits ask for.

        The memory is given back when it is no longer referenced and the work submitted until then is done.

        Raises:
            OutOfMemoryError: no memory is left, or ``VKPAR_MAX_MEMORY`` does not allow so much.
            UnsupportedError: the driver has no such memory.
        """
        with self.gate.lock():
            self.gate.check()
            self.reap()
            self.allocator.check_total(nbytes, purpose)
            sizes = cut(nbytes, self.info.limits.max_buffer)
            made = SubBuffers([self.allocate(size, purpose=purpose, label=label, total=nbytes) for size in sizes])
            return self.recycler.hold(made) if purpose == ARRAYS else made

    def allocate(
        self, nbytes: int, *, purpose: str, label: Callable[[], str] | None = None, total: int | None = None
    ) -> Buffer:
        """Return a new buffer of device memory, which is given back as :meth:`allocate_array` says.

        Where there is no room, there is :meth:`Reclaimer.relief`.

        Args:
            nbytes: its size.
            purpose: what it is booked for: ``arrays``, ``bounce buffers`` or ``slots``.
            label: says what it holds, for messages.
            total: bytes of all that it is a part of, for messages.

        Raises:
            OutOfMemoryError: no memory is left, or ``VKPAR_MAX_MEMORY`` does not allow so much.
            UnsupportedError: more than the driver allows in one allocation, or no such memory.
        """
        with self.gate.lock():
            self.gate.check()
            self.reap(everything=_MEMORY_CHECK in env.debug_checks())
            buffer = self.allocator.allocate(nbytes, purpose=purpose, label=label, total=total)
            if purpose in LIMITED and _MEMORY_CHECK in env.debug_checks():
                self.fill([buffer.range(0, buffer.reserved)], _UNWRITTEN)
            return buffer

    def reap(self, *, everything: bool = False) -> None:
        """Release what nobody holds any more and whose work is done, as :meth:`Reclaimer.reap` does."""
        self._reclaimer.reap(everything=everything)

    def trim(self) -> int:
        """Free the memory that is kept for later; return how many bytes."""
        with self.gate.lock():
            self.gate.check()
            self.stream.flush()
            self.reap(everything=True)
            return self.allocator.trim()

    def memory(self) -> DeviceMemory:
        """Return what the memory is used for now; the budgets are read afresh."""
        with self.gate.lock():
            self.gate.check()
            self.reap(everything=True)
            room, trimmable = self.allocator.room(), self.allocator.trimmable
            return self.accounting.report(read_heaps(self.info), room, trimmable, len(self.pipelines))

    def pushes(self, bindings: int) -> bool:
        """Say whether the descriptors of eager kernels with so many bindings are pushed.

        GPU-assisted validation does not see pushed ones.
        """
        return pushes(self.info.extensions, bindings) and not instance.watching()

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
        """Run a kernel after everything before it, as part of the operation ``name`` that may take ``cost_ns``.

        ``bindings`` says what it does to ``ranges``, as :meth:`Stream.dispatch` takes it.

        Raises:
            InvalidUsageError, UnsupportedError: as :func:`~vkpar.vulkan.command.check_dispatch` does.
        """
        check_dispatch(self.info.limits, self.label, ranges, groups)
        self.stream.dispatch(name, pipeline, ranges, push, groups, cost_ns, bindings)

    def copy(self, source: Sequence[BufferRange], target: Sequence[BufferRange]) -> None:
        """Copy bytes on the device, in program order; both have as many, and they do not overlap."""
        left: list[tuple[BufferRange, BufferRange]] = []
        for pair in paired(source, target):
            if not self.bulk.copy(*pair):
                left.append(pair)
        if left:
            self.stream.copy("copy", [first for first, _ in left], [second for _, second in left])

    def fill(self, target: Sequence[BufferRange], word: int) -> None:
        """Fill with a 32-bit word, in program order; offsets and lengths are multiples of 4."""
        self.stream.fill("fill", target, word)

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until everything submitted is done.

        Raises:
            WaitTimeoutError: ``timeout`` seconds were not enough.
            InvalidUsageError: the device is closed; or ``timeout`` is no number, NaN or negative.
        """
        self.host.refuse_captured("waiting for a device")
        deadline = Deadline(timeout)
        for queue in self.queues:
            queue.wait(queue.last, deadline)

    def refuse_calls(self) -> None:
        """Let no call begin any more, and wait for those under way in other threads; nothing in a forked child."""
        if os.getpid() == self._process:
            self._shut()

    def lend(self, borrower: object) -> None:
        """Have the memory of all arrays so far, dropped ones too, serve no other array for good: somebody may use it.

        A device that has :attr:`borrowers` when it is closed is left alone; one that is done is taken from these.
        """
        self.borrowers.add(borrower)
        held = self.recycler
        before = held.rest if isinstance(held, Divided) else held
        fresh = Recycler(self.info.heaps[memtypes.heap_of(self.info, memtypes.DEVICE)].nbytes, before=before)
        if isinstance(held, Divided):
            held.rest = fresh
        else:
            self.recycler = fresh
        self._reclaimer.keep()

    def outlive(self, close_dropped: Callable[[], None]) -> None:
        """Wait for the :attr:`users` that another thread is about to free, for as long as a device is waited for.

        Args:
            close_dropped: closes those that a garbage collector has dropped, in another thread perhaps, meanwhile.
        """
        deadline = Deadline(timeouts.DRAIN_SECONDS)
        while self.users and not self.quarantined and os.getpid() == self._process and not deadline.passed:
            time.sleep(_LOOK_SECONDS)
            close_dropped()

    def _shut(self) -> None:
        self.gate.shut()
        if self._is_open:
            self.stream.refuse()

    def close(self) -> None:
        """Wait for pending work, then free everything; a device that does not drain is left alone and counted.

        A close that was interrupted goes on at the next call. In a forked child nothing is touched.
        """
        if os.getpid() != self._process:
            self.gate.is_shut = True
            return
        with self._closing:
            self._shut()
            if not self._freed and not self.quarantined:
                self._close()

    def _close(self) -> None:
        if not self._is_open:
            self._vk.discard(self._made, None)
            self._freed = True
            return
        queues = self.queues
        refused = self.stream.abandon()
        if refused is not None:
            _log.error("%s is closed with work that its driver has refused: %s", self.label, refused)
        if not self._drained and drain(queues, [queue.last for queue in queues], timeouts.DRAIN_SECONDS):
            self.quarantine()
            return
        self._drained = True
        if self.borrowers:
            self.quarantine("lends memory to others for good")
            return
        self.staging.close()
        self.imports.close()
        self.pipelines.close()
        self.allocator.close()
        self.stream.close()
        self.ledger.forget()
        for queue in reversed(queues):
            queue.close()
        self._vk.discard(self._made, None)
        self._freed = True

    def quarantine(self, why: str = "does not finish its work") -> None:
        """Give the device up, since its work does not end: its handles are leaked, and later use is refused."""
        self.quarantined = True
        self.ledger.forget()
        self.stream.close(leak=True)
        self.imports.leak()
        self.gate.refuse(lambda: DeviceLostError("VK_ERROR_DEVICE_LOST", self.label, f"quarantined: it {why}"))
        _log.error("%s %s; it is given up and its handles are leaked", self.label, why)
