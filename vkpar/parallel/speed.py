"""How fast devices read weights, and what sums between them cost: short measurements, made once and kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.graph.capture import capture
from vkpar.graph.graph import Graph
from vkpar.ops import add
from vkpar.ops.matmul import matmul
from vkpar.parallel import kept

_SHAPE_GPU: Final = (8192, 8192)  # 128 MiB of float16: more than the caches of the GPUs of 2026 hold
_SHAPE_CPU: Final = (1024, 1024)
_CALLS: Final = 8
_ENOUGH: Final = 0.02  # seconds that are measured at least
_MOST_CALLS: Final = 4096
_CHAIN: Final = 16  # operations or sums of a graph, each of which waits for the one before
_LAUNCHES: Final = 5


def speeds(devices: Sequence[Device]) -> list[float]:
    """Return how many bytes of float16 weights a second each device reads in matrix-vector products.

    Each physical device is measured once, alone; what it does is divided among the devices that were opened on it.
    Nothing else should run on them meanwhile.

    Raises:
        InvalidUsageError: a device is closed.
        OutOfMemoryError: no room for 128 MiB of weights (2 MiB on a CPU).
    """
    cards = [device.info.device_uuid for device in devices]
    found = [kept.number("speed", kept.describe(device), partial(_speed, device), 1e3, 1e15) for device in devices]
    return [each / cards.count(card) for each, card in zip(found, cards, strict=True)]


def op_seconds(device: Device, count: int) -> float:
    """Return the seconds of a small operation on ``count`` float32 that waits for the one before it, in a graph."""

    def measure() -> float:
        with capture([device]) as graph:
            x = device.zeros(count)
            for _ in range(_CHAIN):
                x = add(x, x)
        return _per_link(graph)

    return kept.number("operation", {**kept.describe(device), "count": count}, measure, 1e-8, 10.0)


def sum_seconds(comm: Communicator, count: int) -> float:
    """Return the seconds of a sum of ``count`` float32 over the ranks and of what waits for it, in a graph."""
    if comm.nranks == 1:
        return 0.0

    def measure() -> float:
        arrays = [device.zeros(count) for device in comm.devices]
        with capture(comm.devices, comm=comm) as graph:
            for _ in range(_CHAIN):
                comm.all_reduce(arrays)
        return _per_link(graph)

    links = [link.kind for link in comm.links()]
    about = {"ranks": [kept.describe(device) for device in comm.devices], "links": links, "count": count}
    return kept.number("sum", {**about, "transports": comm.transports()}, measure, 1e-8, 10.0)


def _speed(device: Device) -> float:
    rows, columns = _SHAPE_CPU if device.info.is_cpu else _SHAPE_GPU
    with device.zeros((rows, columns), "float16") as weight, device.zeros((1, columns), "float16") as row:
        result = matmul(row, weight, transpose_b=True)
        device.synchronize()  # the kernel is compiled
        calls = _CALLS
        while True:
            start = time.perf_counter()
            for _ in range(calls):
                matmul(row, weight, transpose_b=True, out=result)
            device.synchronize()
            seconds = time.perf_counter() - start
            if seconds >= _ENOUGH or calls >= _MOST_CALLS:
                return calls * weight.nbytes / max(seconds, 1e-9)
            calls *= 4


def _per_link(graph: Graph) -> float:
    """Return the seconds of a link of a graph's chain, and close the graph; the first launch does not count."""
    try:
        best = float("inf")
        for number in range(_LAUNCHES + 1):
            start = time.perf_counter()
            graph.launch().wait()
            if number:
                best = min(best, time.perf_counter() - start)
        return best / _CHAIN
    finally:
        graph.close()
