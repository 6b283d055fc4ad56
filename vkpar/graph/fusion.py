"""Fused sums: a kernel whose results a collective sends next fills the slot itself.

In place of the kernel and of the step that encodes what it stored runs a variant of the kernel. Its results are bit for
bit the same: the work-group that stores the last elements of a block encodes the block as the step does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.graph.protocol import Step
from vkpar.graph.stretches import Item
from vkpar.vulkan import api
from vkpar.vulkan.capturing import Operation
from vkpar.vulkan.physical import ALIGNMENT
from vkpar.vulkan.pipelines.kernel import Pipeline
from vkpar.vulkan.tape import Sending

_VARIANTS: Final = {"matvec_columns": "matvec_send_columns", "matvec_rows": "matvec_send_rows"}
_BLOCK: Final = 256  # elements that share a scale on the wire
_WORD: Final = 4
# Of the matrix kernels' push constants and specialization constants, see shaders/common/matmul.glsl.
_M, _N, _O_FIRST, _O_ROW = 0, 1, 5, 8
_PUSH_WORDS: Final = 10
_O_TYPE: Final = 2
_RESULT: Final = 2  # the binding


class Fused(NamedTuple):
    """An operation that sends its results, and the step that would have.

    Attributes:
        operation: the variant; ``step``: the step, whose release follows.
    """

    operation: Operation
    step: Step


class _Maker(NamedTuple):
    """An operation that has a variant: its place among the items, and where its results begin."""

    place: int
    operation: Operation
    start: tuple[int, int]
    nelements: int


def fuse(items: Sequence[Item], devices: Sequence[Device]) -> tuple[list[Item], list[Array]]:
    """Put the variants in place of kernels whose results are sent next.

    Args:
        items: of a graph, in one global order.
        devices: by rank.

    Returns:
        the items, and the memory that the variants need beside that of the operations.
    """
    made: list[Item | None] = list(items)
    latest: dict[int, _Maker | None] = {}  # by rank: the operation that nothing of the rank's has followed
    counters = _Counters(devices)
    for index, item in enumerate(items):
        content = item.content
        if isinstance(content, Operation):
            latest[item.rank] = _maker(index, content)
            continue
        maker, latest[item.rank] = latest.get(item.rank), None
        sending: Sending | None = content.sending
        if maker is None or sending is None or not _suits(maker, sending):
            continue
        operation = _variant(maker.operation, sending, devices[item.rank], counters.take(item.rank, maker.nelements))
        made[maker.place] = None
        made[index] = item._replace(content=Fused(operation, content))
    return [item for item in made if item is not None], counters.arrays


class _Counters:
    """Words in which kernels count what they have stored: zero at first, and again when they are done."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices
        self.arrays: list[Array] = []

    def take(self, rank: int, count: int) -> Array:
        """Return a word for each block of ``count`` elements."""
        self.arrays.append(self._devices[rank].zeros(-(-count // _BLOCK), "uint32"))
        return self.arrays[-1]


def _maker(index: int, operation: Operation) -> _Maker | None:
    """Return an operation as one that has a variant; None where it has none."""
    kernel = operation.pins[-1]
    if not isinstance(kernel, Pipeline) or kernel.name not in _VARIANTS or kernel.constants[_O_TYPE] != 0:
        return None
    plan, addresses, push = operation.arguments
    words = struct.unpack(f"={_PUSH_WORDS}I", _push(plan, push))
    buffer, at = struct.unpack_from("=2Q", addresses, 16 * _RESULT)
    first = at - plan.binding[_RESULT].back + _WORD * words[_O_FIRST]
    if words[_O_ROW] != words[_N] or words[_O_FIRST] % 4:
        return None
    return _Maker(index, operation, (buffer, first), words[_M] * words[_N])


def _push(plan: Any, push: Any) -> bytes:
    return push if isinstance(push, bytes) else bytes(plan.push[0 : plan.push_nbytes])


def _suits(maker: _Maker, sending: Sending) -> bool:
    buffer, at = sending.source
    return (api.load().address(buffer), at) == maker.start and sending.sent.nelements == maker.nelements


def _variant(operation: Operation, sending: Sending, device: Device, counters: Array) -> Operation:
    logical, sent, address = device.logical, sending.sent, api.load().address
    plan, addresses, push = operation.arguments
    kernel = operation.pins[-1]
    assert isinstance(kernel, Pipeline), "it has a variant"
    words = struct.unpack(f"={_PUSH_WORDS}I", _push(plan, push))
    buffer, at = sending.target
    begin = at // ALIGNMENT * ALIGNMENT
    target_at = (at - begin) // _WORD
    bound = [(plan.binding[index].nbytes, plan.binding[index].back) for index in range(plan.bindings)]
    bound += [(-(-(target_at + sent.nelements) // 4) * 16, 0), (sent.slots.nbytes, 0), (counters.nbytes, 0)]
    rows = [(address(buffer), begin), (address(sent.slots.buffer), sent.slots.offset)]
    rows.append((counters.storage.number, counters.storage.base))
    more = struct.pack("=6Q", *(number for row in rows for number in row))
    values = (*words, words[_O_FIRST], target_at, sent.tail, sent.out_slot, sent.nelements)
    packed = struct.pack(f"={len(values)}I", *values)
    pipeline = logical.pipelines.shipped(
        f"{_VARIANTS[kernel.name]}_{sent.wire}",
        len(bound),
        len(packed),
        kernel.constants,
        pushes=logical.pushes(len(bound)),
    )
    made = logical.stream.plan(f"{operation.name}, sent", pipeline, bound, tuple(plan.groups), packed)
    pins = (*operation.pins, counters, pipeline)
    return Operation(f"{operation.name}, sent", operation.record, (made, addresses + more, logical.stream.null), pins)
