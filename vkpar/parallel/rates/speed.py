"""How fast devices read weights, and what operations and sums between them cost: measured once, and kept.

What is measured is measured until it no longer falls: see :mod:`vkpar.comm.tune.settling`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from statistics import fmean
from typing import Final

from vkpar.arrays.array import Array
from vkpar.comm import ranks
from vkpar.comm.communicator import Communicator
from vkpar.comm.tune.settling import settled
from vkpar.device import Device
from vkpar.graph.capture import capture
from vkpar.graph.graph import Graph
from vkpar.ops import cast, rms_norm
from vkpar.ops.matmul.matmul import matmul
from vkpar.ops.quantized.kinds import FORMATS, KINDS
from vkpar.ops.quantized.weights import Quantized, quantized
from vkpar.parallel.rates import cache

_SHAPE_GPU: Final = (8192, 8192)  # 128 MiB of float16: more than the caches of the GPUs of 2026 hold
_SHAPE_CPU: Final = (1024, 1024)
PROMPT: Final = 512  # rows
_CALLS: Final = 8
_ENOUGH: Final = 0.02  # seconds that are measured at least
_MOST_CALLS: Final = 4096
_CHAIN: Final = 16  # links of a graph, each of which waits for the one before
_WEIGHT_GPU: Final = 32 << 20  # elements of each of a link's weights: together more than the caches hold
_WEIGHT_CPU: Final = 16 << 10
_OPERATIONS: Final = 3  # of a link: two products and a norm
_LAUNCHES: Final = 5
_ALIKE: Final = 1.05  # times the least: what equal devices are measured to differ by, from one moment to the next


def speeds(devices: Sequence[Device], kind: str = "float16") -> list[float]:
    """Return how many bytes of weights a second each device reads in matrix-vector products.

    Each physical device is measured once, alone; what it does is divided among the devices that were opened on it.
    Nothing else should run on them meanwhile. Devices of one model get the same speed: see :func:`levelled`.

    Args:
        devices: the devices.
        kind: what the weights are stored in, a dtype or a quantised format: devices differ in what they make of blocks.

    Raises:
        InvalidUsageError: a device is closed.
        OutOfMemoryError: no room for 128 MiB of float16 weights (2 MiB on a CPU), or as many of another kind.
    """
    cards = [device.info.device_uuid for device in devices]
    found = levelled(devices, [_alone(device, kind) for device in devices])
    return [each / cards.count(card) for each, card in zip(found, cards, strict=True)]


def levelled(devices: Sequence[Device], measured: Sequence[float]) -> list[float]:
    """Return what was measured of devices, of one model and driver their mean where they differ by chance alone.

    Else plans would cut weights at odd places, and take one card of two equal ones, by what a clock was at.
    """
    found = list(measured)
    models = [(device.info.name, device.info.driver_uuid, device.info.driver_version) for device in devices]
    for model in set(models):
        same = [rank for rank, each in enumerate(models) if each == model]
        least, most = (function(measured[rank] for rank in same) for function in (min, max))
        if most <= _ALIKE * least:
            mean = fmean(measured[rank] for rank in same)
            for rank in same:
                found[rank] = mean
    return found


def _alone(device: Device, kind: str = "float16") -> float:
    return cache.number("speed", {**cache.describe(device), "kind": kind}, partial(_speed, device, kind), 1e3, 1e15)


def op_seconds(device: Device, width: int) -> float:
    """Return what an operation of a step takes besides reading weights: the seconds until the next one may begin.

    It is the mean of those of a block, two products and a norm of rows of ``width``, in a graph.
    """

    def measure() -> float:
        with ExitStack() as stack:
            weights = _Weights([device], width)
            link = settled([_Chain(stack, weights).seconds], [device])[0]
            return _more(link, weights.nbytes / _alone(device)) / _OPERATIONS

    return cache.number("operation", {**cache.describe(device), "width": width}, measure, 1e-7, 10.0)


def sum_seconds(comm: Communicator, width: int) -> float:
    """Return by how much a sum over the ranks makes a step longer that sums a product of ``width`` columns, in a graph.

    The ranks' products end at different times, and what waits for the sum takes it over: between products a sum costs
    more than in a row of sums.
    """
    if comm.nranks == 1:
        return 0.0

    def measure() -> float:
        with ExitStack() as stack:
            weights = _Weights(comm.devices, width)
            alone, summed = _Chain(stack, weights), _Chain(stack, weights, comm)
            without, whole = settled([alone.seconds, summed.seconds], comm.devices)
            return _more(whole, without)

    if not ranks.is_whole(comm):
        return _across(comm, width)
    links = [link.kind for link in comm.links()]
    about = {"ranks": [cache.describe(device) for device in comm.devices], "links": links, "width": width}
    return cache.number("sum", {**about, "transports": comm.transports()}, measure, 1e-7, 10.0)


def halves_ratio(devices: Sequence[Device], width: int, inner: int, comm: Communicator | None = None) -> float | None:
    """Return how long prompts take in two halves of their rows, of the time of whole ones, in a tensor split.

    Between two sums each rank makes a product of ``width`` columns into a block and one out of it. Prompts of
    :data:`PROMPT` rows are measured, so that links that are slow beside the ranks' products give less than 1.

    None where a processor is among the ranks, since work that is done meanwhile takes the cores from the sums, and over
    several processes.

    Args:
        devices: that sum.
        width: of the residual stream.
        inner: of what a rank has between the products.
        comm: a communicator of theirs; None for one that is made for this.
    """
    if (comm is not None and len(devices) < comm.nranks) or any(device.info.is_cpu for device in devices):
        return None
    if comm is None:
        with Communicator(devices) as made:
            return halves_ratio(devices, width, inner, made)

    def measure() -> float:
        with ExitStack() as stack:
            weights = _Weights(comm.devices, width, PROMPT, inner)
            chains = [_Chain(stack, weights, comm, cut) for cut in (PROMPT, PROMPT // 2)]
            whole, halves = settled([chain.seconds for chain in chains], comm.devices)
            return halves / whole

    about = {"ranks": [cache.describe(device) for device in comm.devices], "width": width, "inner": inner}
    about["links"] = [link.kind for link in comm.links()]
    return cache.number("halves", {**about, "transports": comm.transports()}, measure, 0.1, 10.0)


def _across(comm: Communicator, width: int) -> float:
    """Return what a sum takes over several processes: each makes as many launches, and the slowest counts."""
    with ExitStack() as stack:
        weights = _Weights(comm.devices, width)
        alone, summed = _Chain(stack, weights), _Chain(stack, weights, comm)
        summed.seconds()  # kernels are compiled
        alone.seconds()
        found = _more(summed.seconds(), alone.seconds())
        return max(ranks.gathered(comm, "the time of a sum", lambda: found))


def _more(whole: float, without: float) -> float:
    """Return by how much one time is longer than the other, which is measured at another moment: a little at least."""
    return max(whole - without, whole / 20)


def _speed(device: Device, kind: str) -> float:
    shape = _SHAPE_CPU if device.info.is_cpu else _SHAPE_GPU
    dtype = "float16" if kind in FORMATS else kind  # formats without products are decoded to that
    with _matrix(device, shape, kind) as weight, device.zeros((1, shape[1]), dtype) as row:
        result = matmul(row, weight, transpose_b=True)
        device.synchronize()  # the kernel is compiled
        calls = _CALLS

        def measure() -> float:
            nonlocal calls
            while True:
                start = time.perf_counter()
                for _ in range(calls):
                    matmul(row, weight, transpose_b=True, out=result)
                device.synchronize()
                seconds = time.perf_counter() - start
                if seconds >= _ENOUGH or calls >= _MOST_CALLS:
                    return seconds / calls
                calls *= 4

        return weight.nbytes / max(settled([measure], [device])[0], 1e-12)


def _matrix(device: Device, shape: tuple[int, int], kind: str) -> Array | Quantized:
    """Return weights of a kind, all zeros."""
    if kind not in KINDS:
        return device.zeros(shape, "float16" if kind in FORMATS else kind)
    rows, nbytes = shape[0], shape[1] // KINDS[kind].block * KINDS[kind].nbytes
    with device.zeros((rows, nbytes), "uint8") as blocks:
        return quantized(device, blocks, shape, kind)


class _Weights:
    """What products into a block and out of it take, on each of some devices.

    Args:
        devices: the devices.
        width: of the residual stream.
        rows: of that; many are float16, as those of prompts are.
        inner: what lies between the products; 0 for as much as takes far longer to read than to begin.

    Attributes:
        devices: as given.
        rows: of the residual stream; ``scales`` of the norm.
        first: by device the weight of the product into the block, ``second`` that of the one out of it.
        nbytes: of both on a device.
    """

    def __init__(self, devices: Sequence[Device], width: int, rows: int = 1, inner: int = 0) -> None:
        most = _WEIGHT_CPU if any(device.info.is_cpu for device in devices) else _WEIGHT_GPU
        inner = inner or max(most // width // 8 * 8, 8)
        self.devices = devices
        self.nbytes = 2 * 2 * inner * width
        self.rows = [device.zeros((rows, width)) for device in devices]
        self.inputs = "float32" if rows == 1 else "float16"
        self.scales = [device.zeros(width) for device in devices]
        self.first = [device.zeros((inner, width), "float16") for device in devices]
        self.second = [device.zeros((width, inner), "float16") for device in devices]


class _Chain:
    """A graph of links, each of which is a product into a block, one out of it, their sum over ranks, and a norm.

    Args:
        stack: closes the graph.
        weights: on devices, on which the links run side by side.
        comm: sums; None for no sums.
    """

    def __init__(
        self, stack: ExitStack, weights: _Weights, comm: Communicator | None = None, cut: int | None = None
    ) -> None:
        self._weights, self._comm = weights, comm
        pieces = [[part[:cut] for part in weights.rows]]
        if cut is not None and cut < weights.rows[0].shape[0]:
            pieces.append([part[cut:] for part in weights.rows])
        with capture(weights.devices, comm=comm, overlap=len(pieces) > 1) as graph:
            streams = pieces
            for _ in range(_CHAIN):
                sums = [self._through(stream) for stream in streams]
                streams = [self._normed(*each) for each in zip(sums, pieces, strict=True)]
        self._graph: Graph = graph
        stack.callback(graph.close)

    def _through(self, x: Sequence[Array]) -> list[Array]:
        """Take rows through both products, and begin their sum."""
        kind, many = self._weights.inputs, self._weights.rows[0].shape[0] > 1
        given = [cast(part, kind) for part in x] if many else x
        firsts, seconds = self._weights.first, self._weights.second
        inside = [matmul(part, each, transpose_b=True, dtype=kind) for part, each in zip(given, firsts, strict=True)]
        out = [
            matmul(part, each, transpose_b=True, dtype="float32") for part, each in zip(inside, seconds, strict=True)
        ]
        if self._comm is not None:
            self._comm.all_reduce(out)
        return out

    def _normed(self, sums: Sequence[Array], rows: Sequence[Array]) -> list[Array]:
        given = zip(sums, self._weights.scales, rows, strict=True)
        return [rms_norm(part, scale, 1e-5, residual=row)[0] for part, scale, row in given]

    def seconds(self) -> float:
        """Return the seconds of a link: the least of a few launches."""
        least = float("inf")
        for _ in range(_LAUNCHES):
            start = time.perf_counter()
            self._graph.launch().wait()
            least = min(least, time.perf_counter() - start)
        return least / _CHAIN
