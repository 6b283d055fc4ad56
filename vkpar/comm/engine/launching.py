"""How collectives are enqueued: found in the cache or recorded, taken down, submitted; alone or in groups."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from vkpar.arrays.array import Array
from vkpar.comm.engine.cache import Entry
from vkpar.comm.engine.flights import Flight
from vkpar.comm.engine.group import Group
from vkpar.comm.engine.lifecycle import Lifecycle
from vkpar.comm.engine.work import Work
from vkpar.comm.plan.choose import Plan
from vkpar.comm.record.builder import Program
from vkpar.comm.record.kernels import Arithmetic
from vkpar.comm.requests.collectives import Request
from vkpar.comm.requests.keys import key_of
from vkpar.comm.requests.operands import Operands
from vkpar.comm.rig.arena import Region
from vkpar.comm.schedule.steps import Step
from vkpar.errors import InvalidUsageError
from vkpar.vulkan import instance


class Launching(Lifecycle):
    """Enqueues what :class:`Communicator` is asked for."""

    _groups: dict[int, weakref.ref[Group]]  # by thread

    def _run(self, call: tuple[Any, ...], check: Callable[[], Request], keep: tuple[Any, ...]) -> Work:
        """Enqueue what was recorded for the same call before, else check, record and enqueue it."""
        with self.gate.lock():
            self.gate.check()
            self._check_usable()
            group = self._group()
            key, pins = key_of(call, group)  # the arrays' memory stays until the call is submitted
            if group is not None:
                return group.add(key, check(), Work(self, keep), pins)
            with self._lock:
                entry = self._cache.get(key) if self._checks is None else None
                if entry is None:
                    request = check()
                    self.sweep()
                    entry = self._record(key, request)
                return self._launch(entry, call[0], Work(self, keep))

    def _record(self, key: Any, request: Request) -> Entry:
        entry = self._recording.entry(request)
        try:
            self._cache.add(key, entry, request.arrays)
        except BaseException:
            self._cache.discard(key, entry)  # an interrupt
            raise
        return entry

    def _rehearse(self, request: Request, plan: Plan) -> Rehearsal:
        """Return a context in which ``request`` can be run as ``plan`` says, whatever the tuning does."""
        return Rehearsal(self, request.name, lambda: self._recording.entry(request, plan), request.arrays)

    def _rehearse_steps(
        self, steps: Iterable[Step], doing: Arithmetic, region: Region, operands: Operands, arrays: Sequence[Array]
    ) -> Rehearsal:
        """Return a context in which ``steps`` over ``operands``, parts of ``arrays``, can be run."""
        executor = self._recording.executor
        return Rehearsal(self, "steps", lambda: Entry([executor.record(steps, doing, region, operands)]), arrays)

    def _launch(self, entry: Entry, name: str, work: Work) -> Work:
        if not entry.programs:
            self._track(name, entry, None, work)
            return work
        program = entry.program(self._sequence)
        flight = self._track(name, entry, program, work)
        self._submitted(program.enqueue, [flight])
        flight.land(program.values, program.starts)
        return work

    def _submitted(self, enqueue: Callable[[], Any], flights: Sequence[Flight]) -> Any:
        """Call ``enqueue``; its failure is the communicator's. An interrupt comes before all submits or after them."""
        try:
            return enqueue()
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                self.fail(error, flights[0])
            last = self._rig.last()
            for flight in flights:
                flight.land(last, last)
            self.check_failure()
            raise

    def _track(self, name: str, entry: Entry, program: Program | None, work: Work) -> Flight:
        """Take down what is about to be enqueued; without a program it waits for what earlier work leaves."""
        self._sequence += 1
        flight = Flight(name, self._sequence, entry.label, program.phases if program else (), self._rig.last)
        if program is None:
            last = self._rig.last()
            flight.land(last, last)
        elif program.watch is not None:
            program.watch.start(flight)
        self._flights.add(flight)
        work.launch(flight)
        self._watchdog.watch(flight)
        return flight

    # ---- groups ----

    def _group(self) -> Group | None:
        """Return the group that this thread has open."""
        held = self._groups.get(threading.get_ident()) if self._groups else None
        return None if held is None else held()

    def enter_group(self, group: Group) -> None:
        """Put this thread's collectives off until ``group`` is left.

        Raises:
            InvalidUsageError: this thread has a group open already.
        """
        with self.gate.lock():
            self.gate.check()
            self._check_usable()
            if self._group() is not None:
                raise InvalidUsageError("groups do not nest: this thread has one open on the communicator")
            self._groups[group.thread] = weakref.ref(group)

    def leave_group(self, group: Group, *, enqueue: bool) -> None:
        """Enqueue the group's collectives, or drop them.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: another thread's group.
        """
        self._groups.pop(group.thread, None)
        items = group.take()
        try:
            if threading.get_ident() != group.thread:
                raise InvalidUsageError("a group is left by the thread that opened it; nothing was submitted")
            if enqueue and items:
                with self.gate.lock(), self._lock:
                    self.gate.check()
                    self._check_usable()
                    self._launch_group(items)
        finally:
            self._picked = ()
            for _, _, work, _ in items:
                work.drop()  # but for those that were enqueued

    def _launch_group(self, items: Sequence[tuple[Any, Request, Work, list[Any]]]) -> None:
        self.sweep()
        entries: list[Entry] = []
        self._picked = entries
        programs: list[Program | None] = []
        for index, (key, request, *_) in enumerate(items):
            entry = self._cache.get(key) if self._checks is None else None
            if entry is None or entry.used_up(programs):
                entry = self._record(key, request)
            entries.append(entry)
            programs.append(entry.program(self._sequence + index, programs) if entry.programs else None)
        real = [program for program in programs if program is not None]
        joined = self._recording.executor.joined(real)
        before = self._rig.last()
        flights: list[Flight] = []
        try:
            for entry, program, (_, request, work, _) in zip(entries, programs, items, strict=True):
                flights.append(self._track(request.name, entry, program, work))
            for program in real:
                program.expect()
            values = self._submitted(joined.enqueue, flights)
        except BaseException:
            if self._rig.last() == before:  # nothing was submitted
                for _, _, work, _ in items:
                    work.recall()
            raise
        finally:
            joined.close()
        left = [value - sum(len(program.phases[rank]) for program in real) for rank, value in enumerate(values)]
        for program, flight in zip(programs, flights, strict=True):
            if program is not None:
                left = [value + len(program.phases[rank]) for rank, value in enumerate(left)]
                program.note(left)
                flight.land(program.values, program.starts)

    def _check_usable(self) -> None:
        self.check_failure()
        for device in self._rig.devices:
            device.gate.check()  # raises where it is closed
        instance.raise_messages()


class Rehearsal:
    """A collective apart from the communicator's own, forgotten at the end of the ``with`` block.

    Args:
        communicator: whose it is.
        name: what the flight recorder calls it.
        record: records it.
        keep: the arrays that it uses.
    """

    def __init__(self, communicator: Launching, name: str, record: Callable[[], Entry], keep: Sequence[Array]) -> None:
        self._communicator = communicator
        self._name = name
        self._record = record
        self._keep = tuple(keep)

    def launch(self) -> Work:
        """Enqueue it once more.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: it is closed.
        """
        communicator = self._communicator
        with communicator.gate.lock(), communicator._lock:
            communicator.gate.check()
            communicator._check_usable()
            return communicator._launch(self._entry, self._name, Work(communicator, self._keep))

    def __enter__(self) -> Rehearsal:
        communicator = self._communicator
        with communicator.gate.lock(), communicator._lock:
            communicator.gate.check()
            communicator._check_usable()
            self._entry = self._record()
            communicator._cache.hold(self._entry)
        return self

    def __exit__(self, *_: object) -> None:
        communicator = self._communicator
        with communicator.gate.lock(), communicator._lock:
            communicator._cache.let_go(self._entry)
            with suppress(InvalidUsageError):  # closed: all of it goes with the cache
                communicator.gate.check()
                if not communicator.failed:
                    communicator.sweep()
