"""Programs of carried slots that come while their devices are busy go to the drivers together, and none is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import require
from helpers.comm.carrying import carried
from helpers.comm.hostvendor import HostVendor
from helpers.vulkan.pumping import until
from helpers.vulkan.replacing import Functions, replace_functions

import vkpar
from vkpar import VkparError, env
from vkpar.vulkan.pump.ports import QueueHandles

SUMS = 12
OUT_OF_HOST_MEMORY = -1


class Drivers:
    """All vkQueueSubmit of the devices that a test opens.

    Attributes:
        calls: of each, how many command buffers it brought.
        refused: calls that bring several fail so often; ``refuses``: all to this queue do.
        slow: timelines seem to stand still, so that devices seem busy.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[int] = []
        self.refused, self.refuses, self.slow = 0, None, False
        replace_functions(patch, self._functions)

    def _functions(self, handles: QueueHandles) -> Functions:
        def submit(where: Any, count: int, infos: Any, fence: Any) -> int:
            brought = sum(infos[index].commandBufferCount for index in range(count))
            if brought > 1 and self.refused:
                self.refused -= 1
                return OUT_OF_HOST_MEMORY
            if where == self.refuses:
                return OUT_OF_HOST_MEMORY
            self.calls.append(brought)
            return int(handles.submit(where, count, infos, fence))

        def counter(device: Any, timeline: Any, value: Any) -> int:
            if self.slow:
                value[0] = 0
                return 0
            return int(handles.counter(device, timeline, value))

        return {"submit": submit, "counter": counter}


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Drivers:
    require("llvmpipe")
    return Drivers(monkeypatch)


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostVendor]:
    with carried(monkeypatch) as made, env.override(tuning="off"):
        yield made


@pytest.fixture
def devices(drivers: Drivers) -> Iterator[list[vkpar.Device]]:
    opened = vkpar.open_devices("llvmpipe*2")
    yield opened
    drivers.slow = False
    for device in opened:
        device.close()


@pytest.fixture
def comm(devices: list[vkpar.Device], vendor: HostVendor) -> Iterator[vkpar.Communicator]:
    with vkpar.Communicator(devices, transport="peer", timeout=60) as made:
        warm = [device.array(np.ones(5, np.int32)) for device in devices]
        for _ in range(2):
            made.all_reduce(warm).wait()
        yield made


def ones(devices: list[vkpar.Device], count: int = 500) -> list[vkpar.Array]:
    return [device.array(np.ones(count, np.int32)) for device in devices]


def check(arrays: list[vkpar.Array], want: int) -> None:
    for array in arrays:
        np.testing.assert_array_equal(array.numpy(), np.full(array.shape, want, np.int32))


@pytest.mark.parametrize("skips", [False, True])
def test_sums_that_follow_each_other_go_together(
    skips: bool, drivers: Drivers, devices: list[vkpar.Device], comm: vkpar.Communicator
) -> None:
    for device in devices:
        port = device.logical.compute.port
        port._c.lib.vkp_queue_habits(port.handle, 0, skips)
    arrays = ones(devices)
    comm.all_reduce(arrays).wait()
    drivers.slow = True
    before = len(drivers.calls)
    for _ in range(SUMS):
        comm.all_reduce(arrays)
    drivers.slow = False
    held = sum(device.logical.compute.last - device.logical.compute.port.submitted for device in devices)
    check(arrays, 2 ** (SUMS + 1))
    assert held >= SUMS
    assert max(drivers.calls[before:]) >= SUMS // 2
    assert len(drivers.calls) - before < SUMS


@pytest.mark.parametrize("root", [0, 1])
def test_what_others_wait_for_is_not_kept_back(
    root: int, drivers: Drivers, devices: list[vkpar.Device], comm: vkpar.Communicator
) -> None:
    """A root waits for those that read its slots, and these for its flags."""
    for device in devices:
        port = device.logical.compute.port
        port._c.lib.vkp_queue_habits(port.handle, 0, True)
    arrays, others = ones(devices), [device.array(np.full(500, rank)) for rank, device in enumerate(devices)]
    for _ in range(2):
        comm.all_reduce(arrays).wait()
        comm.broadcast(others, root=root).wait()
    drivers.slow = True
    for _ in range(5):
        comm.broadcast(others, root=root)
    for _ in range(7):
        comm.all_reduce(arrays)
    drivers.slow = False
    check(arrays, 2**9)
    check(others, root)


def test_what_was_gathered_between_keeps_its_place(
    drivers: Drivers, devices: list[vkpar.Device], comm: vkpar.Communicator
) -> None:
    arrays, want = ones(devices), 1
    drivers.slow = True
    for turn in range(SUMS):
        comm.all_reduce(arrays)
        want *= 2
        if turn % 2:
            for array in arrays:
                vkpar.subtract(array, 1, out=array)
            want -= 1
        if turn == SUMS // 2:
            drivers.slow = False
            arrays[0].write(np.full(500, 3, np.int32))
            want = 3 + want
            comm.all_reduce(arrays)
            drivers.slow = True
    drivers.slow = False
    check(arrays, want)


def test_more_than_are_held_at_once(drivers: Drivers, devices: list[vkpar.Device], comm: vkpar.Communicator) -> None:
    arrays = ones(devices, 7)
    drivers.slow = True
    for _ in range(30):
        comm.all_reduce(arrays, op="max")
        for array in arrays:
            vkpar.add(array, 1, out=array)
    drivers.slow = False
    check(arrays, 31)


def test_what_nobody_comes_back_to_is_submitted(
    drivers: Drivers, devices: list[vkpar.Device], comm: vkpar.Communicator
) -> None:
    arrays = ones(devices)
    drivers.slow = True
    for _ in range(SUMS):
        comm.all_reduce(arrays)
    ports = [device.logical.compute.port for device in devices]
    assert all(port.submitted < port.last for port in ports)
    drivers.slow = False
    until(lambda: all(port.submitted == port.last for port in ports))
    check(arrays, 2**SUMS)


def test_a_refusal_ends_the_communicator_and_loses_no_operation(
    drivers: Drivers, devices: list[vkpar.Device], vendor: HostVendor
) -> None:
    comm = vkpar.Communicator(devices, transport="peer", timeout=60)
    arrays, others = ones(devices), ones(devices)
    comm.all_reduce(arrays).wait()
    drivers.slow = True
    works = []
    for _ in range(SUMS):
        works.append(comm.all_reduce(arrays))
        for other in others:
            vkpar.add(other, 1, out=other)
    drivers.refused = 1
    drivers.slow = False
    with pytest.raises(VkparError):
        works[-1].wait()
    check(others, SUMS + 1)
    with pytest.raises(VkparError):
        comm.all_reduce(arrays)
    comm.close()
    assert vendor.copied


def test_a_refusal_is_the_communicators_that_have_the_device(
    drivers: Drivers, devices: list[vkpar.Device], vendor: HostVendor
) -> None:
    """Others, and their devices, go on; what a device refuses it is given again at the end."""
    more = vkpar.open_devices("llvmpipe*2")
    comms = [vkpar.Communicator(each, transport="peer", timeout=60) for each in (devices, more)]
    arrays, counts = [ones(devices), ones(more)], ones(devices)
    for comm, each in zip(comms, arrays, strict=True):
        comm.all_reduce(each).wait()
    drivers.slow = True
    for comm, each in zip(comms, arrays, strict=True):
        comm.all_reduce(each)
        for count in counts:
            vkpar.add(count, 1, out=count)
        comm.all_reduce(each)
    drivers.refuses = devices[0].logical.compute.handle
    drivers.slow = False
    check(arrays[1], 8)
    comms[1].all_reduce(arrays[1])
    check(arrays[1], 16)
    drivers.refuses = None
    check(counts, 3)
    with pytest.raises(VkparError):
        comms[0].all_reduce(arrays[0])
    for comm in comms:
        comm.close()
    for device in more:
        device.close()


def test_what_is_refused_by_the_last_call_is_lost_too(
    drivers: Drivers, devices: list[vkpar.Device], comm: vkpar.Communicator
) -> None:
    arrays, others = ones(devices), ones(devices)
    comm.all_reduce(arrays).wait()
    comm.all_reduce(others).wait()
    drivers.slow = True
    for _ in range(15):
        comm.all_reduce(arrays)
    drivers.refused = 1
    with pytest.raises(VkparError):
        comm.all_reduce(others)
    drivers.slow = False
    for each in (*arrays, *others):
        with pytest.raises(VkparError):
            each.numpy()


def test_a_close_asks_again_for_what_is_refused(
    drivers: Drivers, devices: list[vkpar.Device], vendor: HostVendor
) -> None:
    comm = vkpar.Communicator(devices, transport="peer", timeout=60)
    arrays, others = ones(devices), ones(devices)
    comm.all_reduce(arrays).wait()
    drivers.slow = True
    for turn in range(4):
        comm.all_reduce(arrays)
        for other in others[: 1 - turn % 2]:
            vkpar.add(other, 1, out=other)
    drivers.refused = 30
    drivers.slow = False
    with pytest.raises(VkparError):
        comm.close()
    np.testing.assert_array_equal(others[0].numpy(), 3)


@pytest.mark.parametrize("closes", ["communicator", "devices"])
def test_a_close_submits_what_is_held(
    closes: str, drivers: Drivers, devices: list[vkpar.Device], vendor: HostVendor
) -> None:
    comm = vkpar.Communicator(devices, transport="peer", timeout=60)
    arrays = ones(devices)
    comm.all_reduce(arrays).wait()
    drivers.slow = True
    for _ in range(SUMS):
        comm.all_reduce(arrays)
    drivers.slow = False
    if closes == "communicator":
        comm.close()
        check(arrays, 2 ** (SUMS + 1))
    for device in devices:
        device.close()
    comm.close()


def test_copies_that_never_come_end_what_is_held(
    drivers: Drivers, devices: list[vkpar.Device], vendor: HostVendor
) -> None:
    comm = vkpar.Communicator(devices, transport="peer", timeout=1)
    arrays = ones(devices)
    comm.all_reduce(arrays).wait()
    vendor.go.clear()
    began = time.monotonic()
    works = [comm.all_reduce(arrays) for _ in range(SUMS)]
    with pytest.raises(VkparError):
        works[-1].wait()
    vendor.go.set()
    comm.close()
    assert time.monotonic() - began < 60
    for device in devices:
        np.testing.assert_array_equal(device.array(np.arange(9)).numpy(), np.arange(9))
