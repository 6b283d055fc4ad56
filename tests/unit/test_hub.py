"""Queues of errands: their thread sleeps while nothing is to be done, and carries nothing for batches that failed."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from vkpar.comm.rig.processes.progress import Progress, SlotBytes
from vkpar.comm.schedule.processes import Division
from vkpar.vulkan.pump.hub import CHub, command_of


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


class _World:
    """Two processes, without MPI: what is asked of it is listed."""

    def __init__(self) -> None:
        self.division = Division((1, 1), 0)
        self.posted: list[object] = []
        self.channel = SimpleNamespace(names=["process 0", "process 1"], look=lambda: None, gone=lambda _: "")
        request = SimpleNamespace(Testall=lambda _: True)
        self.module = SimpleNamespace(Request=request, BYTE=1, buffer=SimpleNamespace(fromaddress=lambda *_: b"1234"))
        self.data = SimpleNamespace(Isend=self._post, Irecv=self._post)

    def _post(self, *given: object) -> object:
        self.posted.append(given)
        return object()


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
