"""The engine: how long is waited, what is refused, how much may be under way, and what a group takes from the cache."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import Rigs
from helpers.ops.reducing import check_identical, devices_of, fresh_devices
from helpers.vulkan.parking import parked

import vkpar
from vkpar import CommunicatorError, InvalidUsageError, WaitTimeoutError
from vkpar.comm.engine import engine
from vkpar.comm.requests import calls

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]
NO_SECONDS = [-1, math.nan, -math.inf, "1", True]


def ones(comm: vkpar.Communicator, count: int = 1000) -> list[vkpar.Array]:
    return [device.array(np.ones(count, np.float32)) for device in comm.devices]


def run_barriers(comm: vkpar.Communicator, number: int) -> None:
    for _ in range(number):
        comm.barrier()


# ---- how long is waited ----


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**400, 60])
def test_any_number_of_seconds_can_be_waited(rig: Open, timeout: Any) -> None:
    comm = rig("LL")
    arrays = ones(comm)
    comm.all_reduce(arrays).wait(timeout)
    comm.devices[0].synchronize(timeout)
    assert np.all(check_identical([array.numpy() for array in arrays]) == 2)


@pytest.mark.parametrize("timeout", NO_SECONDS)
def test_what_is_no_number_of_seconds_is_refused(rig: Open, timeout: Any) -> None:
    comm = rig("LL")
    work = comm.barrier()
    for call in (work.wait, comm.devices[0].synchronize):
        with pytest.raises(InvalidUsageError, match="number of seconds from 0 up"):
            call(timeout)
    with pytest.raises(InvalidUsageError, match="number of seconds"):
        vkpar.Communicator(comm.devices, timeout=timeout)
    work.wait()


def test_a_communicator_takes_any_positive_timeout(rigs: Rigs) -> None:
    devices = devices_of(rigs, "LL")
    with pytest.raises(InvalidUsageError, match="positive"):
        vkpar.Communicator(devices, timeout=0)
    for timeout in (math.inf, 10**400):
        with vkpar.Communicator(devices, timeout=timeout) as comm:
            comm.barrier().wait()


def test_no_time_at_all_looks_once(rig: Open) -> None:
    comm = rig("LL")
    work = comm.barrier()
    comm.devices[0].synchronize()
    comm.devices[1].synchronize()
    work.wait(0)
    with parked(comm.devices[1]) as release:
        work = comm.barrier()
        with pytest.raises(WaitTimeoutError):
            work.wait(0)
        release()
    work.wait()


# ---- what is refused ----


def test_a_refused_enqueue_poisons_at_once(rigs: Rigs) -> None:
    """Nothing is submitted on a group of the helper that was aborted; the first call says so, and the next ones."""
    devices = fresh_devices(rigs, "LL")
    comm = vkpar.Communicator(devices)
    arrays = ones(comm)
    comm.all_reduce(arrays).wait()
    comm._engine.rig.group.abort()
    with pytest.raises(CommunicatorError, match="nothing was submitted") as caught:
        comm.all_reduce(arrays)
    assert caught.value.details["op"] == "all_reduce"
    assert comm.failed
    with pytest.raises(CommunicatorError):
        comm.barrier()
    comm.close()
    for device in devices:
        device.close()


def test_a_refused_group_poisons_at_once(rigs: Rigs) -> None:
    devices = fresh_devices(rigs, "LL")
    comm = vkpar.Communicator(devices)
    arrays = ones(comm)
    comm._engine.rig.group.abort()
    with pytest.raises(CommunicatorError, match="nothing was submitted"), comm.group():
        work = comm.all_reduce(arrays)
    assert comm.failed
    with pytest.raises(InvalidUsageError, match="nothing was submitted"):
        work.wait()
    comm.close()
    for device in devices:
        device.close()


# ---- how much may be under way ----


@pytest.mark.parametrize("grouped", [False, True])
def test_calls_wait_where_too_many_are_under_way(rig: Open, monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    """The next call blocks until there is room, as a full queue does; results are those of a call at a time."""
    for name, most in (("_FEW_PENDING", 4), ("_MOST_PENDING", 8)):
        monkeypatch.setattr(engine, name, most)
    comm = rig("LS")
    arrays = [device.array(np.ones(100, np.float32)) for device in comm.devices]
    pending = comm._engine.health.flights.pending
    for _ in range(20):
        if grouped:
            with comm.group():
                comm.all_reduce(arrays, op="avg")
                comm.barrier()
        else:
            comm.all_reduce(arrays, op="avg")
            comm.barrier()
        assert len(pending) <= 8 + 2  # the bound holds before the newest calls
    for array in arrays:
        np.testing.assert_array_equal(array.numpy(), 1)


def test_calls_that_move_nothing_are_not_piled_up(rig: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("_FEW_PENDING", 4), ("_MOST_PENDING", 8)):
        monkeypatch.setattr(engine, name, most)
    comm = rig("LS")
    empty = [device.zeros(0) for device in comm.devices]
    for _ in range(40):
        work = comm.all_reduce(empty)
        assert len(comm._engine.health.flights.pending) <= 8 + 1
    work.wait(60)


def test_a_failure_ends_the_wait_for_room(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FEW_PENDING", "_MOST_PENDING"):
        monkeypatch.setattr(engine, name, 4)
    devices = fresh_devices(rigs, "LL")
    comm = vkpar.Communicator(devices, timeout=0.3)
    with parked(devices[0]) as release:
        with pytest.raises(CommunicatorError, match="no timeline advanced"):
            run_barriers(comm, 20)
        release()
    comm.close()
    for device in devices:
        device.close()


# ---- what a recording keeps ----


@pytest.mark.parametrize("offset", [0, 1])
def test_a_recording_keeps_no_array(rig: Open, offset: int) -> None:
    """Memory of dropped arrays goes back at once, not when Python next looks for circles of references."""
    comm = rig("LS")
    gc.collect()
    gc.disable()
    try:
        before = [device.memory().arrays for device in comm.devices]
        arrays = [device.zeros(100_000 + offset)[offset:] for device in comm.devices]
        comm.all_reduce(arrays).wait()
        del arrays
        assert [device.memory().arrays for device in comm.devices] == before
    finally:
        gc.enable()


# ---- groups ----


def test_a_group_of_repeated_calls_checks_and_records_nothing(rig: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    comm = rig("LL")
    pairs = [ones(comm, 10 + index) for index in range(4)]
    for arrays in pairs:
        for _ in range(2):  # programs that take turns
            comm.all_reduce(arrays, op="max")
    made = comm.stats()["cached_batches"]
    check = Mock(side_effect=calls.check)
    monkeypatch.setattr(calls, "check", check)
    for _ in range(3):
        with comm.group():
            works = [comm.all_reduce(arrays, op="max") for arrays in pairs]
        works[-1].wait()
    assert check.call_count == 0
    assert comm.stats()["cached_batches"] == made
    for arrays in pairs:
        assert np.all(check_identical([array.numpy() for array in arrays]) == 1)


def test_alternates_are_recorded_when_they_are_first_used(rig: Open) -> None:
    comm = rig("LL")
    arrays = ones(comm)
    counts = []
    for _ in range(4):
        comm.all_reduce(arrays, op="max").wait()
        (*_, newest) = comm._engine.cache.entries.values()
        counts.append(len(newest.programs))
    assert counts == [1, 2, 2, 2]


def test_recorded_collectives_keep_no_arrays(rigs: Rigs) -> None:
    devices = fresh_devices(rigs, "LL")
    with vkpar.Communicator(devices) as comm:
        before = [device.memory().arrays for device in devices]
        for count in (1000, 1001):
            arrays = [device.array(np.ones(count + 1, np.float32)) for device in devices]
            for _ in range(3):
                comm.all_reduce(arrays).wait()
                comm.all_reduce([array[1:] for array in arrays]).wait()
            del arrays
        comm.barrier().wait()
        for device, was in zip(devices, before, strict=True):
            device.logical.reap()
            assert device.memory().arrays == was
    for device in devices:
        device.close()
