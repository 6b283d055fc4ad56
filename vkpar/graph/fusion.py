"""Fused sums: kernels of operations do what steps of collectives would, and the other way round.

Where a collective sends next what a kernel has made, a variant of the kernel fills the slot itself: the work-group that
stores the last elements of a block encodes the block as the step does. Where a sum is added to something next, or goes
with a residual into an RMS norm, the step does that. All results stay bit for bit the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.graph.protocol import Step
from vkpar.graph.stretches import Item
from vkpar.ops.quantized.weights import KINDS
from vkpar.ops.tiles import matvec
from vkpar.vulkan import api
from vkpar.vulkan.capturing import Operation
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.pipelines.kernel import Pipeline
from vkpar.vulkan.pump.ledger import PLACES, READS
from vkpar.vulkan.stream import Binding
from vkpar.vulkan.tape import Sending, Storing

_SENDING: Final = (
    {f"matvec_{kind}": f"matvec_send_{kind}" for kind in matvec.KINDS}
    | {f"quantized_dots_{kind}": f"quantized_dots_send_{kind}" for kind in KINDS}
    | {
        f"quantized_matvec_{kind}_rows1_{how}": f"quantized_matvec_send_{kind}_rows1_{how}"
        for kind in KINDS
        for how in ("alone", "subgroups")
    }
)
_SHARED: Final = 33 << 10  # bytes that a work-group of the large kernel's variant shares
_ADD: Final = "add_f32_f32"
_NORM: Final = "norm_residual_f32_kept"
_BLOCK: Final = 256  # elements that share a scale on the wire
_WORD: Final = 4
# Of the matrix kernels' push constants and specialization constants, see shaders/common/matmul.glsl.
_M, _N, _O_FIRST, _O_ROW = 0, 1, 5, 8
_O_TYPE: Final = 2
_RESULT: Final = 2  # the binding
_A, _B = 0, 1  # the bindings of the operands
_BIAS: Final = 3  # of the specialization constants of shaders/add.comp: the second operand is repeated
# Of the norms' push constants, specialization constants and bindings, see shaders/common/rows.glsl and norm.glsl.
_ROWS, _EXTENT, _X_FIRST, _Y_FIRST, _W_FIRST, _B_FIRST, _H_FIRST, _OWN_WORDS = 0, 1, 3, 4, 5, 6, 7, 9
_Y_FULL, _WEIGHTED, _B_TYPE, _H_TYPE, _H_FULL = 4, 6, 10, 12, 13
_NORM_X, _NORM_W, _NORM_B, _NORM_Y, _NORM_H = range(5)
# Of the wire kernels' push constants and specialization constants, see shaders/common/reduce.glsl.
_TARGET_AT, _TAIL, _FACTOR = 3, 4, 6
_SOURCES, _AVERAGE, _OWN_AT = 0, 5, 8
_TARGET, _ARRIVED = 1, 2  # the bindings

_Place = tuple[int, int]  # a VkBuffer as a number, and a byte in it


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
            fused = _added(last.content, item.content, device) or _normed(last.content, item.content, device)
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
    places: tuple[_Place, ...]

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

    def element(self, binding: int, index: int) -> _Place:
        """Return where element ``index`` of a binding of 32-bit elements lies."""
        buffer, begin = self.places[binding]
        return buffer, begin + _WORD * index

    def bound(self, binding: int) -> tuple[_Place, int]:
        """Return where a binding begins, and its bytes."""
        return self.places[binding], self.plan.binding[binding].nbytes

    def meets(self, binding: int, place: _Place, nbytes: int) -> bool:
        """Say whether what a binding covers has any of ``nbytes`` bytes from ``place`` on."""
        return _meet(self.bound(binding), (place, nbytes))


def _sent(content: object, step: Step, device: Device, counters: _Counters) -> Fused | None:
    """Return a variant of an operation that does what the step after it would; None where there is none."""
    call, sending = _Call.of(content), step.kernels
    if call is None or not isinstance(sending, Sending) or call.kernel.name not in _SENDING:
        return None
    if call.kernel.name == matvec.LARGE and device.limits.max_shared_memory < _SHARED:
        return None
    words, sent, address = call.words, sending.sent, api.load().address
    where = (address(sending.source[0]), sending.source[1])
    if call.kernel.constants[_O_TYPE] or words[_O_ROW] != words[_N] or words[_O_FIRST] % 4:
        return None
    if call.element(_RESULT, words[_O_FIRST]) != where or words[_M] * words[_N] != sent.nelements:
        return None
    buffer, at = sending.target
    kept = (address(buffer), at)
    # Groups keep what is sent while others still read the operands.
    operands = [binding for binding in range(len(call.places)) if binding != _RESULT]
    if kept != where and any(call.meets(binding, kept, _WORD * sent.nelements) for binding in operands):
        return None
    begin = at // ALIGNMENT * ALIGNMENT
    target_at = (at - begin) // _WORD
    stored = counters.take(device, sent.nelements)
    bindings = [
        *(call.bound(binding) for binding in range(len(call.places))),
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
    addend = _B if places[_A] == sums else _A
    if any(_meet((places[binding], _WORD * count), (sums, _WORD * count)) for binding in (addend, _RESULT)):
        return None
    bindings = [*_bound(storing), call.bound(addend), call.bound(_RESULT)]
    more, pins = (firsts[addend], firsts[_RESULT]), _pins(content)
    operations = []
    for part, push, groups in storing.stored.launches:
        name = f"wire_gather_{storing.stored.wire}_{part}"
        words = (*struct.unpack(f"={len(push) // 4}I", push), *more)
        operations.append(
            _operation("sum, added", device, name, storing.stored.constants, bindings, words, groups, pins)
        )
    return Fused(tuple(operations), step)


def _normed(step: Step, content: object, device: Device) -> Fused | None:
    """Return an operation that does what a step and the norm after it would; None where there is none."""
    call, storing = _Call.of(content), step.kernels
    if call is None or not isinstance(storing, Storing) or call.kernel.name != _NORM:
        return None
    words, constants = call.words, call.kernel.constants
    count, extent = words[_ROWS] * words[_EXTENT], words[_EXTENT]
    if any(constants[index] for index in (_Y_FULL, _B_TYPE, _H_TYPE, _H_FULL)) or (extent % 4 and words[_ROWS] > 1):
        return None
    sums = (api.load().address(storing.target[0]), storing.target[1])
    if count != storing.stored.nelements or call.element(_NORM_X, words[_X_FIRST]) != sums:
        return None
    whole = (sums, _WORD * count)
    others = ((_NORM_B, words[_B_FIRST]), (_NORM_Y, words[_Y_FIRST]), (_NORM_H, words[_H_FIRST]))
    if any(_meet((call.element(binding, first), _WORD * count), whole) for binding, first in others):
        return None
    if constants[_WEIGHTED] and call.meets(_NORM_W, *whole):
        return None
    stored = storing.stored
    sent = struct.unpack(f"={len(stored.launches[0][1]) // 4}I", stored.launches[0][1])
    push = [*words[:_OWN_WORDS], sent[_TAIL], *sent[_FACTOR:]]
    push[_X_FIRST] = sent[_TARGET_AT]
    own = (*constants, *(stored.constants[index] for index in (_SOURCES, _AVERAGE, _OWN_AT)))
    gathered, others_bound = _bound(storing), [call.bound(binding) for binding in range(_NORM_W, _NORM_H + 1)]
    bindings = [gathered[_TARGET], *others_bound, gathered[_ARRIVED]]
    name, groups = f"norm_gather_{stored.wire}", tuple(call.plan.groups)
    made = _operation("sum, normed", device, name, own, bindings, push, groups, _pins(content))
    return Fused((made,), step)


def _bound(storing: Storing) -> list[tuple[_Place, int]]:
    """Return what the kernels of a sum bind."""
    address = api.load().address
    return [((address(buffer), at), nbytes) for buffer, at, nbytes in storing.bindings]


def _meet(a: tuple[_Place, int], b: tuple[_Place, int]) -> bool:
    """Say whether two pieces of memory, given as places and bytes, have a byte in common."""
    (buffer, at), nbytes = a
    (other, begin), size = b
    return buffer == other and at < begin + size and begin < at + nbytes


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
    plan = logical.stream.plan(
        what,
        pipeline,
        [
            Binding.of(nbytes, PLACES if n not in pipeline.read_only else READS)
            for n, (_, nbytes) in enumerate(bindings)
        ],
        groups,
        push,
    )
    addresses = struct.pack(f"={2 * len(bindings)}Q", *(number for place, _ in bindings for number in place))
    return logical.stream.operation(what, plan, addresses, (*pins, pipeline))
