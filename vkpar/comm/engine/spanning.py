"""The engine of a communicator over several processes: they agree on each call before any of them enqueues it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from vkpar.comm.engine.engine import Engine
from vkpar.comm.engine.graphs import GraphCollectives, GraphLauncher
from vkpar.comm.engine.group import Group
from vkpar.comm.engine.library import Library
from vkpar.comm.engine.work import Work
from vkpar.comm.record.builder import ProgramBuilder
from vkpar.comm.requests import calls
from vkpar.comm.requests.elsewhere import CAPTURED, GATHER, IN_GROUP, LEAVE, Agreed, Agreement, CallPart
from vkpar.comm.requests.keys import Call
from vkpar.comm.requests.there import all_devices
from vkpar.comm.rig.processes.world import World
from vkpar.comm.rig.rig import Rig
from vkpar.device import Device
from vkpar.errors import CommunicatorError, InvalidUsageError, UnsupportedError, VkparError
from vkpar.graph.graph import Graph
from vkpar.graph.protocol import Record
from vkpar.vulkan.capturing import by_thread

_T = TypeVar("_T")


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
        self._ncalls = 0
        every = all_devices(devices, self._world.infos, division, names)
        self._agreement = Agreement(every, division, names, self._check_call)
        super().__init__(every, rig, builder, timeout)

    def _check_call(self, call: Call) -> None:
        self.builder.check(calls.check(self.devices, call))

    def run(self, call: Call) -> Work:
        """Agree on a call with the other processes, and enqueue it; see :meth:`Engine.run`.

        Raises:
            InvalidUsageError: as :meth:`Engine.run` does, in every process; or the processes make different calls.
            CommunicatorError: a process has failed, or has not made the call within the timeout.
        """
        if isinstance(call, Agreed):  # by way of stand-ins for views
            return super().run(call)
        with self.turn():
            with self._failing(InvalidUsageError, UnsupportedError):
                agreed = self._agree(call)
            with self._failing():
                return super().run(agreed)

    def _agree(self, call: Call) -> Call:
        what = self._count(call.name)
        payload, refusal = self._describe(call)
        payloads = self._exchange(payload, what)
        if refusal is not None:
            raise refusal
        return self._agreement.agree(call, payloads, what)

    def _describe(self, call: Call) -> tuple[bytes, VkparError | None]:
        """Return what this process tells of a call; all that it alone refuses is refused here, and so in all."""
        try:
            group = self._groups.current()
            place = IN_GROUP if group is not None else self._captured()
        except VkparError as error:
            return self._agreement.refusal(call.name, error), error
        return self._agreement.describe(call, group, place)

    def _captured(self) -> str:
        return CAPTURED if by_thread and self._graph() is not None else ""

    def _count(self, name: str) -> str:
        self._ncalls += 1
        return f"call {self._ncalls}, {name}"

    def _exchange(self, payload: bytes, what: str) -> list[bytes]:
        self._check_open()
        return self._world.exchange(payload, what, self._check_open)

    def _leave_group(self, group: Group, *, enqueue: bool) -> None:
        """Enqueue the group where every process does."""
        with self.turn():
            try:
                with self._failing(InvalidUsageError, UnsupportedError):
                    self._agree_leave(group, enqueue=enqueue)
            except BaseException as error:
                super()._leave_group(group, enqueue=False)
                if enqueue or not isinstance(error, InvalidUsageError):  # else what ends the group is raised
                    raise
                return
            with self._failing() if enqueue else nullcontext():
                super()._leave_group(group, enqueue=enqueue)

    def _agree_leave(self, group: Group, *, enqueue: bool) -> None:
        refusal: InvalidUsageError | None = None
        try:
            if threading.get_ident() != group.thread:
                raise InvalidUsageError("a group is left by the thread that opened it; nothing was submitted")
            part = CallPart((LEAVE, enqueue, len(group.members)), place=self._captured())
        except InvalidUsageError as error:
            refusal, part = error, CallPart((LEAVE, False, 0), error=str(error))
        self._agree_parts(part, self._count("the end of a group"), refusal)

    def _agree_parts(self, part: CallPart, what: str, refusal: VkparError | None) -> None:
        payloads = self._exchange(part.told(), what)
        if refusal is not None:
            raise refusal
        self._agreement.check(payloads, what)

    def gathered(self, what: str, make: Callable[[], _T]) -> list[_T]:
        """Return by process what each makes; where one raises, all do.

        Raises:
            VkparError: what ``make`` raises here; an InvalidUsageError that says it, in other processes.
            CommunicatorError: a process has failed, or has not come within the timeout.
        """
        refusal: VkparError | None = None
        try:
            part = CallPart((GATHER, what), (make(),))
        except VkparError as error:
            refusal, part = error, CallPart((GATHER, what), error=str(error))
        with self.turn():
            with self._failing():
                payloads = self._exchange(part.told(), self._count(what))
            if refusal is not None:
                raise refusal
            self._agreement.check(payloads, what)
            return [pickle.loads(payload).arrays[0] for payload in payloads]

    def collectives(self) -> GraphCollectives:
        """Return what a graph asks of the engine; it keeps the engine."""
        return _Graphs(self, self._library)

    @property
    def ncalls(self) -> int:
        """How many calls the processes have made, refused ones too."""
        return self._ncalls

    def launch(self, name: str, check: Callable[[], None], launch: Callable[[], Work]) -> Work:
        """Agree with the other processes on the launch of a graph, which ``check`` may refuse, and ``launch`` it.

        Raises:
            InvalidUsageError: the launch is refused, or another process makes another call.
            CommunicatorError: a process has failed, or has not made the call within the timeout.
        """
        with self.turn():
            with self._failing(InvalidUsageError, UnsupportedError):
                refusal: InvalidUsageError | None = None
                try:
                    check()
                except InvalidUsageError as error:
                    refusal = error
                part = CallPart((f"{name}.launch",), error="" if refusal is None else str(refusal))
                self._agree_parts(part, self._count(f"a launch of {name}"), refusal)
            with self._failing():
                return launch()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let no other thread make a call inside, nor free what it uses: a close ends an exchange and waits."""
        with self._turn, self.health.gate.lock():
            yield

    @contextmanager
    def _failing(self, *spared: type[VkparError]) -> Iterator[None]:
        """Fail the communicator by what is raised inside, as the other processes make the call; not by ``spared``.

        These are for the part of a call in which every process raises the same, and none has enqueued anything.
        """
        try:
            yield
        except spared:
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
        self._last = self._number = 0

    def capture(self, graph: Graph, call: Call) -> Work:
        """Check a collective, and have ``graph`` take it."""
        self._last, self._number = self._spanning.ncalls, self._number + 1
        return super().capture(graph, call)

    def launcher(self, record: Record) -> GraphLauncher:
        """Have a graph recorded, and return what submits it."""
        self._written.clear()
        return _Launcher(self._spanning, record, f"the graph of {self._number} collectives up to call {self._last}")


class _Launcher(GraphLauncher):
    """Submits a recorded graph, once every process does.

    Args:
        name: of the graph, the same in every process: the calls that it has captured.
    """

    def __init__(self, host: SpanningEngine, record: Record, name: str) -> None:
        self._spanning, self._name = host, name
        super().__init__(host, record)

    def launch(self, preludes: Sequence[Any] | None, keep: object) -> Work:
        """Submit the graph once; see :meth:`GraphLauncher.launch`."""
        return self._spanning.launch(self._name, self.check, lambda: super(_Launcher, self).launch(preludes, keep))
