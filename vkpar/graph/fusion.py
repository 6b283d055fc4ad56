"""Fused sums: kernels of operations do what steps of collectives would, and the other way round.

Where a collective sends next what a kernel has made, a variant of the kernel fills the slot itself: the work-group that
stores the last elements of a block encodes the block as the step does. Where a sum is added to something next, the step
does that. All results stay bit for bit the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.graph.protocol import Step
from vkpar.graph.stretches import Item
from vkpar.ops import matvec
from vkpar.vulkan import api
from vkpar.vulkan.capturing import Operation
from vkpar.vulkan.physical import ALIGNMENT
from vkpar.vulkan.pipelines.kernel import Pipeline
from vkpar.vulkan.tape import Sending, Storing

_SENDING: Final = {f"matvec_{kind}": f"matvec_send_{kind}" for kind in matvec.KINDS}
_LARGE: Final = "matvec_rows1024"
_SHARED: Final = 33 << 10  # bytes that a work-group of its variant shares
_ADD: Final = "add_f32_f32"
_BLOCK: Final = 256  # elements that share a scale on the wire
_WORD: Final = 4
# Of the matrix kernels' push constants and specialization constants, see shaders/common/matmul.glsl.
_M, _N, _O_FIRST, _O_ROW = 0, 1, 5, 8
_O_TYPE: Final = 2
_RESULT: Final = 2  # the binding
_BIAS: Final = 3  # of the specialization constants of shaders/add.comp: the second operand is repeated


class Fused(NamedTuple):
    """Operations that do what a step would.

    Attributes:
        operations: they run in place of the step's kernels.
        step: the step.
    """

    operations: tuple[Operation, ...]
    step: Step


def fuse(items: Sequence[Item], devices: Sequence[Device]) -> tuple[list[Item], list[Array]]:
    """Put variants in place of kernels whose results are sent next, and of sums that are added to something next.

    Args:
        items: of a graph, in one global order.
        devices: by rank.

    Returns:
        the items, and the memory that the variants need beside that of the operations.
    """
    made: list[Item | None] = list(items)
    latest: dict[int, int] = {}  # by rank: its item before this one
    counters = _Counters()
    for index, item in enumerate(items):
        before = latest.get(item.rank)
        latest[item.rank] = index
        last = None if before is None else made[before]
        if last is None or before is None:
            continue
        device, fused = devices[item.rank], None
        if isinstance(item.content, Step):
            fused = _sent(last.content, item.content, device, counters)
        elif isinstance(last.content, Step):
            fused = _added(last.content, item.content, device)
        if fused is not None:
            kept = item if isinstance(item.content, Step) else last
            made[before], made[index] = None, None
            made[index if kept is item else before] = kept._replace(content=fused)
    return [item for item in made if item is not None], counters.arrays


class _Counters:
    """Words in which kernels count what they have stored: zero at first, and again when they are done."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def take(self, device: Device, nelements: int) -> Array:
        """Return a word for each block of so many elements."""
        self.arrays.append(device.zeros(-(-nelements // _BLOCK), "uint32"))
        return self.arrays[-1]


class _Call(NamedTuple):
    """An operation's one dispatch of a built-in kernel.

    Attributes:
        kernel: the kernel.
        plan: the dispatch.
        words: its push constants.
        places: of each binding the VkBuffer as a number, and the byte in it where the binding begins.
    """

    kernel: Pipeline
    plan: Any
    words: tuple[int, ...]
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, content: object) -> _Call | None:
        """Return what an item does as a dispatch; None where it is none of a built-in kernel."""
        kernel = content.pins[-1] if isinstance(content, Operation) else None
        if not isinstance(content, Operation) or not isinstance(kernel, Pipeline) or not kernel.name:
            return None
        plan, addresses, push = content.arguments
        packed = push if isinstance(push, bytes) else bytes(plan.push[0 : plan.push_nbytes])
        flat = struct.unpack_from(f"={2 * plan.bindings}Q", addresses)
        places = tuple((flat[2 * i], flat[2 * i + 1] - plan.binding[i].back) for i in range(plan.bindings))
        return cls(kernel, plan, struct.unpack(f"={len(packed) // 4}I", packed), places)

    def element(self, binding: int, index: int) -> tuple[int, int]:
        """Return where element ``index`` of a binding of 32-bit elements lies."""
        buffer, begin = self.places[binding]
        return buffer, begin + _WORD * index


def _sent(content: object, step: Step, device: Device, counters: _Counters) -> Fused | None:
    """Return a variant of an operation that does what the step after it would; None where there is none."""
    call, sending = _Call.of(content), step.kernels
    if call is None or not isinstance(sending, Sending) or call.kernel.name not in _SENDING:
        return None
    if call.kernel.name == _LARGE and device.limits.max_shared_memory < _SHARED:
        return None
    words, sent, address = call.words, sending.sent, api.load().address
    where = (address(sending.source[0]), sending.source[1])
    if call.kernel.constants[_O_TYPE] or words[_O_ROW] != words[_N] or words[_O_FIRST] % 4:
        return None
    if call.element(_RESULT, words[_O_FIRST]) != where or words[_M] * words[_N] != sent.nelements:
        return None
    buffer, at = sending.target
    begin = at // ALIGNMENT * ALIGNMENT
    target_at = (at - begin) // _WORD
    stored = counters.take(device, sent.nelements)
    bindings = [
        *((place, call.plan.binding[index].nbytes) for index, place in enumerate(call.places)),
        ((address(buffer), begin), -(-(target_at + sent.nelements) // 4) * 16),
        ((address(sent.slots.buffer), sent.slots.offset), sent.slots.nbytes),
        ((stored.storage.number, stored.storage.base), stored.nbytes),
    ]
    push = (*words, words[_O_FIRST], target_at, sent.tail, sent.out_slot, sent.nelements)
    name = f"{_SENDING[call.kernel.name]}_{sent.wire}"
    pins = (*_pins(content), stored)
    made = _operation(
        "product, sent", device, name, call.kernel.constants, bindings, push, tuple(call.plan.groups), pins
    )
    return Fused((made,), step)


def _added(step: Step, content: object, device: Device) -> Fused | None:
    """Return operations that do what a step and the addition after it would; None where there are none."""
    call, storing = _Call.of(content), step.kernels
    if call is None or not isinstance(storing, Storing) or call.kernel.name != _ADD or call.kernel.constants[_BIAS]:
        return None
    count, *firsts = call.words[:4]
    sums = (api.load().address(storing.target[0]), storing.target[1])
    places = [call.element(binding, first) for binding, first in enumerate(firsts)]
    if count != storing.stored.nelements or any(first % 4 for first in firsts) or sums not in places[:2]:
        return None
    addend = 1 if places[0] == sums else 0
    if _meet(places[2], sums, _WORD * count) or places[addend] == sums:
        return None
    address = api.load().address
    bindings = [((address(buffer), at), nbytes) for buffer, at, nbytes in storing.bindings]
    bindings += [(call.places[index], call.plan.binding[index].nbytes) for index in (addend, 2)]
    more, pins = (firsts[addend], firsts[2]), _pins(content)
    operations = []
    for part, push, groups in storing.stored.launches:
        name = f"wire_gather_{storing.stored.wire}_{part}"
        words = (*struct.unpack(f"={len(push) // 4}I", push), *more)
        operations.append(
            _operation("sum, added", device, name, storing.stored.constants, bindings, words, groups, pins)
        )
    return Fused(tuple(operations), step)


def _meet(a: tuple[int, int], b: tuple[int, int], nbytes: int) -> bool:
    return a[0] == b[0] and abs(a[1] - b[1]) < nbytes


def _pins(content: object) -> tuple[object, ...]:
    assert isinstance(content, Operation), "it was looked at"
    return tuple(content.pins)


def _operation(
    what: str,
    device: Device,
    kernel: str,
    constants: tuple[int, ...],
    bindings: Sequence[tuple[tuple[int, int], int]],
    words: Sequence[int],
    groups: tuple[int, int, int],
    pins: Sequence[object],
) -> Operation:
    """Return the dispatch of a built-in kernel; ``bindings`` are places and bytes."""
    logical = device.logical
    push = struct.pack(f"={len(words)}I", *words)
    pushes = logical.pushes(len(bindings))
    pipeline = logical.pipelines.shipped(kernel, len(bindings), len(push), constants, pushes=pushes)
    plan = logical.stream.plan(what, pipeline, [(nbytes, 0) for _, nbytes in bindings], groups, push)
    addresses = struct.pack(f"={2 * len(bindings)}Q", *(number for place, _ in bindings for number in place))
    return logical.stream.operation(what, plan, addresses, (*pins, pipeline))
