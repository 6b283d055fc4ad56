"""The engine of a communicator: collectives are found or recorded, enqueued, failed, and freed at the end.

Locks are taken in this order, and any of them may be left out:

1. the gate of the communicator (``Health.gate``), a lock per thread: a close waits for every thread inside;
2. ``Engine._lock``, which guards the cache and what is recorded into it;
3. ``Health.closing``, which a thread holds while it waits for pending work in order to free it;
4. the process-wide enqueue lock of :mod:`vkpar.vulkan.pump`, inside single calls of the pump.

A thread waits for pending work without ``_lock``, because the lock's holder may wait for a device that hangs. An engine
that is dropped without :meth:`Engine.close` is closed later: no object below it refers to it strongly.
"""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

from vkpar import env
from vkpar.arrays.array import Array
from vkpar.comm.engine.cache import ProgramCache, Together
from vkpar.comm.engine.closing import Closer
from vkpar.comm.engine.eviction import Eviction
from vkpar.comm.engine.flights import Flight
from vkpar.comm.engine.graphs import GraphCollectives
from vkpar.comm.engine.group import Group, Member, OpenGroups
from vkpar.comm.engine.health import Health
from vkpar.comm.engine.landing import Landing
from vkpar.comm.engine.library import Library
from vkpar.comm.engine.profiling import Profiling
from vkpar.comm.engine.watchdog import Watchdog
from vkpar.comm.engine.work import Work
from vkpar.comm.plan.choose import Tuning
from vkpar.comm.record import checks
from vkpar.comm.record.builder import ProgramBuilder
from vkpar.comm.record.entry import Entry
from vkpar.comm.record.program import Program
from vkpar.comm.requests import movements
from vkpar.comm.requests.calls import is_strided
from vkpar.comm.requests.keys import Call
from vkpar.comm.rig.rig import Rig
from vkpar.device import Device, orphans
from vkpar.errors import InvalidUsageError, VulkanError
from vkpar.graph.graph import Graph
from vkpar.vulkan.capturing import by_thread, current
from vkpar.vulkan.machine import instance

_T = TypeVar("_T")
# A communicator may always have the few collectives under way, and more up to the most collectives and batches.
_FEW_PENDING, _MOST_PENDING, _MOST_PENDING_BATCHES = 16, 1024, 32768


class Engine:
    """Enqueues the collectives of one communicator.

    Args:
        devices: the devices, in rank order.
        rig: what the ranks share; the engine frees it.
        builder: records requests.
        timeout: seconds without progress after which a pending collective fails.

    Attributes:
        health: whether the communicator can be used.
        sequence: the number of collectives so far.
        cache: the recorded collectives.
        profiling: the profile that is open.
    """

    def __init__(self, devices: Sequence[Device], rig: Rig, builder: ProgramBuilder, timeout: float) -> None:
        self.devices = tuple(devices)
        self.rig = rig
        self.builder = builder
        self.health = Health(rig, timeout)
        self.sequence = 0
        self._process = os.getpid()
        self._lock = threading.RLock()
        self.cache = ProgramCache()
        self._recorded = self.cache.entries  # looked at by every call: one step less
        self._groups = OpenGroups()
        self._closer = Closer(self.health, self.cache)
        self._library = Library(self.devices, rig, builder, self.cache)
        self.sweep = self._library.sweep
        self._ledger = rig.devices[0].ledger
        self.profiling = Profiling(self.health, self.cache, self._lock, builder.recorder, self.sweep)
        self._eviction = Eviction(self.health, self.cache, self._lock, self.sweep)
        for device in rig.devices:
            device.keepers.add(self._eviction)
        self._validating = instance.validating()
        self._gates = [device.gate for device in rig.devices]
        self._flights = self.health.flights
        self._watchdog = Watchdog(self.health, weakref.WeakMethod(self._closer.settle))

    def adopt(self, tuning: Tuning) -> None:
        """Choose by ``tuning`` from now on."""
        self.builder.tuning = tuning
        with self._lock:
            self._library.forget()
        if tuning.spin_us is not None and env.get().spin_us is None:
            self.rig.spin_ns = 1000 * tuning.spin_us

    def check_more(self, wanted: Collection[str]) -> None:
        """Turn on the checks that ``VKPAR_DEBUG`` names.

        Raises:
            UnsupportedError: the rig copies slots, and their generations are to be checked.
        """
        if checks.SLOTS in wanted:
            self.health.checks = self.builder.recorder.checks = checks.SlotChecks(self.rig)

    def forget(self) -> None:
        """Count collectives from here on, and record them anew: what came before were tests of the rig."""
        with self._lock:
            self._library.forget()
        self.sequence = 0
        self._flights.forget()

    # ---- enqueueing ----

    def run(self, call: Call) -> Work:
        """Enqueue the programs recorded for an equal call; check and record the call first where there are none.

        Raises:
            InvalidUsageError: an argument is wrong, or the communicator is closed; nothing was submitted.
            UnsupportedError: collectives do not take the dtype on these devices; nothing was submitted.
            CommunicatorError: the communicator has failed.
        """
        health = self.health
        if by_thread and not self.in_group() and (graph := self._graph()) is not None:
            return self._capture(graph, call)
        if self._groups.by_thread:
            held = self._groups.by_thread.get(threading.get_ident())
            group = None if held is None else held()
            if group is not None:
                return self._put_off(group, call)
        with health.gate.lock():
            health.gate.check()
            if health.failure is not None or self._validating:
                self.check_usable()
            for gate in self._gates:
                if gate.is_shut:
                    gate.check()
            key, _pins = call.key(None)  # the arrays' memory stays until the call is submitted
            with self._lock:
                try:
                    entry = self._recorded.get(key) if health.checks is None else None
                except TypeError:  # an argument that cannot be hashed
                    entry = None
                if entry is None and not is_strided(call):
                    self.sweep()
                    entry = self._library.record(key, call, self.sequence)
                if entry is not None:
                    return self._launch(entry, call.name, call)
        return self._run_landing(Landing(self.devices, call))

    def _run_landing(self, landing: Landing) -> Work:
        """Run a call by way of stand-ins; also where this thread captures."""
        landing.fill()
        work = self.run(landing.call)
        landing.copy_back()
        return work

    def _graph(self) -> Graph | None:
        """Return the graph that this thread captures; None where that is none of the communicator's devices'.

        Raises:
            InvalidUsageError: the graph captures a device, but is another communicator's.
        """
        graph: Graph | None = current()
        if graph is None or graph.captures_for(self.health):
            return graph
        if any(graph.holds(device.stream) for device in self.rig.devices):
            raise InvalidUsageError(
                "a collective inside vkpar.capture, on devices that it captures: give the collective's communicator to "
                "capture(devices, comm=...)"
            )
        return None

    def _capture(self, graph: Graph, call: Call) -> Work:
        assert graph.collectives is not None, "it captures for this communicator"
        if is_strided(call):
            return self._run_landing(Landing(self.devices, call))
        with self.health.gate.lock(), self._lock:
            self._check_open()
            work: Work = graph.collectives.capture(graph, call)
            return work

    def collectives(self) -> GraphCollectives:
        """Return what a graph asks of the engine; it keeps the engine."""
        return GraphCollectives(self, self._library)

    def _put_off(self, group: Group, call: Call) -> Work:
        """Put a call off until its group is left; nothing of the rig is touched where the call was recorded before."""
        health = self.health
        self._check_open()
        key, pins = call.key(group)
        nretired, request = self.cache.nretired, None
        try:
            entry = self._recorded.get(key) if health.checks is None else None
        except TypeError:  # an argument that cannot be hashed
            entry = None
        if entry is None and is_strided(call):
            return self._put_off_landing(group, Landing(self.devices, call))
        if entry is None:
            with health.gate.lock(), self._lock:
                health.gate.check()
                request = self._library.check(call)
        return group.add(Member(key, call, entry, nretired, request, Work(health, call), pins))

    def _put_off_landing(self, group: Group, landing: Landing) -> Work:
        """Put a call off by way of stand-ins: what it reads is copied now, what it writes once the group was left."""
        landing.fill()
        work = self._put_off(group, landing.call)
        group.members[-1].landing = landing
        landing.hold()
        return work

    def _check_open(self) -> None:
        """Refuse what :meth:`check_usable` does, and a closed communicator, in few steps where nothing is amiss."""
        health = self.health
        if health.gate.is_shut or health.failure is not None or self._validating:
            health.gate.check()
            self.check_usable()
        for gate in self._gates:
            if gate.is_shut:
                gate.check()

    def check_usable(self) -> None:
        """Refuse a call on a communicator or a device that cannot be used.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: a device is closed.
            DeviceLostError: a device was given up.
            ValidationError: the validation layer has reported something since the last call.
        """
        self.health.check_failure()
        for gate in self._gates:
            gate.check()
        instance.raise_messages()

    def _launch(self, entry: Entry, name: str, keep: object) -> Work:
        if not entry.programs:
            if len(self._flights.pending) > _FEW_PENDING:
                self._make_room(0)
            flight = self._flight(name, entry, None)
            self._track((flight,))
            return Work(self.health, keep, flight)
        program = entry.program(self.sequence) or self._library.program(entry, keep, self.sequence)
        if self._ledger.clock.lost:
            self._check_sound(program)
        if len(self._flights.pending) > _FEW_PENDING:
            self._make_room(program.batches)
        flight = self._flight(name, entry, program)
        self._flights.add((flight,))
        if self._watchdog.parked:
            self._watchdog.wake()
        work = Work(self.health, keep, flight)
        try:
            program.enqueue()
        except BaseException as error:
            self._refused(error, [flight])
            raise
        flight.mark_submitted(program.values, program.starts)
        return work

    def _check_sound(self, *programs: Program | None) -> None:
        """Raise a CommunicatorError for programs that read what a failed collective has spoiled."""
        refusal = self._ledger.refusal([touch for program in programs if program for touch in program.touches])
        if refusal is not None:
            raise refusal

    def _flight(self, name: str, entry: Entry, program: Program | None) -> Flight:
        """Return the record of a collective that is about to be submitted; without a program, earlier work ends it."""
        self.sequence += 1
        if program is None:
            last = self.rig.last()
            flight = Flight(name, self.sequence, entry.label, (), self.rig.last)
            flight.mark_submitted(last, last)
            return flight
        flight = Flight(name, self.sequence, entry.label, program.phases, self.rig.last)
        if program.watch is not None:
            program.watch.start(flight)
        return flight

    def _track(self, flights: Sequence[Flight]) -> None:
        """Take down collectives that are about to be submitted."""
        self._flights.add(flights)
        if self._watchdog.parked:
            self._watchdog.wake()

    def _make_room(self, batches: int) -> None:
        """Wait while too many collectives are under way.

        Raises:
            CommunicatorError: the communicator failed meanwhile.
            InvalidUsageError: the communicator was closed meanwhile.
        """
        most = max(_FEW_PENDING, min(_MOST_PENDING, _MOST_PENDING_BATCHES // max(1, batches)))
        pending = self._flights.pending
        while len(pending) > most:
            reached = self.health.look()
            self.health.check_failure()
            if reached is not None:
                self._flights.drop_done(reached)
            if len(pending) > most:
                self.health.wait_slice(pending[len(pending) // 2])

    def _refused(self, error: BaseException, flights: Sequence[Flight]) -> None:
        """Fail the communicator whose submission of ``flights`` raised ``error``.

        An interrupt is no failure: it comes before all submits or after all of them.

        Raises:
            CommunicatorError: the submission failed, or the communicator had failed before.
        """
        if not isinstance(error, KeyboardInterrupt):
            self.health.fail_enqueue(error, flights[0])
        last = self.rig.last()
        for flight in flights:
            flight.mark_submitted(last, last)
        self.health.check_failure()

    # ---- programs apart from the cache, for measuring ----

    def hold(self, record: Callable[[], Entry]) -> Entry:
        """Record an entry that no call finds; :meth:`let_go` frees it."""
        with self.health.gate.lock(), self._lock:
            self.health.gate.check()
            self.check_usable()
            entry = record()
            self.cache.hold(entry)
        return entry

    def launch_chosen(self, choose: Callable[[], Entry], name: str, keep: object) -> Work:
        """Enqueue the entry that ``choose`` returns, a held one, or one that was just added to the cache.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: the communicator is closed.
        """
        with self.health.gate.lock(), self._lock:
            self.health.gate.check()
            self.check_usable()
            return self._launch(choose(), name, keep)

    def let_go(self, entry: Entry) -> None:
        """Free a held entry once it is done."""
        with self.health.gate.lock(), self._lock:
            self.cache.let_go(entry)
            with suppress(InvalidUsageError, VulkanError):  # closed: all of it goes with the cache; else another sweep
                self.health.gate.check()
                if not self.health.failed:
                    self.sweep()

    # ---- groups ----

    def group(self) -> Group:
        """Return a context that holds this thread's collectives back until the context is left."""
        return Group(self._enter_group, self._leave_group)

    def in_group(self) -> bool:
        """Say whether this thread has a group open."""
        return self._groups.current() is not None

    def _enter_group(self, group: Group) -> None:
        with self.health.gate.lock():
            self._check_open()
            self._groups.enter(group)

    def _leave_group(self, group: Group, *, enqueue: bool) -> None:
        self._groups.leave(group)
        members = group.take()
        try:
            if threading.get_ident() != group.thread:
                raise InvalidUsageError("a group is left by the thread that opened it; nothing was submitted")
            if enqueue and members:
                with self.health.gate.lock(), self._lock:
                    self._check_open()
                    graph = self._graph() if by_thread else None
                    if graph is None:
                        self._launch_group(members)
                    else:
                        for member in members:
                            self._capture(graph, member.call)
                            member.work.capture()
            if enqueue:
                for member in members:
                    if member.landing is not None:
                        member.landing.copy_back()
        finally:
            self._eviction.spared = self._library.spared = ()
            for member in members:
                if member.work.flight is None:
                    member.work.drop()

    def _launch_group(self, members: Sequence[Member]) -> None:
        entries: list[Entry] = []
        self._eviction.spared = entries
        found = self._library.together(members, self.sequence, entries)
        if self._ledger.clock.lost:
            self._check_sound(*found.programs)
        if len(self._flights.pending) > _FEW_PENDING:
            self._make_room(found.batches)
        flights, ends = self._submit_group(members, found)
        for program, flight in zip(reversed(found.programs), reversed(flights), strict=True):
            if program is not None:
                program.mark_submitted(ends)
                flight.mark_submitted(program.values, program.starts)
                ends = list(map(operator.sub, ends, program.counts))

    def _submit_group(self, members: Sequence[Member], found: Together) -> tuple[list[Flight], list[int]]:
        """Submit all programs at once; return their flights, and each queue's last timeline value."""
        before = self.rig.last()
        flights: list[Flight] = []
        try:
            for member, entry, program in zip(members, found.entries, found.programs, strict=True):
                flight = self._flight(member.call.name, entry, program)
                flights.append(flight)
                member.work.flight = flight
                if program is not None:
                    program.mark_submitting()
            self._track(flights)
            return flights, found.port.enqueue()
        except BaseException as error:
            if self.rig.last() == before:  # nothing was submitted
                for member in members:
                    member.work.flight = None
            if flights:
                self._refused(error, flights)
            raise

    # ---- copies between two ranks' devices ----

    def copies_between(self, source: Device, target: Device) -> bool:
        """Say whether :meth:`move` can copy from one device to the other now."""
        usable = not self.closed and not self.health.failed and not self.in_group()
        graph: Graph | None = current()
        if graph is not None and not graph.captures_for(self.health):
            return False
        return usable and source in self.devices and target in self.devices

    def move(self, source: Array, target: Array) -> None:
        """Enqueue a copy between two ranks' devices."""
        self.run(Call(movements.SEND_RECV, (source,), (target,)))

    def gathered(self, _what: str, make: Callable[[], _T]) -> list[_T]:
        """Return by process what each makes; here that is one."""
        return [make()]

    def notice_failure(self) -> None:
        """Find out whether it has failed."""
        self.health.notice()

    # ---- the end ----

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self.health.closed

    def close(self) -> None:
        """Wait for pending collectives and free everything; a second call does nothing.

        Where nothing moves for 10 s, or for the communicator's timeout if that is longer, the pending collectives are
        aborted. After an interrupt, the next call continues the close. In a forked child nothing is touched.

        Raises:
            CommunicatorError: it has failed, and nobody was told; it is closed all the same.
        """
        health = self.health
        if os.getpid() != self._process:
            health.gate.is_shut = True
            return
        self._watchdog.stop()
        with health.closing:
            health.gate.shut()
            self._closer.close(self.profiling.read_last)
        if health.failed and not health.told:
            health.check_failure()

    def __del__(self) -> None:
        if hasattr(self, "_watchdog") and not self.closed:
            orphans.append(self)
