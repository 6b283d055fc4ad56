"""Capture: operations and collectives are checked once, recorded once, and launched as often as wanted."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from vkpar.arrays.array import Array
from vkpar.device import Device, close_orphans, orphans
from vkpar.errors import InvalidUsageError
from vkpar.graph import stretches
from vkpar.graph.local import Local
from vkpar.graph.params import Params
from vkpar.graph.protocol import Collective, Collectives, Launcher, Recorded
from vkpar.graph.stretches import Item, Stretch
from vkpar.vulkan import capturing
from vkpar.vulkan.capturing import Operation
from vkpar.vulkan.memory.recycle import Recycler
from vkpar.vulkan.pump.ports import Batch
from vkpar.vulkan.stream import Recording

_TIMES: Final = 64  # launches whose host time is kept
_NEW, _CAPTURING, _READY, _FAILED, _CLOSED = "new", "capturing", "ready", "failed", "closed"


@dataclass(frozen=True)
class GraphStats:
    """What a graph consists of.

    Attributes:
        operations: those of all devices, steps of collectives not counted.
        collectives: how many.
        barriers: between operations, one at the begin of each stretch included; those of collectives are not counted.
        stretches: submissions of all devices together; collectives cut a device's work into them.
        launches: so far.
        host_us: microseconds that a launch took the host, the median of the last 64; None before the first.
    """

    operations: int
    collectives: int
    barriers: int
    stretches: int
    launches: int
    host_us: float | None


class Graph:
    """Work of devices that is recorded once and launched as a whole; made by :func:`capture`.

    A launch runs in program order with everything else on the devices. Launches may be queued. It is a context manager
    for the capture alone; :meth:`close` frees it, and so does closing one of its devices or its communicator.

    Attributes:
        devices: the devices, by rank where the graph has a communicator.
        collectives: the communicator's part; None without one.
    """

    def __init__(self, devices: Sequence[Device], collectives: Collectives | None) -> None:
        self.devices = tuple(devices)
        self.collectives = collectives
        self._state = _NEW
        self._items: list[Item] = []
        self._pins: dict[int, object] = {}  # by identity: what the commands name
        self._captured: list[Collective] = []
        self._memory = [Recycler(most=1 << 62) for _ in self.devices]
        self._logical = [device.logical for device in self.devices]
        self._ranks: dict[object, int] = {logical.stream: rank for rank, logical in enumerate(self._logical)}
        self._params = Params(self.devices)
        self._launcher: Launcher | None = None
        self._lock = threading.RLock()
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._launches = 0
        self._counts = (0, 0, 0, 0)

    # ---- capturing ----

    def __enter__(self) -> Graph:
        if self._state != _NEW:
            raise InvalidUsageError("a graph is captured once; call vkpar.capture again for another one")
        if capturing.current() is not None:
            raise InvalidUsageError("captures do not nest: this thread is inside vkpar.capture")
        if self.collectives is not None:
            self.collectives.begin()
        with ExitStack() as undo:
            for logical, memory in zip(self._logical, self._memory, strict=True):
                logical.begin_capture(memory)
                undo.callback(logical.end_capture)
            capturing.by_thread[threading.get_ident()] = self
            self._state = _CAPTURING
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        capturing.by_thread.pop(threading.get_ident(), None)
        for logical in self._logical:
            logical.end_capture()
        self._state = _FAILED
        try:
            if kind is None:
                self._launcher = self._record()
                self._state = _READY
                for device in self.devices:
                    device.adopt(self)
        finally:
            self._items = []
            if self._state == _FAILED:
                self._let_go()

    def holds(self, stream: object) -> bool:
        """Say whether it captures the operations of a device's stream."""
        return stream in self._ranks

    def add(self, stream: object, operation: Operation) -> None:
        """Take an operation of a device's stream."""
        self._items.append(Item(self._ranks[stream], operation.name, operation))
        for pin in operation.pins:
            self._pins[id(pin)] = pin

    def captures_for(self, owner: object) -> bool:
        """Say whether it captures the collectives of the communicator that ``owner`` identifies."""
        return self.collectives is not None and self.collectives.owner is owner

    @property
    def ncollectives(self) -> int:
        """How many collectives it has taken."""
        return len(self._captured)

    def collect(self, collective: Collective, pins: Sequence[object]) -> None:
        """Take a collective of its communicator, and what keeps the memory of its arrays."""
        self._captured.append(collective)
        self._items += [
            Item(step.rank, f"{collective.name} {step.phase}", step.record, step.reads, step.writes)
            for step in collective.steps
        ]
        for pin in pins:
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
        return self._params.add(name, dtype, initial)

    # ---- recording ----

    def _record(self) -> Launcher:
        found = stretches.cut(self._items)

        def record() -> Recorded:
            return self._recorded(found)

        if self.collectives is None:
            return Local(self.devices, record)
        return self.collectives.launcher(record)

    def _recorded(self, found: Sequence[Stretch]) -> Recorded:
        with ExitStack() as undo:
            for collective in self._captured:
                for _, part in collective.parts:
                    undo.callback(part.close)
            recordings: dict[int, Recording] = {}
            batches: list[Batch] = []
            phases: list[list[str]] = [[] for _ in self.devices]
            for stretch in found:
                rank = stretch.rank
                if rank not in recordings:
                    recordings[rank] = Recording(self.devices[rank].logical.stream)
                    undo.callback(recordings[rank].close)
                command = _record(stretch, recordings[rank])
                batches.append(Batch(rank, command, stretch.reads, stretch.writes))
                phases[rank].append(stretch.phase)
            copies = self._params.record(undo)
            parts = [part for collective in self._captured for part in collective.parts]
            counts = [recording.stats() for recording in recordings.values()]
            operations, barriers = (sum(pair[index] for pair in counts) for index in (0, 1))
            self._counts = (operations, len(self._captured), barriers, len(found))
            bound = [self._pins, self._captured, self._memory, *self._params.bound]
            undo.pop_all()
        return Recorded(batches, phases, [*parts, *recordings.items(), *copies], bound)

    # ---- launching ----

    def launch(self, **params: Any) -> Any:
        """Run the graph once, in program order, and return its work at once.

        Args:
            params: values of parameters; the others stay as they are. Up to four launches with new values may be under
                way; the fifth waits for the first to begin.

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
            return work

    def _refuse(self) -> None:
        """Say why the graph cannot be launched.

        Raises:
            InvalidUsageError: always.
        """
        if capturing.current() is not None:
            raise InvalidUsageError("a graph cannot be launched inside vkpar.capture")
        if self._state in (_NEW, _CAPTURING):
            raise InvalidUsageError("a graph is launched after its capture: leave the with block first")
        if self._state == _FAILED:
            raise InvalidUsageError("the graph's capture was ended by an exception; nothing was recorded")
        raise InvalidUsageError("the graph is closed: by its own close(), or with one of its devices")

    def _wait_for_cell(self) -> None:
        """Wait until the copies from the next cell are done: the launch that used it has begun."""
        starts = self._params.starts[self._params.turn]
        for device, value in zip(self.devices, starts, strict=False):
            if value:
                device.logical.compute.wait(value)

    # ---- what it is ----

    def stats(self) -> GraphStats:
        """Return what the graph consists of, and how long its launches took the host."""
        times = list(self._times)
        host_us = statistics.median(times) * 1e6 if times else None
        operations, collectives, barriers, count = self._counts
        return GraphStats(operations, collectives, barriers, count, self._launches, host_us)

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._state == _CLOSED

    def __repr__(self) -> str:
        operations, collectives, _, count = self._counts
        what = f"{operations} operations, {collectives} collectives, {count} stretches" if self._launcher else "empty"
        return f"<vkpar.Graph {self._state}: {what}>"

    # ---- the end ----

    def close(self) -> None:
        """Free the graph once its launches are done; a second call does nothing.

        Raises:
            InvalidUsageError: inside its capture.
        """
        if self._state == _CAPTURING:
            raise InvalidUsageError("a graph cannot be closed inside its capture")
        with self._lock:
            self._state = _CLOSED
            launcher = self._launcher
            if launcher is not None:
                launcher.close()
                self._launcher = None
            self._let_go()

    def _let_go(self) -> None:
        self._items, self._captured, self._memory = [], [], []
        self._pins = {}
        self._params = Params(())

    def copies_between(self, _source: Device, _target: Device) -> bool:
        """Say that it copies nothing between devices for others."""
        return False

    def check_results(self) -> None:
        """Refuse no results: its communicator does where it failed."""

    def __del__(self) -> None:
        if getattr(self, "_launcher", None) is not None:
            orphans.append(self)  # a finalizer must not wait


def _record(stretch: Stretch, recording: Recording) -> Any:
    """Record a stretch and return its command buffer."""
    command = recording.begin()
    for item in stretch.items:
        if isinstance(item.content, Operation):
            recording.add(item.content)
        else:
            item.content(command)
            recording.strange()
    recording.end()
    return command


def capture(devices: Device | Sequence[Device], comm: Any = None) -> Graph:
    """Return a context that captures this thread's work on ``devices`` into a graph.

    Inside, operations, the user's kernels, copies and collectives are checked as always, but recorded in place of
    being run. Arrays that are made inside belong to the graph: each launch computes them anew. Reading, waiting,
    writing from the host and copies to other devices without the communicator raise. After an error nothing is
    recorded::

        with vkpar.capture(devices, comm=comm) as graph:
            vkpar.matmul(x, w, out=y)
            comm.all_reduce([y])
        graph.launch().wait()

    Args:
        devices: opened devices, each once.
        comm: the communicator whose collectives may be captured; all its devices are captured then.

    Raises:
        InvalidUsageError: no devices, one twice, one that the communicator lacks, or a closed one.
    """
    close_orphans()
    listed = [devices] if isinstance(devices, Device) else list(devices)
    for device in listed:
        if not isinstance(device, Device):
            raise InvalidUsageError(f"capture takes opened devices, not {type(device).__name__}; see open_devices")
    if not listed or len(set(map(id, listed))) < len(listed):
        raise InvalidUsageError("capture takes one device or more, each once")
    collectives: Collectives | None = None
    if comm is not None:
        hook: Callable[[], Collectives] | None = getattr(comm, "__vkpar_graph__", None)
        if hook is None:
            raise InvalidUsageError(f"comm is a vkpar.Communicator, not {type(comm).__name__}")
        collectives = hook()
        strange = [device for device in listed if device not in collectives.devices]
        if strange:
            raise InvalidUsageError(f"{strange[0]!r} is no device of the communicator; capture it apart")
        listed = list(collectives.devices)
    return Graph(listed, collectives)
