"""A transformer's feed-forward blocks split over a rig: vkpar's public calls and nothing else.

Rank r holds a share of the inner width: those columns of the first matrix, with their bias, and the same rows of the
second. GELU needs no other rank's numbers, so a block is two matrix products a rank and one all_reduce of the partial
sums. The output bias goes into rank 0's partial sum, before the all_reduce: it is added exactly once, and the replicas
that the all_reduce makes bit-identical stay so.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

import vkpar
from vkpar.demo.weights import F32
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from vkpar import Array, Communicator, Device

GROUP_SIZE: Final = 64
# The least that Vulkan lets a driver allow in one dimension; what lies beyond is reached by the kernel's stride.
MAX_GROUPS: Final = 65_535
# Seconds after which a slow device need not repeat a step again.
ENOUGH: Final = 1.0

# With t = 1 / (1 + z/2), erfc(z) exp(z^2) is a polynomial of degree 9 in t to a relative 4.3e-8 for z in [0, 10]; at 10
# gelu is below float32's range. Phi comes from erfc on its own side of 0, so nothing cancels. In float32 Phi errs by
# 1.9e-7 with a good exp and by 4e-7 with the worst that Vulkan allows: gelu errs by less than 2^-20 |x|.
GELU_GLSL: Final = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Values { float values[]; };
layout(push_constant) uniform Parameters { uint count; };

float gelu(float x) {
    float z = min(abs(x) * 0.70710678, 10.0);
    float t = 1.0 / (1.0 + 0.5 * z);
    float p = -0.059069216;
    p = p * t + 0.28457618;
    p = p * t - 0.48720227;
    p = p * t + 0.27806980;
    p = p * t - 0.026627384;
    p = p * t + 0.20268756;
    p = p * t + 0.24310361;
    p = p * t + 0.28237534;
    p = p * t + 0.28208640;
    float tail = 0.5 * p * t * exp(-z * z);
    return x * (x < 0.0 ? tail : 1.0 - tail);
}

void main() {
    uint stride = gl_NumWorkGroups.x * 64u;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) values[i] = gelu(values[i]);
}
"""


@dataclass(frozen=True)
class StepTimes:
    """Median times of one block in microseconds, on data that is on the devices.

    ``matmul`` (both products, bias and GELU, until every rank is idle) and ``all_reduce`` are taken apart, one after
    the other; ``whole`` is the block as it is meant to run, enqueued at once and waited for at its end.
    """

    matmul: float
    all_reduce: float
    whole: float


def split_width(width: int, nranks: int) -> list[slice]:
    """Return each rank's share of ``width`` as :func:`numpy.array_split` cuts it: any width, shares differ by 1.

    Raises:
        InvalidUsageError: fewer than one element a rank.
    """
    if nranks < 1 or width < nranks:
        raise InvalidUsageError(f"cannot split a width of {width} over {nranks} ranks")
    parts = np.array_split(np.arange(width), nranks)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def split_layer(layer: dict[str, F32], nranks: int) -> list[tuple[F32, F32, F32]]:
    """Cut one layer's feed-forward weights for ``nranks`` ranks.

    Returns:
        for each rank, with w its share: the first matrix (hidden, w), its bias (w,), the second matrix (w, hidden).
    """
    first, bias = layer["intermediate.dense.weight"], layer["intermediate.dense.bias"]
    second = layer["output.dense.weight"]
    return [
        (np.ascontiguousarray(first[part].T), bias[part], np.ascontiguousarray(second[:, part].T))
        for part in split_width(len(bias), nranks)
    ]


class SplitFeedForward:
    """The feed-forward blocks of several layers, their weights uploaded once, their work arrays shared.

    Args:
        devices: the rig, in rank order.
        communicator: over those devices.
        layers: each layer's tensors, see :meth:`vkpar.demo.weights.Model.layer`.
        tokens: rows of the hidden state.

    Raises:
        InvalidUsageError: more ranks than the inner width has columns.
        ShaderCompileError, UnsupportedError: the GELU kernel cannot be compiled here.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        communicator: Communicator,
        layers: Sequence[dict[str, F32]],
        tokens: int,
    ) -> None:
        hidden, inner = layers[0]["output.dense.weight"].shape
        widths = [part.stop - part.start for part in split_width(inner, len(devices))]
        self._devices = list(devices)
        self._communicator = communicator
        self._gelu = [vkpar.Kernel(device, GELU_GLSL) for device in devices]
        self._x = [device.empty((tokens, hidden), np.float32) for device in devices]
        self._inner = [device.empty((tokens, w), np.float32) for device, w in zip(devices, widths, strict=True)]
        self._y = [device.empty((tokens, hidden), np.float32) for device in devices]
        self._weights: list[list[tuple[Array, Array, Array]]] = []
        self._bias: list[Array] = []
        for layer in layers:
            parts = zip(devices, split_layer(layer, len(devices)), strict=True)
            self._weights.append([(dev.array(w1), dev.array(b1), dev.array(w2)) for dev, (w1, b1, w2) in parts])
            self._bias.append(devices[0].array(layer["output.dense.bias"]))

    def run(self, index: int, x: F32) -> tuple[F32, int]:
        """Compute block ``index`` of ``x``.

        Args:
            index: the layer.
            x: float32 (tokens, hidden); every rank gets a copy.

        Returns:
            rank 0's result, float32 (tokens, hidden), and how many elements differ in a bit on any other rank.
        """
        for array in self._x:
            array.write(x)
        self._enqueue_partials(index)
        self._communicator.all_reduce(self._y).wait()
        results = [array.numpy() for array in self._y]
        bits = [result.view(np.uint32) for result in results]
        differs = np.any([other != bits[0] for other in bits], axis=0)
        return results[0], int(np.count_nonzero(differs))

    def measure(self, index: int, repeats: int) -> StepTimes:
        """Time block ``index`` on the input of the last :meth:`run`: ``repeats`` times, or for ``ENOUGH`` seconds."""
        times: list[tuple[float, float, float]] = []
        deadline = time.perf_counter() + ENOUGH
        while not times or (len(times) < repeats and time.perf_counter() < deadline):
            start = time.perf_counter()
            self._enqueue_partials(index)
            for device in self._devices:
                device.synchronize()
            middle = time.perf_counter()
            self._communicator.all_reduce(self._y).wait()
            end = time.perf_counter()
            self._enqueue_partials(index)
            self._communicator.all_reduce(self._y).wait()
            times.append((middle - start, end - middle, time.perf_counter() - end))
        return StepTimes(*(1e6 * median(part) for part in zip(*times, strict=True)))

    def _enqueue_partials(self, index: int) -> None:
        for rank, (first, bias, second) in enumerate(self._weights[index]):
            inner = self._inner[rank]
            vkpar.matmul(self._x[rank], first, out=inner)
            vkpar.add(inner, bias, out=inner)
            count = inner.shape[0] * inner.shape[1]
            groups = min(-(-count // GROUP_SIZE), MAX_GROUPS)
            self._gelu[rank](groups, inner, push=struct.pack("I", count))
            vkpar.matmul(inner, second, out=self._y[rank])
        vkpar.add(self._y[0], self._bias[index], out=self._y[0])
