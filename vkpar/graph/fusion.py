"""Fused sums: kernels of operations do what steps of collectives would, and the other way round.

Where a collective sends next what a kernel has made, a variant of the kernel fills the slot itself: the work-group that
stores the last elements of a block encodes the block as the step does. Where a sum is added to something next, or goes
with a residual into an RMS norm, the step does that. All results stay bit for bit the same.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from vkpar.abi import matmul, rows, wire
from vkpar.abi.elementwise import Add, AddConstants
from vkpar.abi.words import pack, read, section
from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.graph import protocol
from vkpar.graph.protocol import Flags, Step, WireSend, WireStore
from vkpar.graph.stretches import Item
from vkpar.ops.quantized.kinds import MODULES
from vkpar.ops.tiles import matvec
from vkpar.vulkan import api
from vkpar.vulkan.capturing import Operation
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.pipelines.kernel import Pipeline
from vkpar.vulkan.pump.ledger import PLACES, READS
from vkpar.vulkan.stream import Binding
from vkpar.vulkan.tape import Noted

_SENDING: Final = (
    {f"matvec_{kind}": f"matvec_send_{kind}" for kind in matvec.KINDS}
    | {f"quantized_dots_{kind}": f"quantized_dots_send_{kind}" for kind in MODULES}
    | {
        f"quantized_matvec_{kind}_rows1_{how}": f"quantized_matvec_send_{kind}_rows1_{how}"
        for kind in MODULES
        for how in ("alone", "subgroups")
    }
    | {f"expert_few{kind}": f"expert_few_send{kind}" for kind in ("", *(f"_quantized_{kind}" for kind in MODULES))}
)
_SHARED: Final = 33 << 10  # bytes that a work-group of the large kernel's variant shares
_ADD: Final = "add_f32_f32"
_NORM: Final = "norm_residual_f32_kept"
_BLOCK: Final = 256  # elements that share a scale on the wire
_WORD: Final = 4
# Bindings: of products and the addition, of norms, of the wire kernels.
_A, _B, _RESULT = 0, 1, 2
_NORM_X, _NORM_W, _NORM_B, _NORM_Y, _NORM_H = range(5)
_TARGET, _ARRIVED = 1, 2

_Place = tuple[int, int]  # a VkBuffer as a number, and a byte in it


class Fused(NamedTuple):
    """Operations that do what a step would.

    Attributes:
        operations: they run in place of the step's kernels.
        step: the step.
        flags: those of the step, but for what the operations wait for or raise themselves.
    """

    operations: tuple[Operation, ...]
    step: Step
    flags: Flags | None


def fuse(items: Sequence[Item], devices: Sequence[Device]) -> tuple[list[Item], list[Array]]:
    """Put variants in place of kernels whose results are sent next, and of sums that are added to something next.

    Returns:
        the items, and the memory that the variants need beside that of the operations.
    """
    made: list[Item | None] = list(items)
    latest: dict[int, int] = {}  # by rank: its item before this one
    counters = _Counters()
    for index, item in enumerate(items):
        if item.alone:  # what crosses between processes is on queues of its own
            continue
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
            made[index if kept is item else before] = kept._replace(content=fused, what=f"{last.what} + {item.what}")
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
        push: its push constants.
        places: of each binding the VkBuffer as a number, and the byte in it where the binding begins.
    """

    kernel: Pipeline
    plan: Any
    push: bytes
    places: tuple[_Place, ...]

    @classmethod
    def of(cls, content: object) -> _Call | None:
        """Return what an item does as a dispatch; None where it is none of a built-in kernel."""
        kernel = content.pins[-1] if isinstance(content, Operation) else None
        if not isinstance(content, Operation) or not isinstance(kernel, Pipeline) or not kernel.name:
            return None
        plan, addresses, push = content.arguments
        packed = push if isinstance(push, bytes) else bytes(api.load().ffi.buffer(plan.push, plan.push_nbytes))
        flat = struct.unpack_from(f"={2 * plan.bindings}Q", addresses)
        places = tuple((flat[2 * i], flat[2 * i + 1] - plan.binding[i].back) for i in range(plan.bindings))
        return cls(kernel, plan, packed, places)

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
    call, noted = _Call.of(content), step.kernels
    sent = noted.what if noted is not None else None
    if call is None or noted is None or not isinstance(sent, WireSend) or call.kernel.name not in _SENDING:
        return None
    if call.kernel.name == matvec.LARGE and device.limits.max_shared_memory < _SHARED:
        return None
    words, address = read(matmul.Product, call.push), api.load().address
    (source, begins, _), (buffer, at, _) = noted.places
    where, kept = (address(source), begins), (address(buffer), at)
    if section(matmul.Operands, call.kernel.constants).o_type or words.o_row != words.n or words.o_first % 4:
        return None
    if call.element(_RESULT, words.o_first) != where or words.m * words.n != sent.nelements:
        return None
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
    push = call.push + pack(matmul.Send(words.o_first, target_at, sent.tail, sent.out_slot, sent.nelements))
    name = f"{_SENDING[call.kernel.name]}_{sent.wire}"
    pins = (*_pins(content), stored)
    made = _operation(
        "product, sent", device, name, call.kernel.constants, bindings, push, tuple(call.plan.groups), pins
    )
    return Fused((made,), step, step.flags)


def _added(step: Step, content: object, device: Device) -> Fused | None:
    """Return operations that do what a step and the addition after it would; None where there are none."""
    call, noted = _Call.of(content), step.kernels
    stored = noted.what if noted is not None else None
    if call is None or noted is None or not isinstance(stored, WireStore) or call.kernel.name != _ADD:
        return None
    if section(AddConstants, call.kernel.constants).bias:
        return None
    count, *firsts, _, _ = read(Add, call.push)
    sums = _target(noted)
    places = [call.element(binding, first) for binding, first in enumerate(firsts)]
    if count != stored.nelements or any(first % 4 for first in firsts) or sums not in places[:2]:
        return None
    addend = _B if places[_A] == sums else _A
    if any(_meet((places[binding], _WORD * count), (sums, _WORD * count)) for binding in (addend, _RESULT)):
        return None
    bindings = [*_bound(noted), call.bound(addend), call.bound(_RESULT)]
    more, pins = wire.Adds(firsts[addend], firsts[_RESULT]), _pins(content)
    operations = []
    for part, words, groups in stored.launches:
        name = f"wire_gather_{stored.wire}_{part}"
        push = pack(words, more)
        operations.append(_operation("sum, added", device, name, stored.constants, bindings, push, groups, pins))
    return Fused(tuple(operations), step, step.flags)


def _normed(step: Step, content: object, device: Device) -> Fused | None:
    """Return an operation that does what a step and the norm after it would; None where there is none."""
    call, noted = _Call.of(content), step.kernels
    stored = noted.what if noted is not None else None
    if call is None or noted is None or not isinstance(stored, WireStore) or call.kernel.name != _NORM:
        return None
    words, constants = read(rows.Rows, call.push), call.kernel.constants
    own, norm = section(rows.RowsConstants, constants), section(rows.NormConstants, constants, rows.RowsConstants)
    count = words.rows * words.extent
    if own.y_full or norm.b_type or norm.h_type or norm.h_full or (words.extent % 4 and words.rows > 1):
        return None
    sums = _target(noted)
    if count != stored.nelements or call.element(_NORM_X, words.x_first) != sums:
        return None
    whole = (sums, _WORD * count)
    others = ((_NORM_B, words.b_first), (_NORM_Y, words.y_first), (_NORM_H, words.h_first))
    if any(_meet((call.element(binding, first), _WORD * count), whole) for binding, first in others):
        return None
    if norm.weighted and call.meets(_NORM_W, *whole):
        return None
    summed = stored.launches[0][1]
    groups, flags = tuple(call.plan.groups), step.flags
    awaits = flags.word(flags.waits) if flags is not None and math.prod(groups) <= protocol.MOST_WAITING else 0
    told = rows.Gathers(summed.tail, summed.factor, summed.slots, awaits)
    push = pack(words._replace(x_first=summed.target_at), told)
    gathers = rows.GathersConstants(stored.constants.sources, stored.constants.average, stored.constants.own_at)
    gathered, others_bound = _bound(noted), [call.bound(binding) for binding in range(_NORM_W, _NORM_H + 1)]
    bindings = [gathered[_TARGET], *others_bound, gathered[_ARRIVED]]
    name = f"norm_gather_{stored.wire}"
    made = _operation("sum, normed", device, name, (*constants, *gathers), bindings, push, groups, _pins(content))
    return Fused((made,), step, flags._replace(waits={}) if flags is not None and awaits else flags)


def _target(noted: Noted) -> _Place:
    """Return where the first element of a sum goes."""
    buffer, at, _ = noted.places[0]
    return api.load().address(buffer), at


def _bound(noted: Noted) -> list[tuple[_Place, int]]:
    """Return what the kernels of a sum bind."""
    address = api.load().address
    return [((address(buffer), at), nbytes) for buffer, at, nbytes in noted.places[1:]]


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
    push: bytes,
    groups: tuple[int, int, int],
    pins: Sequence[object],
) -> Operation:
    """Return the dispatch of a built-in kernel; ``bindings`` are places and bytes."""
    logical = device.logical
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
