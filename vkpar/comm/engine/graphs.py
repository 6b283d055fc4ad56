"""The collectives of a communicator inside graphs: captured step by step, launched with the graph's operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkpar.comm.engine.health import Health
from vkpar.comm.engine.library import Library
from vkpar.comm.engine.work import Work
from vkpar.comm.record.entry import Entry
from vkpar.comm.record.program import Program
from vkpar.comm.record.score import Score
from vkpar.comm.requests.keys import Call
from vkpar.comm.rig.rig import Rig
from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.graph.graph import Graph
from vkpar.graph.protocol import Recorded

_NAME = "graph"


class GraphCollectives:
    """What graphs ask of one engine.

    Args:
        devices: by rank.
        rig: what the ranks share.
        health: the communicator's health.
        library: writes collectives down.
        hold: keeps an entry that it is given the recording of; ``launch`` enqueues it, ``let_go`` frees it.

    Attributes:
        devices: as they were given; ``owner``: the health.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        rig: Rig,
        health: Health,
        library: Library,
        hold: Callable[[Callable[[], Entry]], Entry],
        launch: Callable[[Entry, str, object], Work],
        let_go: Callable[[Entry], None],
    ) -> None:
        self.devices = tuple(devices)
        self.owner = health
        self._rig, self._health, self._library = rig, health, library
        self._hold, self._launch, self._let_go = hold, launch, let_go
        self._written: dict[Any, Score] = {}  # by form and generation

    def begin(self) -> None:
        """Refuse a capture on a communicator that cannot be used.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: the communicator, or a device, is closed.
        """
        with self._health.gate.lock():
            self._health.gate.check()
            self._health.check_failure()

    def capture(self, graph: Graph, call: Call) -> Work:
        """Check a collective, and have ``graph`` take it.

        Raises:
            InvalidUsageError, UnsupportedError: as the collective itself does.
        """
        _, pins = call.key(None)
        laid = self._library.lay(call, graph.ncollectives, self._written)
        if laid is not None:
            graph.collect(laid, pins)
        work = Work(self._health, call)
        work.capture()
        return work

    def launcher(self, record: Callable[[], Recorded]) -> GraphLauncher:
        """Have a graph recorded, and return what submits it."""
        self._written.clear()
        programs: list[Program] = []

        def entry() -> Entry:
            programs.append(self._program(record()))
            return Entry({0: programs[0]}, label={"graph": True})

        return GraphLauncher(self._hold(entry), programs[0], self._launch, self._let_go, self._health)

    def _program(self, recorded: Recorded) -> Program:
        nqueues = len(self._rig.queues)
        phases = [*recorded.phases, *([] for _ in range(nqueues - len(recorded.phases)))]
        port = self._rig.group.program(recorded.batches)
        commands = [batch.command for batch in recorded.batches]
        return Program(recorded.parts, recorded.batches, commands, phases, port)


class GraphLauncher:
    """Submits a recorded graph; see :class:`vkpar.graph.protocol.Launcher`."""

    def __init__(
        self,
        entry: Entry,
        program: Program,
        launch: Callable[[Entry, str, object], Work],
        let_go: Callable[[Entry], None],
        health: Health,
    ) -> None:
        self._entry: Entry | None = entry
        self._program, self._launch, self._let_go, self._health = program, launch, let_go, health

    def launch(self, preludes: Sequence[Any] | None, keep: object) -> Work:
        """Submit the graph once.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: the communicator, or a device, is closed.
        """
        assert self._entry is not None, "the graph was closed"
        if self._health.closed:
            raise InvalidUsageError("the graph's communicator is closed: capture the graph anew with an open one")
        self._program.set_preludes(preludes)
        return self._launch(self._entry, _NAME, keep)

    def starts(self) -> list[int]:
        """Return, by queue, the timeline value that the first batch of the last launch signals; 0 without one."""
        pairs = zip(self._program.starts, self._program.counts, strict=True)
        return [start + 1 if count else 0 for start, count in pairs]

    def close(self) -> None:
        """Free the graph once its launches are done; a second call does nothing."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._let_go(entry)
