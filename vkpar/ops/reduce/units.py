"""Sums and extremes of elements of 8, 16 and 64 bits, read as they are stored, in units of 16 bytes, or 32 by W64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar.abi import reduce as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.region import WORD
from vkpar.dtypes import resolve
from vkpar.ops.call import kept
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.work import ceil_power, floor_power
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.expressions import LONG
from vkpar.ops.elementwise.ways import binding
from vkpar.ops.reduce import cpu

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.dtypes import DType

Groups = list[tuple[int, bool]]  # sizes of axes, and whether they are reduced
_GROUP: Final = 256
_COLUMN_LANES: Final = 16
_WANTED: Final = 1 << 17  # invocations of a launch, as far as each has four units
_MOST_COUNTERS: Final = 1 << 20
_TURNS: Final = (4, 32, 128)  # units of an invocation: at least, and at most of columns and float64, and of rows
_MOST_PARTS: Final = 32  # of columns that one group folds, for each invocation that a column has
_OPS: Final = {"sum": 0, "mean": 0, "max": 1, "min": 2, "count": 6, "count of floats": 7, "any": 8, "any of floats": 9}
_COUNTS: Final = ("count", "count of floats", "any", "any of floats")  # of those that are not 0; 1 for any
_PLACES: Final = {"argmax": 10, "argmin": 11, "argmax of floats": 12, "argmin of floats": 13}
_EXTREMES: Final = ("max", "min")
_PARTS: Final = {"any": 3, "all": 4, "prod": 5, "count_nonzero": 6}
_MANY: Final = 1 << 16  # bytes, from which on it pays to reduce parts first
_TRUTHS: Final = {"sum": 0, "mean": 0, "max": 3, "min": 4}
_KERNELS: Final = {"int64": "u64", "uint64": "u64", "float64": "f64"}
_W64_GROUP: Final = 64
_WIDEST: Final = 32
_PAGE: Final = 4096
_LONG: Final = 8
_W64_PARTS: Final = 512  # as far as each has four units
_W64_UNITS: Final = 128  # of a part of a row, at most
_W64_COLUMN: Final = (64, 16)  # elements of a part of a column at most: nearer each other than a page, and farther


class _Shape(NamedTuple):
    blocks: int
    extent: int
    columns: int
    unit: int  # bytes
    lanes: int  # that share a part; or, of W64, parts of rows that one has
    part: int  # units of rows, elements of columns
    left: int = 0  # elements of the only row behind its last whole unit, which are left as they are


def groups_of(shape: tuple[int, ...], axes: frozenset[int]) -> Groups:
    """Return the sizes of the axes but for those of 1, neighbours that are both reduced or both kept as one."""
    groups: Groups = []
    for index, size in enumerate(shape):
        if size == 1:
            continue
        before = groups.pop()[0] if groups and groups[-1][1] == (index in axes) else 1
        groups.append((before * size, index in axes))
    return groups


def reads_units(device: Device) -> bool:
    """Say whether elements are read in units: other CPU drivers take longer for that than for converting them first."""
    return not cpu.passes_alone(device) or w64(device)


def w64(device: Device) -> bool:
    """Say whether no two invocations share a part, and each reads units of 32 bytes, or of 8."""
    return cpu.reads_pairs(device)


def target_of(call: Call, name: str, wide: DType, groups: Groups) -> Array:
    """Return where kernels write: the result itself, where it has words, or is alone in the first bytes of one.

    Extremes of columns are stored as narrow as elements are where one dispatch makes them.
    """
    result = call.results[0]
    aligned = result.is_contiguous and result.byte_offset % WORD == 0
    packs = name in _EXTREMES and not w64(call.device) and [gone for _, gone in groups[-2:]] == [True, False]
    if aligned and (result.dtype == wide or (packs and sum(gone for _, gone in groups) == 1)):
        return result
    alone = aligned and result.size == 1 and result.byte_offset + result.nbytes == result.storage.nbytes
    if name == "mean" or not alone:
        return call.temporary(result.shape, wide)
    return call.view(result, Array(result.storage, result.byte_offset, result.shape, wide))


def reduced(call: Call, name: str, a: Array, groups: Groups, target: Array) -> tuple[Array, Groups]:
    """Reduce the last axes that can be reduced here, and return what is left: ``target`` where nothing is.

    Args:
        call: that it is a part of.
        name: ``sum``, ``max``, ``min``; ``mean`` of bytes, whose parts are left as sums; ``count``, ``any`` and those
            ``of floats`` of unsigned bits, also of 32, whose results have 32, except where :func:`w64` holds.
        a: elements of 8, 16 or 64 bits, an array of the call; those of fewer than 32 come to int32 or uint32.
        groups: the sizes of its axes, neighbours of one kind as one, and which are reduced.
        target: contiguous, for the results in the order of the axes that are kept.
    """
    while reads_units(a.device) and a.is_contiguous and (a.dtype.itemsize != 4 or name in _COUNTS):
        at = max((index for index, (_, gone) in enumerate(groups) if gone), default=None)
        made = None if at is None else _once(call, name, a, groups, at, target)
        if made is None or at is None:
            break
        a, parts = made
        name = "sum" if name in _COUNTS else name
        groups = [*groups[:at], *([(parts, True)] if parts > 1 else []), *groups[at + 1 :]]
    return a, groups


def of_parts(name: str, a: Array, axes: frozenset[int]) -> tuple[Array, frozenset[int]] | None:
    """Return what parts of an array come to, of which something is to be found along axes.

    Of ``any`` they are 0, of either sign, where all elements of a part are; of ``all``, of floats, where one is, and
    whole numbers of the elements' size. Of ``prod``, of float32 and 64 bits, they are products; of ``count_nonzero``,
    of whole numbers, how many are not 0, in uint32 or uint64.

    Returns:
        The parts, fewer than there were elements, and the axes along which they lie; None where other ways are faster.
    """
    groups = groups_of(a.shape, axes)
    at = max((index for index, (_, gone) in enumerate(groups) if gone), default=None)
    if at is None or not (w64(a.device) and a.is_contiguous and a.nbytes >= _MANY):
        return None
    size, rows = a.dtype.itemsize, at == len(groups) - 1
    beside = max(_LONG // size, 1) if size >= WORD else 1  # elements of a word of 64 bits
    words, whole = a, groups
    if name == "count_nonzero" and size == WORD and not rows:
        return None  # two columns would share a number
    if size >= WORD and not (name == "prod" and a.dtype == "float64"):
        whole = [*groups[:-1], (groups[-1][0] // beside, groups[-1][1])]
        if groups[-1][0] % beside or a.byte_offset % _LONG:
            return None
        words = Array(a.storage, a.byte_offset, (a.size // beside,), resolve("uint64"))
    shape = _w64_shape(words, whole, at)
    if shape is None or shape.left:
        return None
    parts = -(-(shape.extent * words.dtype.itemsize // shape.unit if rows else shape.extent) // shape.part)
    if 2 * shape.blocks * parts * shape.columns > words.size:
        return None
    made = _parts_of(name, a, words.reshape(-1), shape, parts)
    if made is None:
        return None
    counts = name == "count_nonzero"
    left = [*groups[:at], (parts, True), *([(1 if counts else beside, True)] if rows else groups[at + 1 :])]
    kind = made.dtype if counts else resolve(f"uint{8 * size}") if name == "all" else a.dtype
    found = Array(made.storage, made.byte_offset, tuple(count for count, _ in left), kind)
    return found, frozenset(n for n, (_, gone) in enumerate(left) if gone)


def _parts_of(name: str, a: Array, words: Array, shape: _Shape, parts: int) -> Array | None:
    """Reduce the elements of ``a``, given as ``words``, in parts; None, and nothing done, where no kernel sees them."""
    key = name, a.dtype.name, shape, parts
    done = repeat("of parts", (words,), (None,), *key)
    if done is not None:
        return done[0]
    dtype = words.dtype if words.dtype.itemsize == _LONG else resolve("uint32")
    made = a.device.empty((shape.blocks * parts * shape.columns,), dtype)
    call = Call(name, key_of("of parts", (words,), (None,), *key), (words,), (made,))
    bits = 8 * a.dtype.itemsize
    if not _send(call, name, call.operands[0], call.results[0], shape, parts, once=False, bits=bits):
        return None
    call.keep()
    return made


def places(name: str, rows: Array, part: int) -> Array | None:
    """Return where in rows ``argmax`` or ``argmin`` of each part lies, as uint32; None where no kernel can see them.

    Args:
        name: which.
        rows: of 8, 16 or 64 bits, of two dimensions, side by side.
        part: elements of one, of which rows have whole ones; a whole number of units, 64 KiB at most.
    """
    size, kind = rows.dtype.itemsize, rows.dtype.numpy.kind
    words = resolve("int64" if kind == "f" else "uint8" if kind == "b" else rows.dtype)
    name = f"{name} of floats" if kind == "f" else name
    a = Array(rows.storage, rows.byte_offset, rows.shape, words)
    done = repeat("places", (a,), (None,), name, part)
    if done is not None:
        return done[0]
    count, extent = a.shape
    made = a.device.empty((count, extent // part), "uint32")
    call = Call(name, key_of("places", (a,), (None,), name, part), (a,), (made,))
    length = part * size // _WIDEST
    shape = _Shape(count, extent, 1, _WIDEST, max(_W64_UNITS // length, 1), length)
    if not _send(call, name, call.operands[0], call.results[0], shape, extent // part, once=False):
        return None
    call.keep()
    return made


def _once(call: Call, name: str, a: Array, groups: Groups, at: int, target: Array) -> tuple[Array, int] | None:
    shape = (_w64_shape if w64(a.device) else _shape_of)(a, groups, at)
    if shape is None:
        return None
    length = -(-shape.extent * a.dtype.itemsize // shape.unit) if shape.columns == 1 else shape.extent
    parts = -(-length // shape.part)
    once = parts > 1 and name != "mean" and _folds(a, shape, parts)
    left = 1 if once else parts + shape.left
    if left == 1 and not any(gone for _, gone in groups[:at]):
        made = target
    else:  # columns of extremes stay as narrow as they are
        packed = w64(a.device) and shape.columns > 1 and name in _EXTREMES and a.dtype.itemsize < WORD
        made = call.temporary((shape.blocks, left, shape.columns), a.dtype if packed else target.dtype)
    if not _send(call, name, a, made, shape, parts, once=once):
        return None
    if shape.left:
        end, there = a.reshape(-1)[-shape.left :], made.reshape(-1)[parts:]
        if a.dtype.name in LONG:
            call.copy(call.view(a, end), call.view(made, there))
        else:
            call.forget()
            cast(end, made.dtype, out=there)
    return made, left


def _strips(shape: _Shape, size: int) -> tuple[int, int]:
    """Return how many columns, in units, a group has, and how many groups all of them take."""
    beside = _GROUP // shape.lanes
    return beside, -(-(shape.columns * size // shape.unit) // beside) if shape.columns > 1 else 1


def _folds(a: Array, shape: _Shape, parts: int) -> bool:
    """Say whether the group that is the last of a row, or of some columns, reduces what all parts come to."""
    beside, strips = _strips(shape, a.dtype.itemsize)
    few = shape.columns == 1 or parts <= _MOST_PARTS * max(_GROUP * a.dtype.itemsize // (beside * shape.unit), 1)
    return few and shape.blocks * strips <= _MOST_COUNTERS and not w64(a.device) and a.dtype != "float64"


def _send(
    call: Call, name: str, a: Array, made: Array, shape: _Shape, parts: int, *, once: bool, bits: int = 0
) -> bool:
    """Reduce an axis in parts, or all of it ``once``; False, and nothing done, where a kernel cannot see it."""
    form, rows = "w64_" if w64(a.device) else "", shape.columns == 1
    seen, put = binding(a), binding(made)
    size = a.dtype.itemsize
    if seen is None or put is None or seen[1] * size % shape.unit:
        return False
    units = 1 if rows else shape.columns * size // shape.unit
    ops = _PARTS if bits else _TRUTHS if a.dtype == "bool" and rows else _OPS
    signed = a.dtype.numpy.kind == "i" and not bits
    first = seen[1] * size // (shape.unit if form else 4)
    to = put[1] * made.dtype.itemsize // max(made.dtype.itemsize, WORD)
    push = abi.Units(shape.blocks, shape.extent, units, parts, shape.part, shape.lanes, first, to)
    packed = made.dtype == a.dtype if size < WORD else made.dtype.itemsize < size
    constants = abi.UnitsConstants((_PLACES | ops)[name], bits or 8 * size, signed, shape.unit > 8, not rows, packed)
    work = shape.blocks * parts
    beside, strips = _strips(shape, size)
    if form:
        count = -(-(-(-work // shape.lanes) if rows else work * units) // _W64_GROUP)
    else:
        count = -(-work // beside) if rows else work * strips
    kernel = f"reduce_units_{form or 'once_' * once}{_KERNELS.get(a.dtype.name, 'u32')}"
    arrays, ranges = [a, made], [seen[0], put[0]]
    if once:
        words = work * shape.columns * (2 if a.dtype.name in LONG else 1)
        more = kept.parts(call, words), call.table(kept.counters(call.device, shape.blocks * strips))
        arrays, ranges = [*arrays, *more], [*ranges, more[0].window(0, words)[0], more[1].window()[0]]
    call.dispatch(kernel, arrays, ranges, pack(push), count, constants)
    return True


def _w64_shape(a: Array, groups: Groups, at: int) -> _Shape | None:
    """Return how an axis is reduced where an invocation has a part; None where rows are not whole units."""
    blocks, extent, columns = _around(groups, at)
    size, left = a.dtype.itemsize, 0
    if blocks == columns == 1 and extent * size >= _WIDEST:
        left = extent % (_WIDEST // size)
        extent -= left
    run = (columns if columns > 1 else extent) * size
    unit = next((unit for unit in (_WIDEST, 8) if run % unit == 0 and a.byte_offset % unit == 0), 0)
    if not unit or not run or a.size >> 31:
        return None
    length, beside = (extent, run // unit) if columns > 1 else (run // unit, 1)
    each = max(floor_power(max(blocks * length * beside // _W64_PARTS, 1)), _TURNS[0])
    if columns > 1:
        return _Shape(blocks, extent, columns, unit, 1, min(each, _W64_COLUMN[run >= _PAGE]))
    part = min(each, _W64_UNITS)
    return _Shape(blocks, extent, 1, unit, max(part // length, 1), part, left)


def _around(groups: Groups, at: int) -> tuple[int, int, int]:
    """Return how many elements there are before an axis, along it, and after it."""
    sizes = [size for size, _ in groups]
    return math.prod(sizes[:at]), sizes[at], math.prod(sizes[at + 1 :])


def _shape_of(a: Array, groups: Groups, at: int) -> _Shape | None:
    """Return how an axis is reduced; None where rows begin between words, or there is too little to do."""
    blocks, extent, columns = _around(groups, at)
    size = a.dtype.itemsize
    least = max(size, 4)
    run = columns * size if columns > 1 else extent * size if blocks > 1 else 16
    unit = 16 if run % 16 == 0 and a.byte_offset % 16 == 0 else least
    if run % unit or a.byte_offset % unit or a.size >> 31:
        return None
    units = columns * size // unit if columns > 1 else -(-extent * size // unit)
    if columns > 1:
        lanes = max(min(_COLUMN_LANES, ceil_power(extent)), _GROUP // ceil_power(min(units, _GROUP)))
        lanes = min(lanes, _GROUP, ceil_power(extent))
        wanted = blocks * units * extent // _WANTED
        turns = min(max(floor_power(max(wanted, 1)), _TURNS[0]), _TURNS[1])
        return _Shape(blocks, extent, columns, unit, lanes, lanes * turns)
    lanes = min(_GROUP, ceil_power(-(-units // _TURNS[0])))
    most = _TURNS[1 if a.dtype == "float64" else 2]
    turns = min(max(floor_power(max(blocks * units // _WANTED, 1)), _TURNS[0]), most)
    return _Shape(blocks, extent, 1, unit, lanes, lanes * turns)
