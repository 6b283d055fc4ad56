"""One token through a Llama-shaped model that is split over devices: what ``vkpar bench step`` measures.

A layer is two blocks, attention's and the feed-forward one. Each has a product whose matrix is split by rows of its
outputs (by columns, in Megatron's words: no device needs another's result), then one split by its inputs, whose partial
results are summed over the devices and added to the residual stream; one device adds in the product itself. Of the
first product's results the second takes as many as it has inputs: attention itself and the activation, which read no
weights, are left out, as are the norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator, default_rng

import vkpar
from vkpar.bench.measure import exact
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import InvalidUsageError

# How much smaller weights make each product's result than its input: nothing overflows in however many layers.
GAIN: Final = 0.25
_VALUES: Final = (1 << 20) + 8  # weights that are drawn; of no size that rows have, so that no two rows are the same
_UNIT: Final = 64  # of the feed-forward width, which devices get multiples of


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        layers: of two blocks each.
        hidden: width of the residual stream.
        intermediate: width inside the feed-forward block.
        heads: of the queries; ``kv_heads`` of the keys and values, of ``head_dim`` elements each.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InvalidUsageError(f"{self.heads} heads are no multiple of {self.kv_heads} heads of keys and values")

    def describe(self) -> str:
        """Return the sizes in words."""
        return (
            f"{self.layers} layers, hidden {self.hidden}, intermediate {self.intermediate}, "
            f"{self.heads} heads of {self.head_dim}, {self.kv_heads} of keys and values"
        )

    def parts(self, nranks: int) -> list[Part]:
        """Return what each of ``nranks`` devices gets: whole groups of heads, and a part of the intermediate width.

        Raises:
            InvalidUsageError: there are fewer of them than devices.
        """
        unit = _UNIT if self.intermediate % _UNIT == 0 else 1
        kv_heads = _cut(self.kv_heads, nranks, "heads of keys and values")
        widths = _cut(self.intermediate // unit, nranks, f"{unit} columns of the intermediate width")
        group = self.heads // self.kv_heads * self.head_dim
        return [
            Part(
                hidden=self.hidden,
                attention=(number * (group + 2 * self.head_dim), number * group),
                forward=(2 * width * unit, width * unit),
            )
            for number, width in zip(kv_heads, widths, strict=True)
        ]

    def weights_nbytes(self, nranks: int) -> list[int]:
        """Return the bytes of the weights of each of ``nranks`` devices; raises as :meth:`parts` does."""
        return [self.layers * part.weights() * 2 for part in self.parts(nranks)]

    def fan_ins(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return how many inputs a result of the two products of either block has, over all devices."""
        return (self.hidden, self.heads * self.head_dim), (self.hidden, self.intermediate)


def _cut(total: int, nranks: int, what: str) -> list[int]:
    if total < nranks:
        raise InvalidUsageError(f"{total} {what} cannot be split over {nranks} devices")
    return [len(part) for part in np.array_split(np.empty(total, np.int8), nranks)]


@dataclass(frozen=True)
class Part:
    """What a device has of every layer.

    Attributes:
        hidden: width of the residual stream, which is whole on every device.
        attention: results of the first product of this block (queries, keys, values), inputs of the second.
        forward: the same of the feed-forward block (gate and up, then down).
    """

    hidden: int
    attention: tuple[int, int]
    forward: tuple[int, int]

    def matrices(self) -> list[list[tuple[int, int]]]:
        """Return the shapes (results, inputs) of the two matrices of both blocks."""
        return [[(wide, self.hidden), (self.hidden, narrow)] for wide, narrow in (self.attention, self.forward)]

    def weights(self) -> int:
        """Return how many weights of a layer the device has."""
        return sum(math.prod(matrix) for block in self.matrices() for matrix in block)


PRESETS: Final = {
    "8b": Shape(32, 4096, 14336, 32, 8, 128),
    "32b": Shape(64, 5120, 27648, 40, 8, 128),
    "70b-slice": Shape(20, 8192, 28672, 64, 8, 128),
    "tiny": Shape(2, 64, 256, 8, 4, 8),
}


def input_of(shape: Shape) -> exact.Host:
    """Return the token that goes in: (hidden, 1) float32."""
    return default_rng(shape.hidden).uniform(-1, 1, (shape.hidden, 1)).astype(np.float32)


def largest_weight(fan_in: int) -> float:
    """Return the end of the range that weights are drawn from evenly, for results of ``fan_in`` inputs."""
    return GAIN * math.sqrt(3 / fan_in)


@dataclass(frozen=True)
class Block:
    """A block of one layer on one device.

    Attributes:
        first: (results, hidden) float16; ``second`` (hidden, inputs) float16.
        wide: where results of the first product go; ``narrow``, a view, those that the second takes.
        partial: where results of the second one go, which are summed over the devices.
    """

    first: vkpar.Array
    second: vkpar.Array
    wide: vkpar.Array
    narrow: vkpar.Array
    partial: vkpar.Array


class Model:
    """The weights of a model on devices, and its step in two styles.

    Args:
        devices: by rank.
        shape: of the model.
        comm: of the devices; None where there is one, which has nothing to sum.
    """

    def __init__(self, devices: Sequence[Device], shape: Shape, comm: Communicator | None) -> None:
        self._comm = comm
        host = input_of(shape)
        self.inputs = [device.array(host) for device in devices]
        self.outputs = [device.empty(host.shape) for device in devices]
        self.parts = shape.parts(len(devices))
        made = [
            _blocks(device, part, shape, default_rng(rank))
            for rank, (device, part) in enumerate(zip(devices, self.parts, strict=True))
        ]
        self.blocks: list[tuple[Block, ...]] = list(zip(*made, strict=True))
        self._partials = [[block.partial for block in row] for row in self.blocks]

    def step(self, *, sums: bool = True) -> list[vkpar.Array]:
        """Run a step whose results all go to arrays that exist; return the residual stream, ``outputs``.

        Args:
            sums: False leaves the sums over the devices out.
        """
        comm = self._comm if sums else None
        stream = self.inputs
        for row, partials in zip(self.blocks, self._partials, strict=True):
            for block, x, out in zip(row, stream, self.outputs, strict=True):
                vkpar.matmul(block.first, x, out=block.wide)
                if self._comm is None:
                    vkpar.matmul(block.second, block.narrow, out=out, residual=x)
                else:
                    vkpar.matmul(block.second, block.narrow, out=block.partial)
            if comm is not None:
                comm.all_reduce(partials)
            if self._comm is not None:
                for x, partial, out in zip(stream, partials, self.outputs, strict=True):
                    vkpar.add(x, partial, out=out)
            stream = self.outputs
        return stream

    def fresh_step(self, *, sums: bool = True) -> list[vkpar.Array]:
        """Run a step whose results are all new arrays, as :meth:`step` does; return those of the last addition."""
        comm = self._comm if sums else None
        stream = self.inputs
        for row in self.blocks:
            partials = []
            for block, x in zip(row, stream, strict=True):
                wide = vkpar.matmul(block.first, x)
                added = x if self._comm is None else None
                partials.append(vkpar.matmul(block.second, wide[: block.second.shape[1]], residual=added))
            if comm is not None:
                comm.all_reduce(partials)
            if self._comm is not None:
                partials = [vkpar.add(x, partial) for x, partial in zip(stream, partials, strict=True)]
            stream = partials
        return stream


def _blocks(device: Device, part: Part, shape: Shape, generator: Generator) -> list[Block]:
    """Return the blocks of all layers on a device; those of one kind share the arrays of their results."""
    drawn: dict[int, vkpar.Array] = {}
    for fan_in in {number for pair in shape.fan_ins() for number in pair}:
        most = largest_weight(fan_in)
        drawn[fan_in] = device.array(generator.uniform(-most, most, _VALUES).astype(np.float16))
    kinds = []
    for matrices, fan_ins in zip(part.matrices(), shape.fan_ins(), strict=True):
        (wide, hidden), (_, narrow) = matrices
        place = device.empty((wide, 1))
        kinds.append((list(zip(matrices, fan_ins, strict=True)), place, place[:narrow], device.empty((hidden, 1))))
    made = []
    for _ in range(shape.layers):
        for matrices_of, place, view, partial in kinds:
            first, second = (_weights(device, size, drawn[fan_in], generator) for size, fan_in in matrices_of)
            made.append(Block(first, second, place, view, partial))
    return made


def _weights(device: Device, size: tuple[int, int], values: vkpar.Array, generator: Generator) -> vkpar.Array:
    """Return a matrix of ``values``, repeated from a random one of them on: nothing but the values crosses the bus."""
    made = device.empty(size, "float16")
    flat = made.reshape(-1)
    at, start = 0, int(generator.integers(values.size // 8)) * 8  # copies of whole 16 bytes
    while at < flat.size:
        count = min(values.size - start, flat.size - at)
        flat[at : at + count].copy_from(values[start : start + count])
        at, start = at + count, 0
    return made
