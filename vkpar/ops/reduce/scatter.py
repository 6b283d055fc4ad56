"""Elements added at places along an axis, which may be the same for several."""

from __future__ import annotations

from typing import Final

from vkpar.abi import reduce as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.views import same_elements
from vkpar.dtypes import uint32
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.arrays.take import axis_number, index_words
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import NARROW, SHORT, advice, check_arrays, check_out, check_overlap, widened
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.expressions import LONG
from vkpar.ops.elementwise.functions import less, where
from vkpar.ops.elementwise.shipped import check_long
from vkpar.ops.reduce.scans import back, seen
from vkpar.ops.reduce.sorting import MOST, Order, record_sort

_CHUNK: Final = 32  # elements of an invocation; see shaders/scatter_add.comp
_GROUP: Final = 64
_KERNELS: Final = {"float32": "f32", "int32": "u32", "uint32": "u32", "int64": "u64", "uint64": "u64", "float64": "f64"}


def scatter_add(a: Array, axis: int, indices: Array, source: Array, *, out: Array | None = None) -> Array:
    """Return ``a`` with elements of ``source`` added at places along an axis, as torch does; several may go to one.

    Floats are added in float32 (float64 in itself) in an order that places and shapes fix, and rounded once: the same
    bits each time. Where n elements go to a place, the error is at most D * 2^-23 (2^-52) of the sum of magnitudes,
    with D = 33 * ceil(log2(n) / 4 + 1). Integers wrap. A place that is not there is left out: the host does not see it.

    Args:
        a: float32, float16, bfloat16, integers or bool; 64-bit types where the device computes them.
        axis: along which; negative ones count from the end.
        indices: integers, of as many dimensions as ``a``, along none but the axis longer than it; those below 0 count
            from the end.
        source: of ``a``'s type, along no axis shorter than the indices; what is beyond them is not looked at.
        out: where the result goes, of ``a``'s shape and type: ``a`` itself, or what shares no memory with the operands.

    Raises:
        InvalidUsageError: not arrays, closed ones; no such axis; shapes that do not fit; a wrong ``out``.
        UnsupportedError: another type, types that differ; more elements than a kernel of the device can see at once.

    Examples:
        >>> a, indices = device.zeros(3), device.array([0, 2, 0])
        >>> vkpar.scatter_add(a, 0, indices, device.array([1.0, 2.0, 3.0])).tolist()
        [4.0, 0.0, 2.0]
    """
    check_arrays("scatter_add", out, a=a, indices=indices, source=source)
    at = _axis(a, axis, indices, source)
    _check_types(a, source)
    if out is not None:
        check_out("scatter_add", out, a.shape, a.dtype)
        check_overlap("scatter_add", out, a, in_place=True)
        check_overlap("scatter_add", out, indices, source, in_place=False)
    numbers = index_words("scatter_add", indices)
    if not indices.size or not a.size:
        return _copied(a, out)
    order = (*(n for n in range(a.ndim) if n != at), at)
    places = _known(numbers.transpose(order), a.shape[at])
    values = source[tuple(map(slice, indices.shape))].transpose(order)
    wide = widened(a) if a.dtype.name in NARROW else "float32" if a.dtype.itemsize < 4 else a.dtype.name
    values = (cast(values, wide) if values.dtype != wide else values).contiguous()
    direct = out is not None and out.is_contiguous and order == tuple(range(a.ndim)) and wide == a.dtype
    whole = _copied(a, out) if direct else _taken(a, order, wide)
    part = whole[(*map(slice, places.shape[:-1]), slice(None))]
    if part.shape == whole.shape:
        _add(whole, places, values)
    else:
        aside = part.copy()
        _add(aside, places, values)
        part.copy_from(aside)
    if direct or out is None:
        return whole if direct else back("scatter_add", whole, a, at, None)
    out.copy_from(back("scatter_add", whole, a, at, None))  # which may be ``a``, of which all was read
    return out


def _axis(a: Array, axis: int, indices: Array, source: Array) -> int:
    number = axis_number("scatter_add", axis)
    if not -a.ndim <= number < a.ndim:
        raise InvalidUsageError(f"scatter_add: there is no axis {axis} in an array of shape {a.shape}")
    at = number % a.ndim
    shapes = f"{a.shape}, indices {indices.shape} and source {source.shape}"
    if not a.ndim == indices.ndim == source.ndim:
        raise InvalidUsageError(f"scatter_add: {shapes} are not of as many dimensions")
    rows = (i_n <= a_n or n == at for n, (a_n, i_n) in enumerate(zip(a.shape, indices.shape, strict=True)))
    if not all(rows) or any(i_n > s_n for i_n, s_n in zip(indices.shape, source.shape, strict=True)):
        raise InvalidUsageError(f"scatter_add: {shapes} do not fit along other axes than {axis}")
    return at


def _check_types(a: Array, source: Array) -> None:
    if a.dtype != source.dtype:
        raise UnsupportedError(f"scatter_add: {a.dtype} and {source.dtype}: cast one first")
    if a.dtype.name in LONG:
        check_long("scatter_add", a.device, a.dtype)
    elif a.dtype.name not in SHORT and a.dtype.name not in NARROW:
        raise UnsupportedError(f"scatter_add computes {', '.join(SHORT)}, not {a.dtype}{advice(a.dtype)}")


def _copied(a: Array, out: Array | None) -> Array:
    if out is None:
        return a.copy()
    if not same_elements(out, a):
        out.copy_from(a)
    return out


def _taken(a: Array, order: tuple[int, ...], wide: str) -> Array:
    """Return a new array of what is added to, with an axis last, in the type of sums."""
    moved = a.transpose(order)
    return cast(moved, wide) if moved.dtype != wide else moved.copy()


def _known(numbers: Array, length: int) -> Array:
    """Return places side by side as uint32: those that are not there as the length."""
    if numbers.dtype == "int32":
        numbers = cast(where(less(numbers, 0), numbers + length, numbers), uint32)
    return where(less(numbers, length), numbers, length).contiguous()


def _add(whole: Array, places: Array, values: Array) -> None:
    """Add values to rows of an array; all lie side by side."""
    if max(places.size, whole.size) > MOST:
        raise UnsupportedError(f"scatter_add: places are words, which count no {max(places.size, whole.size)} elements")
    done = repeat("scatter_add", (places, values), (whole,), whole.shape[-1])
    if done is not None:
        return
    call = Call(
        "scatter_add", key_of("scatter_add", (places, values), (whole,), whole.shape[-1]), (places, values), (whole,)
    )
    places, values = call.operands
    (target,) = call.results
    count, size = places.shape[-1], whole.shape[-1]
    rows = places.size // count
    keys, order = (call.temporary((rows, count), uint32) for _ in range(2))
    record_sort(call, places, keys, order, Order(bits=size.bit_length()))
    begins = True
    while True:
        chunks = -(-count // _CHUNK)
        ends = chunks == 1
        left_keys = keys if ends else call.temporary((rows, 2 * chunks), uint32)
        left = values if ends else call.temporary((rows, 2 * chunks), values.dtype)
        arrays = (keys, order, values, left_keys, left, target)
        found = [seen(call, array) for array in arrays]
        push = pack(abi.ScatterAdd(count, rows, chunks, size, *(first for _, first in found)))
        constants = abi.ScatterAddConstants(begins, ends)
        kernel = f"scatter_add_{_KERNELS[whole.dtype.name]}"
        call.dispatch(kernel, arrays, [item for item, _ in found], push, -(-rows * chunks // _GROUP), constants)
        if ends:
            break
        keys, values, count, begins = left_keys, left, 2 * chunks, False
    call.keep()
