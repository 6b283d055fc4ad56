"""Messages between processes that are given up: MPI may use them yet, and a close may have freed what is awaited."""

from __future__ import annotations

import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

import vkpar
from vkpar.comm.rig.processes.channel import FAILED, Channel
from vkpar.comm.rig.processes.world import World


class _Request:
    """One that is done once somebody says so."""

    def __init__(self) -> None:
        self.is_done = False
        self.asked = 0

    def Start(self) -> None:
        """Begin."""

    def Test(self) -> bool:
        """Say whether it is done."""
        self.asked += 1
        return self.is_done


class _Comm:
    """Two processes, the other of which is silent; requests to send are known by weak references."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.sends: list[weakref.ref[_Request]] = []
        self.receives: list[_Request] = []

    def Recv_init(self, *_: object) -> _Request:
        """Return a request to receive."""
        self.receives.append(_Request())
        return self.receives[-1]

    def Isend(self, *_: object) -> _Request:
        """Return a request to send."""
        request = _Request()
        self.sends.append(weakref.ref(request))
        return request


def _channel(comm: _Comm, timeout: float) -> Any:
    module: Any = SimpleNamespace(BYTE=1, Exception=OSError)
    return Channel(module, comm, timeout)


def test_what_was_sent_is_kept_until_mpi_is_done_with_it() -> None:
    comm = _Comm()
    channel = _channel(comm, 0.01)
    with pytest.raises(vkpar.CommunicatorError, match="has not made this call"):
        channel.exchange(b"a" * 5000, "call 1, barrier")
    gc.collect()
    assert comm.sends
    assert all(each() for each in comm.sends)


def test_who_waits_for_another_process_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkpar.comm.rig.processes.channel._GRACE_SECONDS", 0.05)
    comm = _Comm()
    comm.size = 3
    channel = _channel(comm, 0.05)
    begun = time.monotonic()

    def check() -> None:
        if time.monotonic() - begun > 0.07:  # after this one's own time is over
            channel.told[1] = FAILED, "process 2 hangs"

    with pytest.raises(vkpar.CommunicatorError, match="process 1 failed: process 2 hangs"):
        channel.exchange(b"", "call 2, barrier", check)
    channel.told.clear()
    with pytest.raises(vkpar.CommunicatorError, match="process 1, process 2 has not made this call"):
        channel.exchange(b"", "call 3, barrier")


def test_a_wait_asks_whether_all_was_closed_before_it_asks_mpi() -> None:
    comm = _Comm()
    channel = _channel(comm, 10)
    asked = [request.asked for request in comm.receives]

    def closed() -> None:
        raise vkpar.InvalidUsageError("closed")

    with pytest.raises(vkpar.InvalidUsageError, match="closed"):
        channel.exchange(b"", "call 1, barrier", closed)
    assert [request.asked for request in comm.receives] == asked


def test_a_communicator_that_is_not_copied_in_time_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(object(), _Request())]
    found = weakref.ref(pairs[0][1])
    comm = SimpleNamespace(Idup=pairs.pop)
    monkeypatch.setattr("vkpar.comm.rig.processes.mpi.check", lambda _: SimpleNamespace())
    with pytest.raises(vkpar.CommunicatorError, match="not every process"):
        World(comm, 0.01).connect()
    gc.collect()
    assert found() is not None
