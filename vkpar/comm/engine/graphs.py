"""The collectives of a communicator inside graphs: captured step by step, launched with the graph's operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol

from vkpar.comm.engine.cache import ProgramCache
from vkpar.comm.engine.health import Health
from vkpar.comm.engine.library import Library
from vkpar.comm.engine.work import Work
from vkpar.comm.record.builder import ProgramBuilder, Written
from vkpar.comm.record.carried import GraphCarrier
from vkpar.comm.record.entry import Entry
from vkpar.comm.record.program import Program
from vkpar.comm.record.timestamps import Collector, Planned, Stage, linked
from vkpar.comm.requests import calls
from vkpar.comm.requests.keys import Call
from vkpar.comm.rig.rig import Rig
from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.graph.graph import Graph
from vkpar.graph.protocol import TIMED, Record, Recorded
from vkpar.graph.stretches import Memory
from vkpar.vulkan.stamps import Marks

_NAME: Final = "graph"


class Host(Protocol):
    """An engine, as its graphs see it."""

    devices: tuple[Device, ...]
    rig: Rig
    health: Health
    builder: ProgramBuilder
    cache: ProgramCache

    def in_group(self) -> bool:
        """Say whether this thread has a group open."""

    def hold(self, record: Callable[[], Entry]) -> Entry:
        """Record an entry that no call finds."""

    def launch_chosen(self, choose: Callable[[], Entry], name: str, keep: object) -> Work:
        """Enqueue the entry that ``choose`` returns, which is called under the engine's lock."""

    def let_go(self, entry: Entry) -> None:
        """Free a held entry once it is done."""


class GraphCollectives:
    """What graphs ask of one engine.

    Attributes:
        devices: by rank; ``owner``: the engine's health.
    """

    def __init__(self, host: Host, library: Library) -> None:
        first = host.rig.first
        self.devices = host.devices[first : first + len(host.rig.devices)]
        self.owner = host.health
        self._host, self._library = host, library
        self._written: dict[Any, Written] = {}  # by form and generation
        whole = host.rig.carriers is not None and host.rig.groups is None  # in groups, graphs use the shared slots
        self._carrier = GraphCarrier(host.rig) if whole else None

    def begin(self) -> None:
        """Refuse a capture on a communicator that cannot be used.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: the communicator, or a device, is closed; or this thread has a group of it open.
        """
        health = self._host.health
        with health.gate.lock():
            health.gate.check()
            health.check_failure()
        if self._host.in_group():
            raise InvalidUsageError("a capture begins outside groups: leave the communicator's group first")

    def capture(self, graph: Graph, call: Call) -> Work:
        """Check a collective, and have ``graph`` take it.

        Raises:
            InvalidUsageError, UnsupportedError: as the collective itself does.
        """
        _, pins = call.key(None)
        laid = self._library.lay(call, graph.ncollectives, self._written)
        if laid is not None:
            if self._carrier is not None:
                self._carrier.carry(laid)
            graph.collect(laid, pins, _memory_of(call, self.devices), calls.touches_of(call))
        work = Work(self._host.health, call)
        work.capture()
        return work

    def launcher(self, record: Record) -> GraphLauncher:
        """Have a graph recorded, and return what submits it; ``record`` is called again in profiles."""
        self._written.clear()
        return GraphLauncher(self._host, record)


class _GraphEntry(Entry):
    """A graph's entry; it is not freed before the entries of its ``timed`` recordings are, which use what it holds."""

    def __init__(self, program: Program, label: Mapping[str, int]) -> None:
        super().__init__({0: program}, label=dict(label))
        self.timed: dict[object, Entry] = {}

    def done(self, reached: Sequence[int]) -> bool:
        """Say whether every submission is done, from the queues' timeline values."""
        return super().done(reached) and all(entry.done(reached) for entry in self.timed.values())


class GraphLauncher:
    """Submits a recorded graph; see :class:`vkpar.graph.protocol.Launcher`.

    While a profile is open, other recordings run in place of the graph's own, which take the times of its stretches.
    """

    def __init__(self, host: Host, record: Record) -> None:
        self._host, self._record = host, record
        self._closed = False
        self._entry: _GraphEntry
        host.hold(self._first)
        self._last = self._entry.programs[0]

    def _first(self) -> Entry:
        recorded = self._record({})
        self._entry = _GraphEntry(self._program(recorded), recorded.label)
        self._marks = recorded.marks
        return self._entry

    def _program(
        self, recorded: Recorded, timers: dict[int, Marks] | None = None, collector: Collector | None = None
    ) -> Program:
        rig = self._host.rig
        phases = [*recorded.phases, *([] for _ in range(len(rig.queues) - len(recorded.phases)))]
        port = rig.group.program(recorded.batches)
        commands = [batch.command for batch in recorded.batches]
        watch = collector.stopwatch(_planned(recorded), timers) if collector is not None and timers else None
        parts, timed = recorded.parts, list((timers or {}).items())
        program = Program(parts, recorded.batches, commands, phases, port, timed, watch)
        program.touch(list(recorded.touches))
        return program

    def check(self) -> None:
        """Refuse a launch on a closed communicator, or inside a group; raises as :meth:`launch` does."""
        if self._host.health.closed:
            raise InvalidUsageError("the graph's communicator is closed: capture the graph anew with an open one")
        if self._host.in_group():
            raise InvalidUsageError("a graph is launched outside groups: leave the communicator's group first")

    def launch(self, preludes: Sequence[Any] | None, keep: object) -> Work:
        """Submit the graph once.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: the communicator, or a device, is closed; or this thread has a group of it open.
        """
        self.check()

        def choose() -> Entry:
            entry = self._chosen()
            self._last = entry.programs[0]
            self._last.set_preludes(preludes)
            return entry

        return self._host.launch_chosen(choose, _NAME, keep)

    def _chosen(self) -> Entry:
        assert not self._closed, "the graph was closed"
        collector = self._host.builder.recorder.collector
        if collector is None or not self._entry.batches:
            return self._entry
        if collector.allowance is not None and not collector.allowance.pays(sum(self._marks)):
            return self._entry
        cache, timed = self._host.cache, self._entry.timed
        for key in [key for key, entry in timed.items() if cache.get(key) is not entry and not entry.programs]:
            del timed[key]  # of a profile that has ended
        mine = [entry for key, entry in timed.items() if cache.get(key) is entry]
        busy = [entry for entry in mine if (watch := entry.programs[0].watch) is not None and watch.is_running]
        if len(busy) == len(mine) < TIMED:
            return self._timed(collector)
        chosen = next((entry for entry in mine if entry not in busy), None) or mine[0]
        key = next(key for key, entry in timed.items() if entry is chosen)
        timed[key] = timed.pop(key)  # the last one to run
        watch = chosen.programs[0].watch
        assert watch is not None, "it was recorded with timers"
        watch.clear()
        return chosen

    def _timed(self, collector: Collector) -> Entry:
        with ExitStack() as undo:
            timers: dict[int, Marks] = {}
            for rank, phases in enumerate(self._entry.programs[0].phases):
                if phases:
                    device = self._host.rig.devices[rank]
                    stamps = device.compute.stamps if collector.allowance is not None else None
                    number = self._marks[rank] if stamps else 2 * len(phases)
                    timers[rank] = Marks(device.handle, number, stamps)
                    undo.callback(timers[rank].close)
            program = self._program(self._record(timers), timers, collector)
            undo.pop_all()
        key, entry = object(), Entry({0: program}, label=self._entry.label)
        self._entry.timed[key] = entry
        self._host.cache.add(key, entry)
        return entry

    def starts(self) -> list[int]:
        """Return, by queue, the timeline value that the first batch of the last launch signals; 0 without one."""
        pairs = zip(self._last.starts, self._last.counts, strict=True)
        return [start + 1 if count else 0 for start, count in pairs]

    def close(self) -> None:
        """Free the graph once its launches are done; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._host.let_go(self._entry)


def _memory_of(call: Call, devices: Sequence[Device]) -> list[list[Memory]]:
    """Return by rank where the arrays of a call lie."""
    found: list[list[Memory]] = [[] for _ in devices]
    for array in (*call.arrays, *(call.out or ())):
        held = None if array is None else array.storage.pin()
        if held is not None and held.buffers:
            parts = found[devices.index(array.device)]
            parts += [(buffer.number, buffer.offset, buffer.offset + buffer.nbytes) for buffer in held.buffers]
    return found


def _planned(recorded: Recorded) -> tuple[Planned, ...]:
    """Return what is known of a graph's batches before they run."""
    phases = [iter(found) for found in recorded.phases]
    return linked(
        Stage(batch.rank, next(phases[batch.rank]), batch.taken, batch.writes, *moved)
        for batch, moved in zip(recorded.batches, recorded.moved, strict=True)
    )
