"""Eager collectives whose slots are carried: kernels that wait for flags and raise them, none of flags between.

What NVIDIA cards do is in test_peer_cards.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.comm.carrying import carried
from helpers.ops.reducing import own_devices

import vkpar
from vkpar.comm.record import kernels
from vkpar.comm.record.carried import CarriedRecorder
from vkpar.comm.schedule.carried import CarriedPart, CarriedStep
from vkpar.comm.schedule.steps import Forward, Span

pytestmark = pytest.mark.rig
Counts = Mapping[tuple[int, int], int]


@pytest.fixture(params=["L" * n for n in ((2, 3) if FULL else (2,))])
def peers(request: pytest.FixtureRequest, rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[vkpar.Device]]:
    """Give devices whose slots the host carries, and which run the kernels of GPUs."""
    monkeypatch.setattr(kernels, "processor", lambda info: "gpu")
    with own_devices(rigs, request.param) as devices, carried(monkeypatch):
        yield devices


@pytest.fixture
def told(peers: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict, dict, int, int]]:
    """Give what kernels of flags raise and wait for, then what other kernels do, as programs are recorded."""
    found: list[tuple[dict, dict, int, int]] = []
    flags, actions = CarriedRecorder._record_flags, CarriedRecorder._record_actions
    inside = False  # the host in the place of cards records flags of its own there

    def record_flags(self: CarriedRecorder, commands: Any, ready: Counts, arrivals: Counts) -> None:
        if not inside:
            found.append((dict(ready), dict(arrivals), 0, 0))
        flags(self, commands, ready, arrivals)

    def record_actions(self: CarriedRecorder, commands: Any, given: Any) -> None:
        nonlocal inside
        found.append(({}, {}, *self._own))
        inside = True
        actions(self, commands, given)
        inside = False

    monkeypatch.setattr(CarriedRecorder, "_record_flags", record_flags)
    monkeypatch.setattr(CarriedRecorder, "_record_actions", record_actions)
    return found


def check_sums(comm: vkpar.Communicator, count: int, calls: int = 3, **rest: Any) -> None:
    n = comm.nranks
    rows = [np.random.default_rng((count, rank)).integers(-9, 9, count).astype(np.float32) for rank in range(n)]
    arrays = [device.array(each) for device, each in zip(comm.devices, rows, strict=True)]
    for _ in range(calls):
        comm.all_reduce(arrays, **rest)
    for array in arrays:
        np.testing.assert_array_equal(array.numpy(), n ** (calls - 1) * sum(rows))


@pytest.mark.parametrize("algorithm", ["direct", "two_shot"] if FULL else ["direct"])
def test_no_kernel_of_flags_runs_for_whole_blocks(
    algorithm: str, peers: list[vkpar.Device], told: list[tuple[dict, dict, int, int]]
) -> None:
    """In two shots some do: for several kernels at a time, and for what is passed on."""
    with vkpar.Communicator(peers, transport="peer", algorithm=algorithm, timeout=60) as comm:
        told.clear()
        check_sums(comm, 256 * 3 * len(peers))
        assert any(ready or arrivals for ready, arrivals, _, _ in told) == (algorithm == "two_shot")
        assert any(awaits for _, _, awaits, _ in told)
        assert any(sends for *_, sends in told)


@pytest.mark.parametrize("count", [1, 257, 70_000] if FULL else [257])
def test_kernels_of_flags_stand_beside_several_launches(
    count: int, peers: list[vkpar.Device], told: list[tuple[dict, dict, int, int]]
) -> None:
    """Whole blocks, and one that is cut short: neither waits for the other's flags."""
    with vkpar.Communicator(peers, transport="peer", algorithm="direct", timeout=60) as comm:
        told.clear()
        check_sums(comm, count)
        assert any(arrivals for _, arrivals, _, _ in told) == (count > 256)


class Noting(CarriedRecorder):
    """Notes what it would record of parts, whose kernels wait for and raise what ``own`` says."""

    def __init__(self, own: list[tuple[int, int]]) -> None:
        self.left, self.noted = own, []

    def _own_flags(self, part: CarriedPart) -> Any:
        return self._own._replace(**dict(zip(("awaits", "sends"), self.left.pop(0), strict=True)))

    def _record_flags(self, commands: Any, ready: Counts, arrivals: Counts) -> None:
        self.noted.append(("flags", dict(ready), dict(arrivals)))

    def _record_actions(self, commands: Any, actions: Any) -> None:
        self.noted.append(("kernel", *self._own))

    def _record_copies(self, commands: Any, copies: Any) -> None:
        pass


class Orders:
    def record_order(self) -> None:
        pass


def test_what_is_ready_is_told_of_before_a_kernel_waits() -> None:
    """Another rank may wait for it before it sends what the kernel waits for."""
    lane = (1, 0)
    reads = Forward(Span(0, 256), 0)
    parts = (CarriedPart((reads,), {lane: 1}, (lane,)), CarriedPart((reads,), {lane: 1}, (lane,)), CarriedPart(()))
    recorder = Noting([(0, 0), (1, 5), (0, 0)])
    recorder._record_step(Orders(), CarriedStep(0, "", (), parts=parts))
    assert recorder.noted == [
        ("flags", {}, {lane: 1}),
        ("kernel", 0, 0),
        ("flags", {lane: 1}, {}),
        ("kernel", 1, 5),
        ("kernel", 0, 0),
    ]


@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "tree"] if FULL else ["ring"])
def test_chunks_of_whole_blocks_and_one_that_is_cut_short(algorithm: str, peers: list[vkpar.Device]) -> None:
    with vkpar.Communicator(peers, transport="peer", algorithm=algorithm, timeout=60) as comm:
        check_sums(comm, 256 * len(peers) + 1)


def test_many_work_groups_do_not_wait(peers: list[vkpar.Device], told: list[tuple[dict, dict, int, int]]) -> None:
    """Others of the card would find no room; they still tell of what they have filled."""
    with vkpar.Communicator(peers, transport="peer", algorithm="direct", timeout=60) as comm:
        told.clear()
        check_sums(comm, 256 * 8 * 65, calls=2)
        assert any(arrivals for _, arrivals, _, _ in told)
        assert not any(awaits for _, _, awaits, _ in told)


def test_groups_broadcasts_and_sums_in_turn(peers: list[vkpar.Device]) -> None:
    with vkpar.Communicator(peers, transport="peer", timeout=60) as comm:
        rows = [np.full(512, rank + 1, np.float32) for rank in range(len(peers))]
        arrays = [[device.array(each) for device, each in zip(peers, rows, strict=True)] for _ in range(3)]
        for turn in range(2):
            with comm.group():
                for each in arrays:
                    comm.all_reduce(each)
            comm.broadcast(arrays[turn], root=turn)
            comm.all_reduce(arrays[2], op="max")
        want = sum(rows) * len(peers)
        for each in arrays:
            for array in each:
                np.testing.assert_array_equal(array.numpy(), want)
