"""What a rank computes between weights and cache, and the memory of that; pure.

Arrays are followed in the order in which a block makes and drops them. One that is dropped serves the next one of its
size, and of no other size, as in a graph (:mod:`vkpar.vulkan.memory.recycle`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vkpar import dtypes
from vkpar.ops.experts.products import TILE
from vkpar.ops.experts.routing import tiles_of
from vkpar.ops.quantized import scratch
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.ops.tiles import cpu
from vkpar.ops.tiles.matvec import MOST_ROWS
from vkpar.parallel.plan.spec import ModelSpec
from vkpar.vulkan.memory.memtypes import DEVICE, heap_of
from vkpar.vulkan.memory.pool import padded

if TYPE_CHECKING:
    from vkpar.device import Device

BATCH: Final = 512  # tokens of a prompt that go through the blocks together
_LONG: Final = 2048  # where all devices are GPUs with much memory: products of more rows are faster, and sums fewer
_MUCH: Final = 32 << 30
_LEAST: Final = 128
# Rows that a GPU computes in what a piece takes besides. Pieces of an 8B shape of 128 to 2,048 rows took two H200s in
# graphs 11.0, 17.8, 28.5, 52.9 and 106 ms in float16; of Q4_K 22.8, 28.9, 38.6, 65.3 and 120.
_FIXED: Final = 128
_UNPACKING: Final = 180  # more where quantised weights are made anew
_UNIT: Final = 64
_ALIKE: Final = 16  # times as long as what it takes to run a shorter last piece
_F32: Final = 4
_HALF: Final = 2


def batch_of(devices: Sequence[Device]) -> int:
    """Return how many tokens of a prompt go through the blocks together on these devices."""
    infos = [device.info for device in devices]
    much = captured_on(devices) and all(info.heaps[heap_of(info, DEVICE)].nbytes >= _MUCH for info in infos)
    return _LONG if much else BATCH


def captured_on(devices: Sequence[Device]) -> bool:
    """Say whether pieces are captured: on GPUs, which wait for the host between the operations of eager work.

    On a CPU the host costs nothing beside the operations, and what runs between two collectives of a graph could take
    longer than the communicator's timeout.
    """
    return not any(device.info.is_cpu for device in devices)


def piece_rows(tokens: int, stages: int, batch: int = BATCH, *, unpacks: bool = False) -> int:
    """Return how many tokens of a prompt go through the blocks together.

    Where blocks lie on several ranks, these work on different pieces at a time. Of p pieces over s ranks the last one
    is done after p + s - 1 turns, each of which takes as long as a piece's rows and a fixed number of further ones do.
    So short prompts stay whole. Pieces of one length are preferred, as GPUs run those by graphs.

    Args:
        tokens: of the prompt.
        stages: ranks that have blocks of their own.
        batch: the most.
        unpacks: each piece has quantised weights made anew.
    """
    if stages == 1:
        return batch
    return int(_rows_of(np.array([tokens]), stages, batch, _FIXED + _UNPACKING * unpacks)[0])


def _rows_of(tokens: NDArray[np.int64], stages: int, batch: int, fixed: int) -> NDArray[np.int64]:
    """Return :func:`piece_rows` of prompts over several stages."""
    best = np.maximum(np.sqrt(fixed * tokens // (stages - 1)).astype(np.int64), 1)
    found, costs = [], []
    for more in (-1, 0, 1):
        pieces = np.maximum(tokens // best + more, 1)
        rows = np.maximum(-(-tokens // pieces // _UNIT) * _UNIT, _LEAST)
        turns = -(-tokens // rows) + stages - 1
        uneven = (tokens > rows) & (tokens % rows > 0)
        found.append(rows)
        costs.append(turns * (rows + fixed) * (_ALIKE + uneven))
    cheapest: NDArray[np.int64] = np.minimum(np.choose(np.argmin(costs, axis=0), found), batch)
    return cheapest


def unpacks_some(kinds: Iterable[str]) -> bool:
    """Say whether pieces have weights made anew, by what the products' weights are stored in: some in blocks."""
    return not FORMATS.keys().isdisjoint(kinds)


@functools.lru_cache(maxsize=64)
def most_rows(context: int, stages: int, batch: int, *, unpacks: bool = False) -> int:
    """Return the most tokens that go through the blocks together of any prompt of up to ``context``."""
    if stages == 1:
        return min(context, batch)
    fixed = _FIXED + _UNPACKING * unpacks
    longest = 4 * batch * batch * (stages - 1) // fixed + 1  # from there on all pieces are as long as can be
    tokens = np.arange(1, min(context, longest) + 1)  # of all lengths: longer prompts may come in shorter pieces
    return int(np.minimum(tokens, _rows_of(tokens, stages, batch, fixed)).max())


class Widths(NamedTuple):
    """Columns of what a rank computes in a block.

    Attributes:
        stream: of the residual stream.
        queries: of queries, ``keys`` of keys and of values, ``inner`` of the feed-forward block.
        gated: the feed-forward block has a gate.
        share: of each product that the rank computes itself; below 1 in a row split, where it gets the others' parts.
        head_norms: heads of queries and keys are normed, which lie among others and are copied for that.
        experts: of the feed-forward block, 0 for none; ``active`` of them that a row takes.
        shared: of the expert that all rows take; ``dense`` of feed-forward blocks without experts beside such.
    """

    stream: int
    queries: int
    keys: int
    inner: int
    gated: bool = True
    share: float = 1.0
    head_norms: bool = False
    experts: int = 0
    active: int = 0
    shared: int = 0
    dense: int = 0


class Stored(NamedTuple):
    """How weights and inputs meet.

    Attributes:
        halves: many rows are rounded to halves before products, and queries, keys and values are halves.
        quantized: products of many rows unpack weights, some rows at a time.
        widened: they convert whole float16 weights. A file may have weights of either kind.
        table: bytes of an element of the embedding table.
        device: how the rank's device takes weights.
    """

    halves: bool = False
    quantized: bool = False
    widened: bool = False
    table: int = _F32
    device: cpu.Weights = cpu.ON_GPUS

    def made(self, rows: int, outputs: int, inputs: int) -> list[int]:
        """Return the bytes of what a product has its weight made anew in, piece by piece."""
        pieces = self._unpacked(rows, outputs, inputs)
        if not self.device.turned or not inputs or not outputs:
            return pieces
        most = self._at_once(rows, outputs, inputs)
        parts = [min(most, outputs - start) for start in range(0, outputs, most)]
        itemsize = _HALF if self.widened and not self.quantized else self.itemsize
        copies = [part * inputs * itemsize if cpu.turns(rows, part, inputs) else 0 for part in parts]
        return [size for pair in zip(pieces or [0] * len(parts), copies, strict=True) for size in pair]

    def _unpacked(self, rows: int, outputs: int, inputs: int) -> list[int]:
        """Return the bytes of what packed weights are made in, and of those converted: CPUs for few rows, too."""
        if rows == 1 and self.quantized and self.device.lanes:  # a kernel reads them as they are
            return []
        if not inputs or not outputs or (rows <= MOST_ROWS and not (self.quantized and not self.device.halves)):
            return []
        if not self.quantized:
            return [outputs * inputs * self.itemsize] if self.widened else []
        most = self._at_once(rows, outputs, inputs)
        pieces = [min(most, outputs - start) for start in range(0, outputs, most)]
        return [scratch.nbytes(rows, inputs, self.itemsize) for rows in pieces]

    def _at_once(self, rows: int, outputs: int, inputs: int) -> int:
        """Return how many of a weight's rows are made anew together: of float16 ones among others all."""
        whole = not self.quantized or (self.widened and rows > MOST_ROWS)
        return outputs if whole else scratch.rows_at_once(inputs, self.itemsize, halves=self.device.halves)

    @property
    def itemsize(self) -> int:
        """Bytes of what is rounded."""
        return _HALF if self.halves else _F32


def stored_as(spec: ModelSpec, devices: Sequence[cpu.Weights] = (), rank: int = 0) -> Stored:
    """Return how a model's weights and inputs meet on a rank.

    Args:
        spec: the model.
        devices: by rank how its device takes weights; none where all are GPUs. One that is none keeps inputs from
            being rounded on all.
        rank: the rank.
    """
    kinds, table = spec.product_kinds, spec.table
    rounds = all(device.halves for device in devices)
    halves = rounds and spec.cache == "float16" and spec.weights not in ("float32", "bfloat16")
    itemsize = dtypes.resolve(table).itemsize if table and table not in FORMATS else _HALF
    device = devices[rank] if devices else cpu.ON_GPUS
    return Stored(halves, unpacks_some(kinds), "float16" in kinds and not halves, itemsize, device)


class _Memory:
    """Sizes of arrays that are held and of those that were dropped."""

    def __init__(self) -> None:
        self._idle: Counter[int] = Counter()
        self.nbytes = 0

    def take(self, elements: int, itemsize: int) -> int:
        """Return the size of a new array; 0 for one without elements."""
        size = padded(elements * itemsize) if elements else 0
        if self._idle[size]:
            self._idle[size] -= 1
        else:
            self.nbytes += size
        return size

    def drop(self, *sizes: int) -> None:
        """Take arrays back."""
        self._idle.update(sizes)

    def pass_by(self, sizes: Sequence[int]) -> None:
        """Take arrays of so many bytes one after the other, each dropped once the next one is there."""
        last: list[int] = []
        for nbytes in sizes:
            made = self.take(nbytes, 1)
            self.drop(*last)
            last = [made]
        self.drop(*last)


def block_nbytes(widths: Widths, rows: int, stored: Stored) -> int:
    """Return the bytes of what blocks compute for so many rows."""
    memory, halves = _Memory(), stored.halves and rows > MOST_ROWS
    stream, queries, keys, inner, gated, share, head_norms, experts, _, shared, dense = widths
    wide = _HALF if halves else _F32

    def product(segments: Sequence[int], inputs: int, itemsize: int, *, rounds: bool = True) -> int:
        """Take a product's result; its rounded inputs, weights made for it, and parts of it, are dropped."""
        rounded = memory.take(rows * inputs if halves and rounds else 0, _HALF)
        made = memory.take(rows * sum(segments), itemsize)
        memory.pass_by(stored.made(rows, round(sum(segments) * share), inputs))
        parts = []
        if share < 1:
            parts.append(memory.take(round(rows * sum(segments) * share), itemsize))
            parts += [memory.take(round(rows * columns * (1 - share)), itemsize) for columns in segments]
        memory.drop(rounded, *parts)
        return made

    def forward(inner: int) -> list[int]:
        """Take what a feed-forward block computes."""
        wider = product((inner, inner) if gated else (inner,), stream, _F32)
        active = memory.take(rows * inner, _F32)
        memory.drop(wider)
        return [active, product((stream,), inner, _F32)]

    found = memory.take(rows * stream, stored.table)
    before = memory.take(rows * stream, _F32)
    memory.drop(found)
    normed = memory.take(rows * stream, _F32)
    # In the second block all that is dropped serves again.
    for mixes in (True, False, True, False) if dense else (experts > 0,) * 2:
        qkv = product((queries, keys, keys), stream, wide)
        for columns in (queries, keys) if head_norms and rows > 1 else ():
            memory.drop(*[memory.take(rows * columns, wide) for _ in range(2)])
        turned = memory.take(rows * (queries + keys), wide)
        mixed = memory.take(rows * queries, wide)
        memory.drop(turned, qkv)
        result = product((stream,), queries, _F32, rounds=False)
        new = [memory.take(rows * stream, _F32) for _ in range(2)]
        memory.drop(mixed, result, before, normed)
        before, normed = new
        held = _mixture(memory, widths, rows, halves=halves) if mixes else forward(dense or inner)
        if mixes and shared:  # its share besides, and what is weighed by that
            held += [*forward(shared), memory.take(rows, _F32), memory.take(rows * shared, _F32)]
        new = [memory.take(rows * stream, _F32) for _ in range(2)]
        memory.drop(*held, before, normed)
        before, normed = new
    return memory.nbytes


def _mixture(memory: _Memory, widths: Widths, rows: int, *, halves: bool) -> list[int]:
    """Take what a mixture of experts computes: logits, choices, pairs by expert, and what there is of each pair."""
    pairs = rows * widths.active
    tiles = tiles_of(pairs, widths.experts, TILE) if rows > MOST_ROWS else 0
    return [
        memory.take(rows * widths.experts, _F32),
        memory.take(2 * pairs, _F32),
        memory.take(tiles * (1 + TILE), _F32),
        memory.take(rows * widths.stream if halves else 0, _HALF),
        memory.take(pairs * widths.inner, _HALF if halves else _F32),
        memory.take(pairs * widths.stream if rows > MOST_ROWS else 0, _F32),
        memory.take(rows * widths.stream, _F32),
    ]


def slices_nbytes(widths: Widths, share: float, rows: int, stored: Stored) -> int:
    """Return the bytes of what a rank computes that has a ``share`` of each product of a row split.

    It gets all inputs of a product, and what it sends back are columns of its results that lie side by side.
    """
    memory, halves = _Memory(), stored.halves and rows > MOST_ROWS
    stream, queries, keys, inner, gated, *_ = widths
    wide = _HALF if halves else _F32
    for inputs, itemsize, segments, result in (
        (stream, _F32, (queries, keys, keys), wide),
        (queries, wide, (stream,), _F32),
        (stream, _F32, (inner, inner) if gated else (inner,), _F32),
        (inner, _F32, (stream,), _F32),
    ):
        given = memory.take(rows * inputs, itemsize)
        rounded = memory.take(rows * inputs if halves and itemsize == _F32 else 0, _HALF)
        part = memory.take(round(rows * sum(segments) * share), result)
        memory.pass_by(stored.made(rows, round(sum(segments) * share), inputs))
        memory.drop(rounded)
        # Pieces of several segments are copied to go home; those of the wide gate and up find room in what was dropped.
        several = [rows * columns for columns in segments] if len(segments) == 3 else []
        sent = [memory.take(round(elements * share), result) for elements in several]
        memory.drop(part, given, *sent)
    return memory.nbytes
