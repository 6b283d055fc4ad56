"""How reductions run: on GPUs in one dispatch where they can, else in passes.

In one dispatch each work-group makes a part of a result and stores it, and the group that is the last of the result's,
which a counter tells, folds all parts in their order. So bits do not depend on which group that is. Passes add in
another order: a sum over several buffers may differ in its last bits from one of the same shape in one buffer.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.ops.call import kept
from vkpar.ops.call.call import Call
from vkpar.ops.call.windows import writable_in_place
from vkpar.ops.call.work import ceil_power, floor_power, most_invocations
from vkpar.ops.reduce import cpu, passes
from vkpar.ops.reduce.passes import Piece, Problem, Reduction, between, kernel_of, told
from vkpar.ops.tiles.occupancy import units_of

_GROUP: Final = 256  # invocations of a group; the kernel of columns has room for so many
_GROUPS: Final = {True: 2, False: 1}  # for each compute unit, at least: of parts of rows, and of columns
_FOURS: Final = 4  # that an invocation reads at once
_MOST_TURNS: Final = 32  # of four fours of an invocation
_MOST_PARTS: Final = {True: 4096, False: 512}  # of a result, which one group folds
_MOST_COUNTERS: Final = 1 << 20


class Shape(NamedTuple):
    """How a reduction is spread over work-groups.

    Attributes:
        group: invocations of a group; ``lanes`` of them share a result, ``strips`` of groups have all columns.
        part: elements of a result that a group reduces, of which there are ``parts``.
    """

    group: int
    lanes: int
    strips: int
    part: int
    parts: int


def shape_of(device: Device, blocks: int, extent: int, columns: int) -> Shape | None:
    """Return how (blocks, extent, columns) is reduced along the middle axis in one dispatch; None where it is not.

    It is where it would take several passes, on GPUs.
    """
    if cpu.passes_alone(device) or passes.first_shape(device, blocks, extent, columns)[2] >= extent:
        return None
    rows = columns == 1
    group = min(_GROUP, most_invocations(device))
    fours = -(-columns // 4)
    together = 1 if rows else min(ceil_power(fours), group // 8)
    lanes, strips = group // together, -(-fours // together)
    turn = lanes * _FOURS * (4 if rows else 1)
    wanted = blocks * strips * extent // (_GROUPS[rows] * units_of(device.info))
    part = min(max(floor_power(max(wanted, 1)), turn), turn * _MOST_TURNS)
    parts = -(-extent // part)
    if parts > _MOST_PARTS[rows] or blocks * strips > _MOST_COUNTERS:
        return None
    return Shape(group, lanes, strips, part, parts)


def reduce(call: Call, kind: Reduction, a: Array, groups: list[tuple[int, bool]], out: Array) -> None:
    """Reduce ``a`` into ``out``, which begins where kernels can write it.

    Args:
        call: that it is a part of; a mean is that of its operand.
        kind: what it does.
        a: with elements.
        groups: the sizes of its axes, neighbours of one kind as one, and which are reduced; one at most of a place.
        out: the results in the order of the axes that are kept.
    """
    source, left = a, list(groups)
    while True:
        at = max((index for index, (_, reduced) in enumerate(left) if reduced), default=None)
        if at is None:  # nothing to reduce: a row an element
            at, left = len(left), [*left, (1, True)]
        blocks, columns = (math.prod(size for size, _ in some) for some in (left[:at], left[at + 1 :]))
        extent = left.pop(at)[0]
        last = not any(reduced for _, reduced in left)
        target = out if last else call.temporary((blocks, columns), between(kind, source.dtype))
        divisor = float(call.operands[0].size // out.size) if last and kind.mean else 0.0
        fold(call, kind, source, target, (blocks, extent, columns), dtype=a.dtype, divisor=divisor)
        if last:
            return
        source = target


def fold(
    call: Call,
    kind: Reduction,
    source: Array,
    target: Array,
    shape: tuple[int, int, int],
    *,
    dtype: DType | None = None,
    divisor: float = 0.0,
    steps: tuple[int, int] | None = None,
) -> None:
    """Reduce along the middle axis of ``shape``; arguments as for :func:`vkpar.ops.reduce.passes.fold`."""
    found = shape_of(call.device, *shape)
    whole = target.reach() == target.size and (steps is not None or source.reach() == source.size)
    if found is None or not whole or not _writes_apart(target, shape):
        passes.fold(call, kind, source, target, shape, dtype=dtype, divisor=divisor, steps=steps)
        return
    spread = (found.group, found.lanes, found.part)
    problem = Problem(kind, dtype or source.dtype, source, target, *shape, False, divisor, True, *spread, steps)
    _at_once(call, problem, found.strips)


def _writes_apart(target: Array, shape: tuple[int, int, int]) -> bool:
    """Say whether no two groups write to one word."""
    blocks, _, columns = shape
    if target.dtype.itemsize == 4:
        return True
    return writable_in_place(target) and (blocks == 1 or (columns > 1 and columns % 2 == 0))


def _at_once(call: Call, p: Problem, strips: int) -> None:
    """Reduce in one dispatch, ``strips`` of groups having all columns."""
    blocks = p.blocks
    width = (1 if p.columns == 1 else 4 * -(-p.columns // 4)) * (2 if p.kind.family == "place" else 1)
    words = blocks * p.parts * width
    parts = kept.parts(call, words)
    counters = call.table(kept.counters(call.device, blocks * strips))
    range_a, a_first = p.source.window(0, p.source.size)
    range_o, o_first = p.target.window(0, p.target.size)
    steps = p.steps or (p.extent * p.columns, p.columns)
    constants, push, _ = told(p, Piece(0, blocks, 0, p.parts, 0, p.columns), p.extent, (a_first, o_first), steps)
    kernel = kernel_of(p.kind, p.source.dtype, p.target.dtype, p.columns, "_once")
    ranges = (range_a, range_o, parts.window(0, words)[0], counters.window()[0])
    call.dispatch(kernel, (p.source, p.target, parts, counters), ranges, push, blocks * strips * p.parts, constants)
