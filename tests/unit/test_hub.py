"""Queues of errands: their thread sleeps while nothing is to be done, and carries nothing for batches that failed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vkpar.comm.rig.processes.progress import Progress, SlotBytes
from vkpar.comm.schedule.processes import Division
from vkpar.vulkan.pump.hub import CHub, Errand, command_of, let_others_run
from vkpar.vulkan.pump.native import CGroup
from vkpar.vulkan.pump.ports import Batch


def started(names: list[str], nslots: int) -> tuple[CHub, CGroup]:
    """Return a hub, and a group that its queues tell of what they have done."""
    hub = CHub(names)
    group = CGroup([queue.port for queue in hub.queues], nslots)
    for number, queue in enumerate(hub.queues):
        group.set_local(number, queue.released)
        queue.tell(group, number)
    group.start(0)
    return hub, group


def test_a_halted_hub_rests_until_it_is_stopped() -> None:
    hub = CHub(["to"])
    hub.halt()
    begun = time.monotonic()
    hub.rest(50_000_000)
    assert time.monotonic() - begun > 0.04
    threading.Timer(0.05, hub.stop).start()
    hub.rest(20_000_000_000)
    hub.rest(20_000_000_000)
    assert time.monotonic() - begun < 10
    hub.close()


def test_a_rest_of_no_length_sleeps_not_at_all() -> None:
    hub = CHub(["to"])
    for rest in (lambda: hub.rest(0), let_others_run):
        spent = []
        for _ in range(200):
            begun = time.perf_counter()
            rest()
            spent.append(time.perf_counter() - begun)
        assert min(spent) < 30e-6, "the slack of timers alone is 50 us"
    hub.close()


def test_who_waits_for_a_queue_sleeps_until_it_is_there() -> None:
    hub, turns = CHub(["to"]), 100
    queue = hub.queues[0]
    for _ in range(turns):
        queue.port.submit(command_of(1))
    waits = threading.Thread(target=queue.passed, args=(turns, 20.0))
    waits.start()
    deadline = time.monotonic() + 10
    while "S (sleeping)" not in _told_of(waits) and time.monotonic() < deadline:
        time.sleep(0.001)
    before = _wakes(waits)
    for value in range(1, turns):
        hub.done(0, value)
        time.sleep(0.001)
    assert _wakes(waits) - before < turns // 2
    hub.done(0, turns)
    waits.join(10)
    assert not waits.is_alive()
    hub.close()


def _told_of(thread: threading.Thread) -> str:
    return Path(f"/proc/self/task/{thread.native_id}/status").read_text()


def _wakes(thread: threading.Thread) -> int:
    return int(_told_of(thread).split("\nvoluntary_ctxt_switches:")[1].split()[0])


def test_who_moves_a_timeline_hands_on_what_waits_for_it() -> None:
    hub, group = started(["to", "from"], 2)
    batches = [
        Batch(0, command_of(7), writes=(0,)),
        Batch(1, command_of(8), reads=(0,), writes=(1,)),
        Batch(0, command_of(9), reads=(1,)),
    ]
    program = group.program(batches)
    for turn in (1, 2):
        program.enqueue()
        for queue, number, value in ((0, 7, 2 * turn - 1), (1, 8, turn), (0, 9, 2 * turn)):
            assert hub.take() == [Errand(queue, number, value)]
            assert hub.take() == []
            hub.done(queue, value)
    group.stop()
    hub.done(0, 4)  # nobody is told any more
    program.close()
    group.close()
    hub.close()


def test_a_batch_waits_for_what_a_queue_was_given_before_its_program() -> None:
    hub, group = started(["one", "other"], 1)
    earlier = group.program([Batch(0, command_of(6))])
    late = Batch(1, command_of(8), after=(0,))
    one = group.program([replace(late, begins=True), Batch(0, command_of(7))])
    two = group.program(
        [Batch(0, command_of(7), begins=True), replace(late, begins=True), Batch(0, command_of(9)), late]
    )
    earlier.enqueue()
    one.enqueue()
    assert [errand.number for errand in hub.take()] == [6, 7]
    hub.done(0, 1)
    assert hub.take() == [Errand(1, 8, 1)]
    hub.done(0, 2)
    hub.done(1, 1)
    two.enqueue()
    assert [errand.number for errand in hub.take()] == [7, 9]
    hub.done(0, 3)
    assert [errand.number for errand in hub.take()] == [8, 8]
    hub.done(0, 4)
    hub.done(1, 3)
    group.stop()
    for program in (earlier, one, two):
        program.close()
    group.close()
    hub.close()


class _World:
    """Two processes, without MPI: what is asked of it is listed."""

    def __init__(self) -> None:
        self.division = Division((1, 1), 0)
        self.posted: list[object] = []
        self.channel = SimpleNamespace(names=["process 0", "process 1"], look=lambda: None, gone=lambda _: "")
        self.module = SimpleNamespace(BYTE=1, buffer=SimpleNamespace(fromaddress=lambda *_: b"1234"))
        self.data = SimpleNamespace(Isend=self._post, Irecv=self._post)

    def _post(self, *given: object) -> object:
        self.posted.append(given)
        return SimpleNamespace(Test=lambda: True)


def test_nothing_is_carried_once_batches_have_failed() -> None:
    world: Any = _World()
    progress = Progress(world)
    number = progress.add([SlotBytes(0, 4)])
    queue = progress.hub.queues[0]
    queue.port.submit(command_of(number))
    assert queue.passed(1, 10)
    assert len(world.posted) == 1
    progress.broken = lambda: -4
    queue.port.submit(command_of(number))
    assert not queue.passed(2, 0.3)
    assert len(world.posted) == 1
    assert progress.stop()
    progress.close()


class _Request:
    """Is not done before it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def Test(self) -> bool:
        return self.cancelled

    def Cancel(self) -> None:
        self.cancelled = True


class _Gone(_Request):
    """That of a process which is gone, once its channel is known to be."""

    gone = False

    def Test(self) -> bool:
        if self.gone:
            raise RuntimeError("the process is gone")
        return self.cancelled


def test_a_request_that_cannot_be_asked_keeps_no_other_from_being_cancelled() -> None:
    world: Any = _World()
    lost, got = _Gone(), _Request()
    requests = iter([lost, got])
    world.data = SimpleNamespace(Isend=lambda *_: _Request(), Irecv=lambda *_: next(requests))
    world.module.Exception = RuntimeError
    progress = Progress(world)
    for carried in (1, 2):
        progress.hub.queues[1].port.submit(command_of(progress.add([SlotBytes(0, 4)])))
        deadline = time.monotonic() + 10
        while progress.carried < carried and time.monotonic() < deadline:
            time.sleep(0.001)
    lost.gone = True
    progress.cancel()
    assert got.cancelled
    progress.stop()
    progress.close()


def test_after_a_failure_nothing_is_received_that_has_not_begun() -> None:
    world: Any = _World()
    sent, got = _Request(), _Request()
    world.data = SimpleNamespace(Isend=lambda *_: sent, Irecv=lambda *_: got)
    world.module.Exception = RuntimeError
    progress = Progress(world)
    for queue in progress.hub.queues:
        queue.port.submit(command_of(progress.add([SlotBytes(0, 4)])))
    deadline = time.monotonic() + 10
    while progress.carried < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    progress.cancel()
    assert (sent.cancelled, got.cancelled) == (False, True)
    progress.hub.queues[1].port.submit(command_of(1))
    assert progress.hub.queues[1].passed(2, 10), "nothing was posted, as nobody needs it"
    assert progress.carried == 2
    sent.cancelled = True
    assert progress.hub.queues[0].passed(1, 10)
    assert progress.stop()
    progress.close()
