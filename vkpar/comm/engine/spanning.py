"""The engine of a communicator over several processes: they agree on each call before any of them enqueues it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vkpar.comm.engine.engine import Engine
from vkpar.comm.engine.graphs import GraphCollectives, GraphLauncher
from vkpar.comm.engine.group import Group
from vkpar.comm.engine.library import Library
from vkpar.comm.engine.work import Work
from vkpar.comm.record.builder import ProgramBuilder
from vkpar.comm.requests.elsewhere import Agreed, Agreement
from vkpar.comm.requests.keys import Call
from vkpar.comm.requests.there import all_devices
from vkpar.comm.rig.processes.world import World
from vkpar.comm.rig.rig import Rig
from vkpar.device import Device
from vkpar.errors import CommunicatorError, InvalidUsageError, UnsupportedError, VkparError
from vkpar.graph.protocol import Record

_LEAVE_GROUP = "the end of a group"


class SpanningEngine(Engine):
    """Enqueues the collectives of one communicator over several processes.

    Each call tells the other processes what it is, and waits until all have told theirs: so every process knows the
    forms of all arrays, and raises the same errors before anything is submitted. The call is enqueued as ever then.

    Attributes:
        devices: by rank, of other processes' ranks what stands for them.
    """

    def __init__(self, devices: Sequence[Device], rig: Rig, builder: ProgramBuilder, timeout: float) -> None:
        assert rig.world is not None, "there are other processes"
        self._world: World = rig.world
        names, division = self._world.channel.names, self._world.division
        self._turn = threading.RLock()  # one call after the other: taken before all of the engine's locks
        self._ncalls = self._ngraphs = 0
        every = all_devices(devices, self._world.infos, division, names)
        self._agreement = Agreement(every, division, names)
        super().__init__(every, rig, builder, timeout)

    def run(self, call: Call) -> Work:
        """Agree on a call with the other processes, and enqueue it; see :meth:`Engine.run`.

        Raises:
            InvalidUsageError: as :meth:`Engine.run` does, in every process; or the processes make different calls.
            CommunicatorError: a process has failed, or has not made the call within the timeout.
        """
        if isinstance(call, Agreed):  # by way of stand-ins for views
            return super().run(call)
        with self.turn():
            return super().run(self._agree(call))

    def _agree(self, call: Call) -> Call:
        self._ncalls += 1
        what = f"call {self._ncalls}, {call.name}"
        group = self._groups.by_thread.get(threading.get_ident())
        payload, refusal = self._agreement.describe(call, None if group is None else group())
        payloads = self._exchange(payload, what)
        if refusal is not None:
            raise refusal
        return self._agreement.agree(call, payloads, what)

    def _exchange(self, payload: bytes, what: str) -> list[bytes]:
        self._check_open()
        return self._world.exchange(payload, what, self._check_open)

    def _leave_group(self, group: Group, *, enqueue: bool) -> None:
        """Enqueue the group where every process does."""
        with self.turn():
            words: list[bytes] = []
            try:
                words = self._exchange(bytes([enqueue]) + str(len(group.members)).encode(), _LEAVE_GROUP)
            except VkparError:
                super()._leave_group(group, enqueue=False)
                raise
            agreed = len(set(words)) == 1
            super()._leave_group(group, enqueue=enqueue and agreed)
        if enqueue and not agreed:
            names = self._world.channel.names
            other = next(number for number, each in enumerate(words) if each != words[self._world.channel.me])
            raise InvalidUsageError(
                f"{names[other]} left its group by an exception, or with another number of collectives: nothing was "
                "submitted"
            )

    def collectives(self) -> GraphCollectives:
        """Return what a graph asks of the engine; it keeps the engine."""
        return _Graphs(self, self._library)

    def number_graph(self) -> int:
        """Return the number of a graph that was captured, the same in every process."""
        self._ngraphs += 1
        return self._ngraphs

    def agree_launch(self, number: int) -> None:
        """Agree with the other processes on a launch of graph ``number``.

        Raises:
            InvalidUsageError: another process makes another call.
            CommunicatorError: a process has failed, or has not made the call within the timeout.
        """
        self._ncalls += 1
        what = f"call {self._ncalls}, a launch of graph {number}"
        self._agreement.check(self._exchange(self._agreement.launch(number), what), what)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let no other thread make a call inside.

        What is raised there fails the communicator, as the other processes count the call, unless they raise the same:
        :class:`InvalidUsageError` and :class:`UnsupportedError` come before anything is submitted, in every process.
        """
        with self._turn:
            try:
                yield
            except (InvalidUsageError, UnsupportedError):
                raise
            except CommunicatorError as error:
                self.health.fail(error)
                self.health.check_failure()
                raise
            except VkparError as error:
                self.health.fail(error)
                raise
            except BaseException as error:  # an interrupt
                why = CommunicatorError(f"a call was ended by {type(error).__name__}, which other processes may make")
                why.__cause__ = error
                self.health.fail(why)
                raise

    def copies_between(self, source: Device, target: Device) -> bool:
        """Say no: a copy of this process is no call of the others."""
        return False


class _Graphs(GraphCollectives):
    """What graphs ask of the engine: each launch is a call, on which the processes agree."""

    def __init__(self, host: SpanningEngine, library: Library) -> None:
        super().__init__(host, library)
        self._spanning = host

    def launcher(self, record: Record) -> GraphLauncher:
        """Have a graph recorded, and return what submits it."""
        self._written.clear()
        return _Launcher(self._spanning, record)


class _Launcher(GraphLauncher):
    """Submits a recorded graph, once every process does."""

    def __init__(self, host: SpanningEngine, record: Record) -> None:
        self._spanning, self._number = host, host.number_graph()
        super().__init__(host, record)

    def launch(self, preludes: Sequence[Any] | None, keep: object) -> Work:
        """Submit the graph once; see :meth:`GraphLauncher.launch`."""
        with self._spanning.turn():
            self._spanning.agree_launch(self._number)
            return super().launch(preludes, keep)
