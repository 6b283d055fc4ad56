"""How a reduction becomes dispatches: passes over parts of fixed lengths, each pass in pieces that one binding holds.

A pass reduces (blocks, extent, columns) along its middle axis, in parts of the extent, of which the next pass reduces
the results. Parts and the trees of terms inside them depend on the shape and the device alone, so that a sum has the
same bits each time; ``vkpar.testing.additions`` bounds how many additions follow each other.
:mod:`vkpar.ops.reduce.once` says where one dispatch does in place of several passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import reduce as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.ops.call.call import Call
from vkpar.ops.call.checks import SHORT
from vkpar.ops.call.windows import binding_room, window
from vkpar.ops.call.work import ceil_power, floor_power, most_invocations
from vkpar.ops.reduce import cpu

_GROUP: Final = 256  # invocations of a group of a GPU that has them
_PART: Final = 8192  # elements of a row that one unit of invocations reduces
_ONCE: Final = 32768  # elements of a row that one large work-group reduces, in place of two passes
_LARGE: Final = 1024  # its invocations
_TURNS: Final = 16  # rows of an invocation where columns are reduced
_SIGN: Final = 0x80000000
_ALL: Final = 0xFFFFFFFF


@dataclass(frozen=True)
class Reduction:
    """What a reduction does with elements.

    Attributes:
        family: the kernels' name for it: ``sum``, ``extreme`` or ``place``.
        lowest: extremes and places are those of the least element.
        mean: the sum is divided by the number of terms.
    """

    family: str
    lowest: bool = False
    mean: bool = False

    def flip(self, dtype: DType) -> int:
        """Return what turns the bits of elements into keys, whose largest wins."""
        if dtype == dtypes.int32:
            return _SIGN - 1 if self.lowest else _SIGN
        return _ALL if self.lowest else 0


@dataclass(frozen=True)
class Problem:
    """One pass: ``source`` (blocks, extent, columns) to ``target`` (blocks, parts, columns).

    Attributes:
        dtype: of the elements that are reduced, which flips their bits; the source's in the first pass.
        pairs: the source holds keys with their places.
        divisor: of a mean in its last pass, else 0.
        last: the results are final.
        steps: elements of a source in other than C order from one block to the next, and from one row, or element of a
            row, to the next; all of it lies in one binding.
    """

    kind: Reduction
    dtype: DType
    source: Array
    target: Array
    blocks: int
    extent: int
    columns: int
    pairs: bool
    divisor: float
    last: bool
    group: int
    lanes: int
    part: int
    steps: tuple[int, int] | None = None

    @property
    def parts(self) -> int:
        """Parts of a block."""
        return -(-self.extent // self.part)

    def kernel(self, *, whole: bool) -> str:
        """Return the kernel's name; ``whole``: what it reads is runs of four elements, at multiples of four."""
        same = self.kind.family == "place" or SHORT[self.source.dtype.name] == SHORT[self.target.dtype.name]
        words = whole and same and self.source.dtype.itemsize == 4 and not self.pairs
        return kernel_of(
            self.kind,
            self.source.dtype,
            self.target.dtype,
            self.columns,
            "_w64" if words and cpu.reads_pairs(self.source.device) else "",
            pairs=self.pairs,
        )


class Piece(NamedTuple):
    """What one dispatch reduces: whole blocks, or of one block parts, or of one part columns."""

    block: int
    blocks: int
    part: int
    parts: int
    column: int
    columns: int


def kernel_of(
    kind: Reduction, source: DType, target: DType, columns: int, form: str = "", *, pairs: bool = False
) -> str:
    """Return a kernel's name; ``form``: what its file's name has after rows or columns."""
    stem = f"reduce_{'rows' if columns == 1 else 'columns'}{form}_{kind.family}"
    short = "u32" if source == dtypes.uint32 and target == dtypes.float32 else SHORT[source.name]
    if kind.family == "place":
        return f"{stem}_{'pairs' if pairs else SHORT[source.name]}"
    return f"{stem}_{short}_{SHORT[target.name]}"


def shape_of(device: Device, extent: int, columns: int, *, halves: bool, blocks: int = 1) -> tuple[int, int, int]:
    """Return the invocations of a group, those of a unit, and the length of a part.

    Args:
        device: where it runs.
        extent: elements that a result has.
        columns: results that lie side by side; 1 where the elements do.
        halves: the results are 16 bits wide: a group writes two at least.
        blocks: results, or rows of them.
    """
    room, most = _room(device), most_invocations(device)
    found = cpu.shape_of(device, extent, columns, room, halves=halves, blocks=blocks)
    if found is not None:
        return found
    group = min(_GROUP, most)
    if columns == 1:
        once = _PART < extent <= _ONCE <= room and most >= _LARGE
        group, part = (_LARGE, _ONCE) if once else (group, min(_PART, floor_power(room)))
        lanes = ceil_power(-(-min(extent, part) // 16))
        return group, min(lanes, group // 2 if halves else group), part
    together = min(ceil_power(-(-columns // 4)), group // 8)
    lanes = min(group // together, ceil_power(extent))
    return group, lanes, min(lanes * _TURNS, floor_power(room // 4))


def _room(device: Device) -> int:
    """Return how many elements of a part, with their places, one binding holds in any case."""
    return binding_room(device) // 8


def between(kind: Reduction, dtype: DType) -> DType:
    """Return the type of what one pass leaves to the next."""
    if kind.family == "place":
        return dtypes.uint32
    return dtype if dtype.name in ("int32", "uint32") and not kind.mean else dtypes.float32


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
    """Reduce along the middle axis of ``shape`` (blocks, extent, columns), in as many passes as that takes.

    Args:
        call: that it is a part of.
        kind: what it does.
        source: with elements.
        target: the results, one for each block and column, which begin where kernels can write them.
        shape: of the source.
        dtype: that of the array that is reduced, where it is not the source's.
        divisor: of a mean.
        steps: as in :class:`Problem`.
    """
    blocks, extent, columns = shape
    dtype = dtype or source.dtype
    pairs = False
    while True:
        group, lanes, part = first_shape(call.device, blocks, extent, columns)
        parts = -(-extent // part)
        if parts == 1:
            break
        width = (2,) if kind.family == "place" else ()
        made = call.temporary((blocks, parts, columns, *width), between(kind, source.dtype))
        shapes = (blocks, extent, columns, pairs, 0.0, False, group, lanes, part)
        _pass(call, Problem(kind, dtype, source, made, *shapes, steps))
        source, extent, steps, pairs = made, parts, None, kind.family == "place"
    halves = target.dtype.itemsize == 2
    whole = target.reach() == target.size and (steps or source.reach() == source.size)
    direct = not halves or bool(whole and (columns == 1 or columns % 2 == 0 or blocks == 1))
    group, lanes, part = shape_of(call.device, extent, columns, halves=halves and direct, blocks=blocks)
    made = target if direct else call.temporary(target.shape, dtypes.float32)
    shapes = (blocks, extent, columns, pairs, divisor, True, group, lanes, part)
    _pass(call, Problem(kind, dtype, source, made, *shapes, steps))
    if made is not target:
        call.convert(made, target)


def first_shape(device: Device, blocks: int, extent: int, columns: int) -> tuple[int, int, int]:
    """Return what :func:`shape_of` does for the first of several passes."""
    found = cpu.straight(device, blocks, extent, columns)
    return found or shape_of(device, extent, columns, halves=False, blocks=blocks)


def fits(a: Array, blocks: int, extent: int, columns: int) -> bool:
    """Say whether one binding holds all of a source in other than C order, and one each what its passes make."""
    _, _, part = first_shape(a.device, blocks, extent, columns)
    return a.reach() == a.size and blocks * -(-extent // part) * columns <= _room(a.device)


def _pass(call: Call, problem: Problem) -> None:
    for piece in _pieces(problem):
        _dispatch(call, problem, piece)


def _pieces(p: Problem) -> Iterator[Piece]:
    """Yield the pieces of a pass: as large as bindings allow."""
    if p.steps:
        yield Piece(0, p.blocks, 0, p.parts, 0, p.columns)
        return
    width, made = 1 + p.pairs, 1 + (p.kind.family == "place" and not p.last)
    size = p.extent * p.columns
    block = 0
    while block < p.blocks:
        room = p.source.reach(block * size * width) // (size * width)
        room = min(room, p.target.reach(block * p.parts * p.columns * made) // (p.parts * p.columns * made))
        if room:
            count = min(p.blocks - block, room)
            yield Piece(block, count, 0, p.parts, 0, p.columns)
        else:
            count = 1
            yield from _parts(p, block, width, made)
        block += count


def _parts(p: Problem, block: int, width: int, made: int) -> Iterator[Piece]:
    """Yield the pieces of a block that no binding holds."""
    part, most = 0, _room(p.source.device)
    while part < p.parts:
        first = (block * p.extent + part * p.part) * p.columns
        rows = p.source.reach(first * width) // (p.columns * width)
        at = (block * p.parts + part) * p.columns
        room = p.target.reach(at * made) // (p.columns * made)
        whole = p.parts - part if rows >= p.extent - part * p.part else rows // p.part
        count = min(whole, room)
        if not count and room and p.part * p.columns <= most:
            count = 1  # its elements lie to either side of a border
        if count:
            yield Piece(block, 1, part, count, 0, p.columns)
        else:
            count = 1
            column = 0
            while column < p.columns:
                fitting = min(p.target.reach((at + column) * made) // made, most // p.part)
                columns = min(p.columns - column, fitting)
                yield Piece(block, 1, part, 1, column, columns)
                column += columns
        part += count


def _dispatch(call: Call, p: Problem, piece: Piece) -> None:
    """Reduce a piece."""
    width, made = 1 + p.pairs, 1 + (p.kind.family == "place" and not p.last)
    skipped = piece.part * p.part
    extent = p.extent if piece.parts == p.parts else min(piece.parts * p.part, p.extent - skipped)
    first = (piece.block * p.extent + skipped) * p.columns
    at = (piece.block * p.parts + piece.part) * p.columns + piece.column
    row = p.columns
    if p.steps:
        source = p.source
        range_a, a_first = window(source, 0, source.size)
    elif piece.columns == p.columns:
        source = p.source
        range_a, a_first = window(source, first * width, piece.blocks * extent * p.columns * width)
    else:
        row = piece.columns
        source = _gathered(p, first + piece.column, extent, row, width)
        range_a, a_first = source.window()
    cells = (piece.blocks * piece.parts - 1) * p.columns + piece.columns
    range_o, o_first = p.target.window(at * made, cells * made)
    a_first, o_first = a_first // width, o_first // made
    step, row = p.steps or (extent * row, row)
    units = piece.blocks * piece.parts * -(-piece.columns // 4)
    constants, push, whole = told(p, piece, extent, (a_first, o_first), (step, row), skipped)
    groups, layers, kernel = -(-units * p.lanes // p.group), 1, p.kernel(whole=whole)
    if (
        isinstance(constants, abi.ColumnsConstants)
        and "columns_w64" in kernel
        and _is_straight(p, piece, extent, step == extent * row)
    ):
        groups, layers, constants = (
            piece.columns // (4 * p.group),
            piece.blocks * piece.parts,
            constants._replace(straight=1),
        )
    call.dispatch(kernel, (source, p.target), (range_a, range_o), push, groups, constants, layers=layers)


def told(
    p: Problem, piece: Piece, extent: int, firsts: tuple[int, int], steps: tuple[int, int], skipped: int = 0
) -> tuple[abi.RowsConstants | abi.ColumnsConstants, bytes, bool]:
    """Return what a kernel is specialized by, its push constants, and whether it reads runs of four at multiples.

    Args:
        p: the pass.
        piece: of it.
        extent: elements that a block of the piece has along the axis.
        firsts: the elements of the two bindings at which source and target begin.
        steps: from one block of the source to the next, and from one row, or element of a row, to the next.
        skipped: elements of the axis before the piece.
    """
    (a_first, o_first), (step, row) = firsts, steps
    wide = a_first % 4 == 0 and (step % 4 == 0 or piece.blocks == 1)
    ends = abi.Ends(a_first, o_first, skipped, int(p.last), p.kind.flip(p.dtype), p.divisor)
    spread = (piece.parts, p.part, p.lanes)
    if p.columns == 1:
        push = pack(abi.RowsPass(piece.blocks, extent, step, *spread), ends)
        return abi.RowsConstants(p.group, wide, cpu.turns_in_a_row(p.source.device)), push, wide and extent % 4 == 0
    wide = wide and row % 4 == 0 and piece.columns % 4 == 0
    push = pack(abi.ColumnsPass(piece.blocks, extent, piece.columns, step, row, p.columns, *spread), ends)
    return abi.ColumnsConstants(p.group, wide, o_first % 4 == 0 and p.columns % 4 == 0), push, wide


def _is_straight(p: Problem, piece: Piece, extent: int, dense: bool) -> bool:
    """Say whether a piece has whole parts and groups of the kernel without loops, one part after the other."""
    whole = p.part == cpu.STRAIGHT and extent % p.part == 0 and piece.columns % (4 * p.group) == 0 and p.lanes == 1
    if piece.columns > 4 * p.group * p.source.device.limits.max_workgroup_count[0]:
        return False  # its groups count along x alone
    return whole and (piece.blocks == 1 or (dense and p.kind.family != "place"))


def _gathered(p: Problem, first: int, rows: int, columns: int, width: int) -> Array:
    """Return a copy of some columns of some rows."""
    made = p.source.device.empty((rows, columns, width), p.source.dtype)
    size = p.source.dtype.itemsize * width
    ranges = [
        item
        for row in range(rows)
        for item in p.source.memory.ranges(p.source.byte_offset + (first + row * p.columns) * size, columns * size)
    ]
    p.source.device.logical.copy(ranges, made.ranges())
    return made
