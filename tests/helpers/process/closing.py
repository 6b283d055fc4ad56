"""Waits that fail, and what is closed while they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from helpers.vulkan.replacing import Functions, replace_functions

import vkpar
from vkpar.vulkan.pump.ports import QueueHandles


class Faults:
    """Makes the next looks at the timelines of devices that are opened meanwhile fail, for want of host memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.failed = 0

        def functions(true: QueueHandles) -> Functions:
            def counter(device: Any, semaphore: Any, value: Any) -> int:
                if self.left > 0:
                    self.left -= 1
                    self.failed += 1
                    return -1
                return int(true.counter(device, semaphore, value))

            return {"counter": counter}

        replace_functions(monkeypatch, functions)


def device(devices: list[vkpar.Device]) -> Any:
    devices[0].full(100, 1.0) + 1
    return devices[0]


def communicator(devices: list[vkpar.Device]) -> Any:
    comm = vkpar.Communicator(devices)
    comm.all_reduce([each.full(100, 1.0) for each in devices])
    return comm


def graph(devices: list[vkpar.Device]) -> Any:
    x = devices[0].full(100, 1.0)
    with vkpar.capture(devices[0]) as graph:
        vkpar.add(x, 1.0, out=x)
    graph.launch()
    return graph


def shared_graph(devices: list[vkpar.Device]) -> Any:
    comm = vkpar.Communicator(devices)
    arrays = [each.full(100, 1.0) for each in devices]
    with vkpar.capture(devices, comm=comm) as graph:
        comm.all_reduce(arrays)
    graph.launch()
    return graph


def host(devices: list[vkpar.Device]) -> Any:
    if not devices[0].info.features.host_import:
        return devices[0].full(100, 1.0)  # which can be closed, too
    made = vkpar.host_array(1024, "float32", [devices[0]])
    devices[0].array(made)
    return made


MAKERS: Final[dict[str, Callable[[list[vkpar.Device]], Any]]] = {
    made.__name__: made for made in (device, communicator, graph, shared_graph, host)
}
