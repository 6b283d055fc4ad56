"""Capture: operations and collectives are checked once, recorded once, and launched as often as wanted."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from vkpar import text
from vkpar.arrays.array import Array
from vkpar.device import Device, orphans
from vkpar.errors import InvalidUsageError
from vkpar.graph import attach, fusion, overlap, stretches
from vkpar.graph.local import Local
from vkpar.graph.params import Params
from vkpar.graph.protocol import Collective, Collectives, Launcher
from vkpar.graph.record import Recorder
from vkpar.graph.stats import Counts, GraphStats
from vkpar.graph.stretches import Item, Memory
from vkpar.timeouts import Waitable
from vkpar.unpickled import Fixed, Unpickled
from vkpar.vulkan import capturing, tracing
from vkpar.vulkan.capturing import Operation
from vkpar.vulkan.memory.recycle import Recycler
from vkpar.vulkan.memory.subbuffers import SubBuffers
from vkpar.vulkan.pump.ledger import together

_TIMES: Final = 64  # launches whose host time is kept
_BROKEN: Final = "the graph was closed inside its capture, by itself or with a device; nothing is recorded"
_NEW, _CAPTURING, _READY, _FAILED, _CLOSED = "new", "capturing", "ready", "not recorded", "closed"


class Graph(Fixed, Unpickled):
    """Work of devices that is recorded once and launched as a whole; made by :func:`capture`.

    A launch runs in program order with everything else on the devices. Launches may be queued. :meth:`close` frees it,
    and so does closing one of its devices; once its communicator is closed it cannot be launched any more.

    Attributes:
        devices: the devices, by rank where the graph has a communicator.
        collectives: the communicator's part; None without one.

    Examples:
        >>> a = device.zeros(3)
        >>> with vkpar.capture([device]) as graph:
        ...     a += 1
        >>> for _ in range(3):
        ...     work = graph.launch()
        >>> a.tolist()
        [3.0, 3.0, 3.0]
        >>> graph.close()
    """

    _internal = "add begin captures_for collect copies_between end holds notice_failure renew"

    def __init__(
        self,
        devices: Sequence[Device],
        collectives: Collectives | None = None,
        *,
        fuses: bool = True,
        overlaps: bool = False,
    ) -> None:
        self._fuses, self._overlaps = fuses, overlaps
        self.devices = tuple(devices)
        self.collectives = collectives
        self._state = _NEW
        self._process = os.getpid()
        self._thread = 0  # the one that captures
        self._broken = False  # it was closed inside its capture
        self._items: list[Item] = []
        self._pins: dict[int, object] = {}  # by identity: what the commands name
        self._captured: list[Collective] = []
        self._memory = [Recycler(most=1 << 62) for _ in self.devices]
        self._logical = [device.logical for device in self.devices]
        self._ranks: dict[object, int] = {logical.stream: rank for rank, logical in enumerate(self._logical)}
        self._params = Params(self.devices)
        self._touches: list[tuple[int, ...]] = []
        self._renewed: list[tuple[int, ...]] = []
        self._launcher: Launcher | None = None
        self._lock = threading.RLock()
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._launches = 0
        self._counts = Counts()

    # ---- capturing ----

    def begin(self) -> None:
        """Have this thread's work on the devices come here until :meth:`end`, which is called whatever happens.

        Raises:
            InvalidUsageError: it was captured already; this thread captures; another thread captures a device; or the
                communicator, or a device, is closed.
            CommunicatorError: the communicator has failed.
        """
        if self._state != _NEW:
            raise InvalidUsageError("a graph is captured once; call vkpar.capture again for another one")
        if capturing.current() is not None:
            raise InvalidUsageError("captures do not nest: this thread is inside vkpar.capture")
        if self.collectives is not None:
            self.collectives.begin()
        self._thread = threading.get_ident()
        self._state = _CAPTURING
        for device in self.devices:
            device.adopt(self)
        capturing.by_thread[self._thread] = self
        for logical, memory in zip(self._logical, self._memory, strict=True):
            attach.attach(logical, memory)

    def end(self, *, keep: bool) -> None:
        """End the capture, and record what was captured, or forget it; a second call does nothing.

        Raises:
            InvalidUsageError: the communicator, or a device, was closed meanwhile; or another thread began the capture.
            OutOfMemoryError: no room for command buffers.
        """
        if self._state not in (_CAPTURING, _FAILED):
            return
        try:
            self._detach()
            if keep and self._state == _CAPTURING:
                if self._thread != threading.get_ident():
                    raise InvalidUsageError("a capture is left by the thread that began it; nothing was recorded")
                self._record()
        finally:
            if self._state != _READY:
                self._state = _FAILED
                self._detach()
                self.close()

    def _detach(self) -> None:
        if capturing.by_thread.get(self._thread) is self:
            del capturing.by_thread[self._thread]
        for logical, memory in zip(self._logical, self._memory, strict=False):
            attach.detach(logical, memory)

    def holds(self, stream: object) -> bool:
        """Say whether it captures the operations of a device's stream."""
        return stream in self._ranks

    def add(self, stream: object, operation: Operation) -> None:
        """Take an operation of a device's stream."""
        self._hold(operation.pins)
        self._touches += operation.touches
        kept = operation._replace(pins=operation.pins[-1:])
        self._items.append(Item(self._ranks[stream], operation.name, kept))

    def renew(self, touches: Sequence[tuple[int, ...]]) -> None:
        """Count memory as written anew once all has run, whatever single kernels tell of it."""
        self._renewed += touches

    def captures_for(self, owner: object) -> bool:
        """Say whether it captures the collectives of the communicator that ``owner`` identifies."""
        return self.collectives is not None and self.collectives.owner is owner

    @property
    def ncollectives(self) -> int:
        """How many collectives it has taken."""
        return len(self._captured)

    def collect(
        self,
        collective: Collective,
        pins: Sequence[object],
        memory: Sequence[Sequence[Memory]],
        touches: Sequence[tuple[int, ...]],
    ) -> None:
        """Take a collective of its communicator."""
        if self._broken:
            for _, part in collective.parts:
                part.close()
            raise InvalidUsageError(_BROKEN)
        self._captured.append(collective)
        self._touches += touches
        self._items += [
            Item(
                step.rank,
                f"{collective.name} {step.phase}",
                step,
                step.reads,
                step.writes,
                step.received_nbytes,
                step.sent_nbytes,
                len(self._captured),
                tuple(memory[step.rank]) if step.errand is None else (),
                step.errand is not None,
                step.flags is not None,
                step.transfers,
                step.opens,
            )
            for step in collective.steps
        ]
        self._hold(pins)

    def _hold(self, pins: Sequence[object]) -> None:
        """Keep what the commands name, but for memory of the graph's own, which serves its later arrays again."""
        for pin in pins:
            if not isinstance(pin, SubBuffers) or not any(own.serves(pin) for own in self._memory):
                self._pins[id(pin)] = pin

    def param(self, name: str, dtype: object = "uint32", initial: float = 0) -> list[Array]:
        """Declare a parameter, inside the capture: a value that each launch may set.

        Kernels read it from an array of one element, one of which lies on each device. It keeps its value until a
        launch sets another one.

        Args:
            name: the keyword of :meth:`launch`.
            dtype: ``uint32``, ``int32`` or ``float32``.
            initial: its value where no launch has set one yet.

        Returns:
            the arrays, by device.

        Raises:
            InvalidUsageError: outside the capture; a name that is taken or is no identifier; another dtype; a value
                that the dtype cannot hold.
        """
        current: object = capturing.current()
        if current is not self:
            raise InvalidUsageError("parameters are declared inside the capture, by the thread that captures")
        with ExitStack() as apart:
            for logical in self._logical:
                apart.enter_context(attach.outside(logical))
            return self._params.add(name, dtype, initial)

    # ---- recording ----

    def _record(self) -> None:
        if self._broken:
            raise InvalidUsageError(_BROKEN)
        if self._fuses:
            self._items, extra = fusion.fuse(self._items, self.devices)
            self._pins[id(extra)] = extra
        if self._overlaps:
            self._items = overlap.spread(self._items)
        fused = sum(isinstance(item.content, fusion.Fused) for item in self._items)
        found = stretches.cut(self._items, range(len(self.devices)) if self._params.declared else ())
        recorder = Recorder(
            self.devices, found, list(self._captured), self._params, together([*self._touches, *self._renewed])
        )
        with ExitStack() as inside:  # a close of a device waits
            for logical in self._logical:
                inside.enter_context(logical.gate.lock())
                logical.check_open()
            if self.collectives is None:
                self._launcher = Local(self.devices, recorder)
            else:
                self._launcher = self.collectives.launcher(recorder)
            self._counts = Counts(recorder.operations, len(self._captured), recorder.barriers, len(found), fused)
            self._items, self._touches, self._renewed = [], [], []
            self._state = _READY

    # ---- launching ----

    def launch(self, **params: Any) -> Waitable:
        """Run the graph once, in program order, and return its work at once.

        Args:
            params: values of parameters; the others stay as they are. Up to four launches with new values may be under
                way; the fifth waits for the first stretches of the first.

        Returns:
            a ``Work``: ``wait(timeout)``, ``done()``, ``exception()``, ``await``.

        Raises:
            InvalidUsageError: inside a capture; a graph that was not captured to its end, or was closed, or whose
                communicator or device was closed; an unknown parameter, or a value that its dtype cannot hold.
            CommunicatorError: the graph's communicator has failed.
            DeviceLostError: a device is gone.
        """
        with self._lock:
            if self._state != _READY or (capturing.by_thread and capturing.current() is not None):
                self._refuse()
            assert self._launcher is not None, "a graph that is ready has one"
            values = self._params.check(params) if params else {}
            start = time.perf_counter()
            if not self._params.changes(values):
                work = self._launcher.launch(None, self)
            else:
                self._wait_for_cell()
                work = self._launcher.launch(self._params.write(values), self)
                self._params.launched(self._launcher.starts())
            self._times.append(time.perf_counter() - start)
            self._launches += 1
            if tracing.watcher is not None:
                tracing.watcher.host("graph launch", time.monotonic() - self._times[-1], launch=self._launches)
            return work

    def _refuse(self) -> None:
        """Raise an InvalidUsageError that says why the graph cannot be launched."""
        if capturing.current() is not None:
            raise InvalidUsageError("a graph cannot be launched inside vkpar.capture")
        if self._state in (_NEW, _CAPTURING):
            raise InvalidUsageError("a graph is launched after its capture: leave the with block first")
        if self._state == _FAILED:
            raise InvalidUsageError("the graph's capture was ended by an exception; nothing was recorded")
        raise InvalidUsageError("the graph is closed: by its own close(), or with one of its devices")

    def _wait_for_cell(self) -> None:
        """Wait until the copies from the next cell are done: the launch that used it has begun."""
        starts = self._params.next_starts
        queues = [logical.compute for logical in self._logical]
        if starts is None:  # an interrupt hit that launch
            starts = [queue.last for queue in queues]
        for queue, value in zip(queues, starts, strict=False):
            if value:
                queue.wait(value)

    # ---- what it is ----

    def stats(self) -> GraphStats:
        """Return what the graph consists of, and how long its launches took the host."""
        times = list(self._times)
        host_us = round(statistics.median(times) * 1e6, 1) if times else None
        return GraphStats(*self._counts, self._launches, host_us)

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._state == _CLOSED

    def __repr__(self) -> str:
        if self._state in (_NEW, _CAPTURING, _FAILED):
            return f"<vkpar.Graph, {self._state}>"
        counts, number = self._counts, text.number
        what = f"{number(counts.operations, 'operation')}, {number(counts.collectives, 'collective')}"
        where = f"{number(counts.stretches, 'stretch', 'stretches')} on {number(len(self.devices), 'device')}"
        return f"<vkpar.Graph of {what}: {where}{', closed' if self.closed else ''}>"

    # ---- the end ----

    def close(self) -> None:
        """Free the graph once its launches are done; a second call does nothing.

        Inside its capture it keeps anything from being recorded: the end of the capture raises then. In a forked child
        nothing is touched.
        """
        if self._state == _CAPTURING:
            self._broken = True
            self._drop_captured()
            return
        with self._lock:
            if self._state != _FAILED:
                self._state = _CLOSED
            launcher = self._launcher
            if os.getpid() != self._process:
                self._launcher = None  # what a forked child has of it is the parent's
            elif launcher is not None:
                launcher.close()
                self._launcher = None
            elif self._state == _FAILED:
                self._drop_captured()
            self._items, self._captured, self._memory = [], [], []
            self._pins = {}
            self._params = Params(())

    def _drop_captured(self) -> None:
        """Free what the collectives hold, which were not recorded."""
        captured, self._captured = self._captured, []
        for collective in captured:
            for _, part in collective.parts:
                part.close()

    def copies_between(self, _source: Device, _target: Device) -> bool:
        """Say that it copies nothing between devices for others."""
        return False

    def notice_failure(self) -> None:
        """Do nothing: its communicator does."""

    def __del__(self) -> None:
        if getattr(self, "_launcher", None) is not None:
            orphans.append(self)  # a finalizer must not wait
