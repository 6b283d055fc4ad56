"""Long launches, of which a thread submits the greater part: what follows them, and what a refusal leads to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import require
from helpers.vulkan.replacing import Functions, replace_functions

import vkpar
from vkpar.vulkan.pump.ports import QueueHandles

pytestmark = pytest.mark.rig
SUMS = 20
OUT_OF_HOST_MEMORY = -1


class Drivers:
    """All vkQueueSubmit of the devices that a test opens; those by threads of C wait until ``go`` is set.

    Where ``result`` is set, they fail with it instead.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        self.result = 0
        replace_functions(patch, self._functions)

    def _functions(self, handles: QueueHandles) -> Functions:
        def submit(where: Any, count: int, infos: Any, fence: Any) -> int:
            if threading.current_thread().name.startswith("Dummy") and count > 1:
                self.begun.set()
                assert self.go.wait(30)
                if self.result:
                    return self.result
            return int(handles.submit(where, count, infos, fence))

        return {"submit": submit}


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    require("llvmpipe")
    made = Drivers(monkeypatch)
    yield made
    made.go.set()


@pytest.fixture
def devices(drivers: Drivers) -> Iterator[list[vkpar.Device]]:
    opened = vkpar.open_devices("llvmpipe*2")
    yield opened
    drivers.go.set()
    for device in opened:
        device.close()


def captured(comm: vkpar.Communicator, xs: list[vkpar.Array]) -> vkpar.Graph:
    with vkpar.capture(comm.devices, comm=comm) as graph:
        for _ in range(SUMS):
            comm.all_reduce(xs, wire="f32")
            for x in xs:
                vkpar.multiply(x, 0.5, out=x)
    return graph


def test_what_follows_a_launch_comes_after_it(drivers: Drivers, devices: list[vkpar.Device]) -> None:
    """Another launch, an operation, a collective, a write: each while the driver holds the launch up."""
    with vkpar.Communicator(devices) as comm:
        xs = [device.array(np.full(64, rank + 1, np.float32)) for rank, device in enumerate(devices)]
        graph = captured(comm, xs)
        followers = [
            lambda: graph.launch().wait(),
            lambda: [vkpar.add(x, 1.0, out=x) for x in xs],
            lambda: comm.all_reduce(xs, wire="f32"),
            lambda: [x.write(np.full(64, 3, np.float32)) for x in xs],
        ]
        for follow in followers:
            drivers.begun.clear()
            drivers.go.clear()
            graph.launch()
            assert drivers.begun.wait(30)
            timer = threading.Timer(0.1, drivers.go.set)
            timer.start()
            follow()
            timer.join()
            for device in devices:
                device.synchronize()
        # 1 + 2: a sum is 3, halved 1.5 each; every further sum of equal halves leaves 1.5.
        assert all(np.array_equal(x.numpy(), np.full(64, 3, np.float32)) for x in xs)
        graph.close()


def test_values_after_operations_and_sums(drivers: Drivers, devices: list[vkpar.Device]) -> None:
    with vkpar.Communicator(devices) as comm:
        xs = [device.array(np.full(64, rank + 1, np.float32)) for rank, device in enumerate(devices)]
        graph = captured(comm, xs)
        drivers.go.clear()
        graph.launch()  # 1.5 everywhere
        threading.Timer(0.1, drivers.go.set).start()
        for x in xs:
            vkpar.add(x, 1.0, out=x)
        comm.all_reduce(xs, wire="f32")
        assert all(np.array_equal(x.numpy(), np.full(64, 5, np.float32)) for x in xs)
        graph.close()


@pytest.mark.parametrize("what", ["graph", "communicator", "device"])
def test_a_close_while_a_launch_goes_out(drivers: Drivers, devices: list[vkpar.Device], what: str) -> None:
    """It waits for the thread that submits, then for what that submitted."""
    logical = devices[0].logical
    with vkpar.Communicator(devices) as comm:
        xs = [device.array(np.full(64, rank + 1, np.float32)) for rank, device in enumerate(devices)]
        graph = captured(comm, xs)
        drivers.go.clear()
        work = graph.launch()
        assert drivers.begun.wait(30)
        timer = threading.Timer(0.1, drivers.go.set)
        timer.start()
        {"graph": graph, "communicator": comm, "device": devices[0]}[what].close()
        timer.join()
        if what != "device":
            work.wait()
            assert all(np.array_equal(x.numpy(), np.full(64, 1.5, np.float32)) for x in xs)
        assert not logical.quarantined


def test_a_driver_that_refuses_the_rest_of_a_launch(drivers: Drivers, devices: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(devices)
    xs = [device.array(np.full(64, rank + 1, np.float32)) for rank, device in enumerate(devices)]
    graph = captured(comm, xs)
    graph.launch().wait()
    drivers.result = OUT_OF_HOST_MEMORY
    work = graph.launch()
    with pytest.raises(vkpar.CommunicatorError, match=r"vkQueueSubmit.*rank 0") as caught:
        work.wait()
    assert isinstance(caught.value.__cause__, vkpar.OutOfMemoryError)
    with pytest.raises(vkpar.CommunicatorError):
        graph.launch()
    drivers.result = 0
    graph.close()
    comm.close()
    y = devices[0].array(np.arange(4, dtype=np.float32))
    assert np.array_equal(vkpar.add(y, y).numpy(), 2 * np.arange(4, dtype=np.float32))
    with vkpar.Communicator(devices) as other:
        zs = [device.array(np.ones(8, np.float32)) for device in devices]
        other.all_reduce(zs).wait()
        assert np.array_equal(zs[1].numpy(), np.full(8, 2, np.float32))
