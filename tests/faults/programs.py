"""Small programs of every room: each takes opened devices and returns what it has computed, on the host."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

import vkpar
from vkpar.parallel.models import Generation, Llama, tiny
from vkpar.parallel.plan.placing import place
from vkpar.parallel.plan.sources import spec_of
from vkpar.vulkan import api
from vkpar.vulkan.machine import instance

Results = list[Any]
Devices = Sequence[vkpar.Device]

_KERNEL = """#version 450
layout(local_size_x = 32) in;
layout(binding = 0) readonly buffer X { float x[]; };
layout(binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Push { uint n; float factor; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] += factor * x[i];
}
"""
_COUNT = 3000
_TIMEOUT = 3.0
_SMALL = replace(tiny.SIZES, layers=1, vocabulary=64)


def values(rank: int, count: int = _COUNT) -> np.ndarray:
    """Return whole numbers that no wire rounds, others for each rank."""
    return ((np.arange(count) * 7 + rank) % 64).astype(np.float32)


def _arrays(devices: Devices) -> list[vkpar.Array]:
    return [device.array(values(rank)) for rank, device in enumerate(devices)]


def _read(arrays: Sequence[vkpar.Array]) -> Results:
    return [array.numpy() for array in arrays]


def opening(_: Devices) -> Results:
    """Make the instance, list devices, open them, compute, close all."""
    if "Device" not in api.load().live():
        instance.close()
    found: Results = []
    for selector in PROGRAMS["opening"].selectors():
        with vkpar.open_devices(selector)[0] as device:
            found.append((device.array(values(0)) + 1).numpy())
    return found


def operations(devices: Devices) -> Results:
    """Uploads, operations with one and several dispatches, views, downloads, memory that is used again."""
    found: Results = []
    for device in devices:
        x = device.array(values(0).reshape(50, 60))
        product = vkpar.matmul(x, x, transpose_b=True)
        whole = vkpar.sum(x * 2 + x)
        found += [product.numpy(), whole.numpy(), vkpar.softmax(x, axis=0).numpy(), x[1:40:3, ::2].numpy()]
        x[2:5] = np.float32(3)
        wide = device.array(values(1, 400_000))
        found += [x.read((slice(1, 6),)), (wide + wide).numpy()[::1000], wide.astype("int32").T.copy().numpy()[:10]]
        with vkpar.host_array(40_000, "float32", device) as host:
            host.numpy()[...] = 5
            doubled = device.array(host) * 2
            doubled.read(out=host)
            found.append(host.numpy().copy())
        device.trim()
    return found


def kernels(devices: Devices) -> Results:
    """A kernel of the user's own, timed too, and an elementwise function."""
    found: Results = []
    scaled = vkpar.elementwise("y = a * x + 1.0")
    for device in devices:
        x, y = device.array(values(0)), device.array(values(1))
        kernel = vkpar.Kernel(device, _KERNEL)
        for factor in (2.0, 3.0):
            kernel(x, y, elements=_COUNT, push={"n": _COUNT, "factor": factor})
        found += [y.numpy(), scaled(x, a=2.0).numpy()]
        kernel.time(x, device.zeros(_COUNT), elements=_COUNT, push={"n": _COUNT, "factor": 0.0})
        kernel.close()
    return found


def collectives(devices: Devices) -> Results:
    """Sums and movements, twice each, and a group."""
    found: Results = []
    with vkpar.Communicator(devices, timeout=_TIMEOUT) as comm:
        for _ in range(2):
            arrays = _arrays(devices)
            comm.all_reduce(arrays)
            found += _read(arrays)
        gathered = [device.zeros(len(devices) * _COUNT) for device in devices]
        comm.all_gather(_arrays(devices), out=gathered).wait()
        arrays, others = _arrays(devices), _arrays(devices)
        with comm.group():
            comm.broadcast(arrays, root=1)
            comm.all_reduce(others, op="max")
        found += _read([*gathered, *arrays, *others])
    return found


def copies(devices: Devices) -> Results:
    """Copies between devices that share no communicator."""
    first, second = devices[0], devices[-1]
    moved = first.array(values(3)).to(second)
    back = first.zeros(_COUNT)
    vkpar.copy(moved, back)
    return _read([moved, back])


def graphs(devices: Devices) -> Results:
    """A captured step with sums and a parameter, launched three times; one of a single device."""
    found: Results = []
    with vkpar.Communicator(devices, timeout=_TIMEOUT) as comm:
        arrays = _arrays(devices)
        with vkpar.capture(devices, comm=comm) as graph:
            factors = graph.param("factor", "float32", initial=1)
            scaled = [vkpar.multiply(array, factor) for array, factor in zip(arrays, factors, strict=True)]
            comm.all_reduce(scaled)
            outs = [vkpar.add(item, array) for item, array in zip(scaled, arrays, strict=True)]
        for factor in (1, 2, 3):
            graph.launch(factor=factor)
            found += _read(outs)
        graph.close()
    x = devices[0].array(values(5))
    with vkpar.capture(devices[:1]) as alone:
        y = x + x
    alone.launch().wait()
    found.append(y.numpy())
    alone.close()
    return found


@cache
def _weights() -> dict[str, Any]:
    return tiny.weights(_SMALL)


def decoder(devices: Devices) -> Results:
    """A small decoder, split by tensors over two ranks: a prompt and captured steps."""
    with vkpar.Communicator(devices, timeout=_TIMEOUT, wire="f32") as comm:
        placement = place(spec_of(_SMALL), "tensor", [Fraction(1)] * len(devices))
        with Llama(_SMALL, _weights(), comm, placement, context=32, cache_dtype="float32") as model:
            return list(Generation(model, (1, 5, 9), 4))


@dataclass(frozen=True)
class Program:
    """What runs on which devices: L is llvmpipe, or what VKPAR_TEST_L names in place of it, S is SwiftShader."""

    run: Callable[[Devices], Results]
    letters: str
    opens: bool = False

    def selectors(self) -> list[str]:
        """Return what opens a device for each letter."""
        first = itertools.cycle(os.environ.get("VKPAR_TEST_L", "llvmpipe").split("&"))
        return [next(first) if letter == "L" else "swiftshader" for letter in self.letters]


PROGRAMS = {
    "opening": Program(opening, "LS", opens=True),
    "operations": Program(operations, "LS"),
    "kernels": Program(kernels, "LS"),
    "collectives of one driver": Program(collectives, "LL"),
    "collectives of two drivers": Program(collectives, "LS"),
    "copies": Program(copies, "LS"),
    "graphs of one driver": Program(graphs, "LL"),
    "graphs of two drivers": Program(graphs, "LS"),
    "decoder": Program(decoder, "LL"),
}
