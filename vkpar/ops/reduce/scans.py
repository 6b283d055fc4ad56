"""Running sums and products along an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vkpar import dtypes
from vkpar.abi import reduce as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.operators import operations
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.arrays.recipes import landed
from vkpar.ops.call import kept, landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, NARROW, SHORT, advice, check_arrays, check_out, check_overlap, widened
from vkpar.ops.call.makes import make_of
from vkpar.ops.call.work import has_warps
from vkpar.ops.elementwise.cast import cast, cast_in
from vkpar.ops.elementwise.expressions import LONG
from vkpar.ops.elementwise.shipped import check_long
from vkpar.ops.elementwise.ways import binding
from vkpar.ops.reduce import cpu
from vkpar.ops.reduce.axes import whole_one
from vkpar.ops.tiles.occupancy import units_of

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.memory.buffer import BufferRange

PAIRS: Final = {"int64": "int32", "uint64": "uint32", "float64": "uint32"}  # and how their upper halves order
_GROUP: Final = 256
_KERNELS: Final = {"int64": "u64", "uint64": "u64", "float64": "f64"}
_TOTALS, _RESULTS, _AFTER_OTHERS, _ONCE = range(4)  # what a dispatch makes; see shaders/scan.comp
_UNIT: Final = 32  # bytes that an invocation with a chunk for itself reads at once
CHUNK: Final = 4096  # elements of a row that a work-group takes; see shaders/scan.comp
_WINDOW: Final = 256  # chunks
_WAIT: Final = 4096  # turns, of half a microsecond each: then a work-group leaves its chunk to the last one
_GROUPS: Final = 4  # of one pass for each compute unit
_MOST_WORDS: Final = 1 << 20  # that work-groups of one pass tell each other


def cumsum(a: Array, axis: int | None = None, *, out: Array | None = None) -> Array:
    """Return the running sums of elements along an axis, in the type of ``a``; int32 or uint32 of narrower integers.

    Floats are added in float32 in an order that shapes fix, and rounded once: the same bits each time. With n terms and
    D = 16 * ceil(log2(n) / 12 + 1) the error is at most D * 2^-23 * (the sum of magnitudes so far). Integers wrap.

    Args:
        a: floats of 16 and 32 bits, integers of 8 to 32 bits and bool; those of 64 bits that the device computes.
        axis: along which; None for all elements in C order, in one dimension.
        out: where the result goes, of its shape and type, sharing no memory with ``a``.

    Raises:
        InvalidUsageError: not an array, a closed one; no such axis; a wrong ``out``.
        UnsupportedError: a type that devices do not compute; more bytes than a kernel of the device can see at once.

    Examples:
        >>> vkpar.cumsum(device.array([1.0, 2.0, 3.0])).tolist()
        [1.0, 3.0, 6.0]
    """
    return _along("cumsum", a, axis, out)


def cumprod(a: Array, axis: int | None = None, *, out: Array | None = None) -> Array:
    """Return the running products of elements along an axis, as :func:`cumsum` does sums.

    The error of the product of n floats is at most n * 2^-23 of itself, before it is rounded to its type.

    Examples:
        >>> vkpar.cumprod(device.array([1.0, 2.0, 3.0])).tolist()
        [1.0, 2.0, 6.0]
    """
    return _along("cumprod", a, axis, out)


def _along(name: str, a: Array, axis: int | None, out: Array | None) -> Array:
    axis = axis if axis is None else whole_one(name, axis)
    done = repeat(name, (a,), (out,), axis)
    if done is not None:
        return done[0]
    given = a
    a, at = checked(name, a, axis, out)
    dtype = dtypes.resolve(widened(a)) if a.dtype.name in NARROW else a.dtype
    if out is not None:
        check_out(name, out, a.shape, dtype)
        check_overlap(name, out, given, in_place=False)
    made = a.device.empty(a.shape, dtype) if out is None else out
    if not a.size:
        return made
    call = Call(name, key_of(name, (given,), (out,), axis), (given,), (made,))
    _record(call, a, at, product=name == "cumprod")
    call.keep()
    return made


def _record(call: Call, a: Array, axis: int, *, product: bool) -> None:
    """Record the running sums of ``a``, the call's operand or all of it as one row, along an axis."""
    operand, result = call.operands[0], call.results[0]
    if a.ndim == operand.ndim:
        source = operand
    elif operand.is_contiguous:
        source = call.view(operand, operand.reshape(-1))
    else:
        packed = landing.packed(call, operand)
        source = call.view(packed, packed.reshape(-1))
    order = (*(n for n in range(a.ndim) if n != axis), axis)
    turned = order != tuple(range(a.ndim))
    if turned:
        source = call.view(source, source.transpose(order))
    source = landing.packed(call, source)
    wide = dtypes.float32 if result.dtype.itemsize < 4 else result.dtype
    if source.dtype != wide:
        converted = call.temporary(source.shape, wide)
        cast_in(call, source, converted)
        source = converted
    direct = not turned and wide == result.dtype and result.is_contiguous
    target = result if direct else call.temporary(source.shape, wide)
    rows = (-1, source.shape[-1])
    scan(call, call.view(source, source.reshape(rows)), call.view(target, target.reshape(rows)), product=product)
    if turned:
        if wide != result.dtype:
            halves = call.temporary(source.shape, result.dtype)
            call.convert(target, halves)
            target = halves
        target = call.view(target, target.transpose([order.index(n) for n in range(a.ndim)]))
    landing.land(call, target, result)


def checked(name: str, a: Array, axis: int | None, out: Array | None = None) -> tuple[Array, int]:
    """Return the array, flat where no axis is named, and the axis counted from 0.

    Raises:
        InvalidUsageError: not an array, a closed one; no such axis.
        UnsupportedError: a type that devices do not compute.
    """
    check_arrays(name, out, a=a)
    if a.dtype.name in LONG and name.startswith("cum"):
        check_long(name, a.device, a.dtype)
    elif a.dtype.name in PAIRS and name in ("sort", "argsort", "topk"):
        pass  # two words each, which every device orders
    elif a.dtype.name not in SHORT and a.dtype.name not in NARROW:
        raise UnsupportedError(f"{name} computes {', '.join(SHORT)}, not {a.dtype}{advice(a.dtype)}")
    if axis is None:
        return a.reshape(-1), 0
    axis = whole_one(name, axis)
    if not -a.ndim <= axis < a.ndim:
        raise InvalidUsageError(f"{name}: there is no axis {axis} in an array of shape {a.shape}")
    return a, axis % a.ndim


def lying_last(a: Array, axis: int) -> Array:
    """Return an array of elements of 32 bits at least that lie side by side, those along an axis as rows."""
    moved = a.transpose((*(n for n in range(a.ndim) if n != axis), axis)) if axis != a.ndim - 1 else a
    if moved.dtype.itemsize < 4:
        moved = cast(moved, widened(moved) if moved.dtype.name in NARROW else "float32")
    return moved.contiguous()


def back(name: str, made: Array, a: Array, axis: int, out: Array | None, dtype: DType | None = None) -> Array:
    """Return a result whose rows lie along an axis of ``a``, of ``a``'s type or another one, where it belongs."""
    if axis != made.ndim - 1:
        order = list(range(made.ndim - 1))
        order.insert(axis, made.ndim - 1)
        made = made.transpose(order)
    dtype = a.dtype if dtype is None else dtype
    if made.dtype != dtype:
        return cast(made, dtype, out=out)
    return made.contiguous() if out is None else landed(name, made, out, a)


def where_ones_lie(name: str, flags: Array) -> Array:
    """Return the places of the ones of a row of ones and zeros, uint32, and behind these whatever was there."""
    done = repeat("where ones lie", (flags,), (None,))
    if done is not None:
        return done[0]
    made = flags.device.empty(flags.shape, flags.dtype)
    call = Call(name, key_of("where ones lie", (flags,), (None,)), (flags,), (made,))
    scan(call, call.operands[0], call.results[0], places=True)
    call.keep()
    return made


def scan(call: Call, source: Array, target: Array, *, product: bool = False, places: bool = False) -> None:
    """Record running sums of the rows of arrays of a call, of two dimensions; or the places of ones in a row.

    Raises:
        UnsupportedError: more than a kernel of the device can see at once.
    """
    rows, count = source.shape
    chunks = -(-count // CHUNK)
    if chunks == 1:
        _dispatch(call, source, target, target, _RESULTS, product=product, places=places)
        return
    words = 2 * (2 + rows * (chunks + -(-chunks // _WINDOW)))  # two of each chunk and window, behind the counters
    if source.dtype.itemsize == 4 and words <= _MOST_WORDS and chunks <= _WINDOW**2 and passes_once(call.device):
        told = call.table(kept.counters(call.device, words))
        _dispatch(call, source, target, told, _ONCE, product=product, places=places)
        return
    totals = call.temporary((rows, chunks), source.dtype)
    _dispatch(call, source, target, totals, _TOTALS, product=product)
    sums = call.temporary((rows, chunks), source.dtype)
    scan(call, totals, sums, product=product)
    _dispatch(call, source, target, sums, _AFTER_OTHERS, product=product, places=places)


def passes_once(device: Device) -> bool:
    """Say whether rows of several chunks are made in one pass over memory."""
    info = device.info
    return make_of(info).waits and info.type == "discrete" and has_warps(info, "shuffle")


def _dispatch(
    call: Call, source: Array, target: Array, totals: Array, phase: int, *, product: bool, places: bool = False
) -> None:
    rows, count = source.shape
    chunks = -(-count // CHUNK)
    (a, a_first), (o, o_first), (s, s_first) = (seen(call, array) for array in (source, target, totals))
    work, unit, once = rows * chunks, _UNIT // source.dtype.itemsize, phase == _ONCE
    whole = not (count % unit or a_first % unit or o_first % unit or source.dtype.is_float or places or once)
    aligned = not (count % 4 or a_first % 4 or o_first % 4)
    alone = cpu.scans_alone(call.device, work) if whole else 0
    threads = alone or cpu.scan_group(call.device, _GROUP, ordered=source.dtype.is_float or once)
    wide = aligned and (threads == _GROUP or -(-min(count, CHUNK) // threads) % 4 == 0)  # lanes begin at fours, too
    constants = abi.ScanConstants(source.dtype.name in FLOATS, product, phase, threads, places, alone > 0, wide)
    of_words = "w64_u32" if alone else "once_u32" if once else "u32"
    groups = -(-work // alone) if alone else work
    if once:
        groups = min(work, _GROUPS * units_of(call.device.info))
    push = pack(abi.Scan(count, rows, chunks, a_first, o_first, s_first, _WAIT, groups))
    kernel = f"scan_{_KERNELS.get(source.dtype.name, of_words)}"
    call.dispatch(kernel, (source, target, totals), (a, o, s), push, groups, constants)


def seen(call: Call, array: Array) -> tuple[BufferRange, int]:
    """Return what a kernel binds of an array, and the index of its first element.

    Raises:
        UnsupportedError: more than a kernel of the device can see at once.
    """
    place = binding(array)
    if place is None:
        raise UnsupportedError(
            f"{call.operation}: a kernel of {array.device} cannot see {array.nbytes} bytes at once; take parts of it"
        )
    return place


operations.update(cumsum=cumsum, cumprod=cumprod)
