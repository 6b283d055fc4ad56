"""Conversion between types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from vkpar import dtypes
from vkpar.abi import elementwise as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.operators import operations
from vkpar.dtypes import DType
from vkpar.errors import UnsupportedError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import (
    FLOATS,
    INTEGERS,
    NARROW,
    OTHERS,
    SHORT,
    advice,
    check_arrays,
    check_out,
    check_overlap,
)
from vkpar.ops.call.dispatch import run_single
from vkpar.ops.elementwise.expressions import LONG
from vkpar.ops.elementwise.run import computed, launch, run
from vkpar.ops.elementwise.shipped import Shipped, check_long
from vkpar.ops.elementwise.ways import Meaning, Operand, binding


class _Conversion(Shipped):
    """A conversion from or to whole numbers, or between them."""

    def __init__(self, name: str, target: str, bounds: tuple[int, ...] = ()) -> None:
        super().__init__(name, "cast")
        self.key = f"cast {name} {target}"
        self.bounds = bounds  # numbers that the expression takes, too
        self._target = target

    def meaning(self, operands: Sequence[Operand]) -> Meaning:
        """Return what it means."""
        kind = self._builtin.kinds[0]
        return Meaning(kind, (operands[0].dtype.name, *kind.inputs[1:]), (self._target,))


def _bounds(name: str) -> tuple[int, int]:
    """Return the least and the largest number of a type."""
    limits = np.iinfo(name)
    return int(limits.min), int(limits.max)


_WHOLE: Final = (*INTEGERS, *sorted(NARROW))  # up to 32 bits
# By the types that they convert between; int32 and uint32 have their bits in common.
_CONVERSIONS: Final = (
    {(a, b): _Conversion(f"from_{a if a in INTEGERS else 'int32'}", b) for a in _WHOLE for b in FLOATS}
    | {(a, b): _Conversion(f"to_{b}", b) for a in FLOATS for b in INTEGERS}
    | {(a, b): _Conversion("to_narrow", b, _bounds(b)) for a in FLOATS for b in sorted(NARROW - {"bool"})}
    | {("float32", "float64"): _Conversion("long_from_float32", "float64")}
    | {("float64", "float32"): _Conversion("long_to_float32", "float32")}
    | {(a, b): _Conversion("move", b) for a in _WHOLE for b in _WHOLE if a != b and {a, b} != {*INTEGERS}}
)


_KINDS: Final = {"u": 0, "i": 1, "f": 2, "b": 3}  # of shaders/narrow.comp
_ODD: Final = 4
_STORED: Final = OTHERS | {"float64"}


def cast(a: Array, dtype: object, *, out: Array | None = None) -> Array:
    """Return the elements of ``a`` in another type.

    Floats are rounded to nearest even, once: overflow gives infinity; NaN (as the canonical one) and infinity are
    kept; subnormal values are exact. Floats become integers by dropping the fraction; what is out of range becomes the
    nearest integer of the type, NaN becomes 0. Integers become float64 by one rounding, other floats by way of
    float32. Integers become others by their lowest bits, as NumPy's do; all but 0 becomes the truth value 1.

    Args:
        a: any shape; float32, float16, bfloat16, an integer of 8 to 64 bits or bool; float64 where the device computes
            it; or any type when ``dtype`` is its own (then bytes are copied).
        dtype: one of these.
        out: where the result goes, of ``a``'s shape and of type ``dtype``; by default a new array.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; a wrong ``out``, or one in shared memory.
        UnsupportedError: a type that devices do not convert, such as complex64.

    Examples:
        >>> vkpar.cast(device.array([2.7, -2.7]), "int32").tolist()
        [2, -2]
    """
    target = dtypes.resolve(dtype)
    done = run_single("cast", a, out, target.name)
    if done is not None:
        return done
    check_arrays("cast", out, a=a)
    conversion = _CONVERSIONS.get((a.dtype.name, target.name))
    if conversion is not None:
        if a.dtype.name in LONG or target.name in LONG:
            check_long("cast", a.device, a.dtype if a.dtype.name in LONG else target)
        return run(conversion, (a, *conversion.bounds), (out,))[0]
    if a.dtype != target and _STORED & {a.dtype.name, target.name}:
        return _narrow(a, target, out)
    same_bits = a.dtype == target or (a.dtype.name in INTEGERS and target.name in INTEGERS)
    if not same_bits:
        if target.name not in SHORT:
            raise UnsupportedError(
                f"cast makes {', '.join((*SHORT, *sorted(OTHERS)))}, not {target}; convert on the host: "
                f"a.numpy().astype('{target}')"
            )
        computed("cast", a.dtype.name)
    made = a.device.empty(a.shape, target) if out is None else out
    if out is not None:
        check_out("cast", out, a.shape, target)
        check_overlap("cast", out, a, in_place=same_bits)
    if a.size == 0 or made is a:
        return made
    if same_bits:
        made.copy_from(a)
        return made
    call = Call("cast", key_of("cast", (a,), (out,), target.name), (a,), (made,))
    landing.land(call, landing.packed(call, call.operands[0]), call.results[0])
    call.keep()
    return made


def _narrow(a: Array, target: DType, out: Array | None) -> Array:
    """Convert from or to a type of :data:`_STORED`."""
    ours = {*_STORED, *SHORT}
    if not {a.dtype.name, target.name} <= ours:
        other = target if a.dtype.name in ours else a.dtype
        raise UnsupportedError(f"cast converts {', '.join(sorted(ours))}, not {other}{advice(other)}")
    if out is not None:
        check_out("cast", out, a.shape, target)
        check_overlap("cast", out, a, in_place=False)
    if "float64" in (a.dtype, target):
        check_long("cast", a.device, dtypes.resolve("float64"))
    if a.dtype.is_float and a.dtype.itemsize == 2:
        return cast(cast(a, "float32"), target, out=out)
    if target.is_float and target.itemsize == 2:
        return cast(
            _by_bits(a, dtypes.float32, None, odd=True) if a.dtype == "float64" else cast(a, "float32"), target, out=out
        )
    return _by_bits(a, target, out)


def _by_bits(a: Array, target: DType, out: Array | None, *, odd: bool = False) -> Array:
    """Convert by shaders/narrow.comp; ``odd``: float64 to what is rounded to a float of 16 bits next."""
    name = "cast odd" if odd else "cast"
    done = repeat(name, (a,), (out,), target.name)
    if done is not None:
        return done[0]
    made = a.device.empty(a.shape, target) if out is None else out
    if not a.size:
        return made
    call = Call("cast", key_of(name, (a,), (out,), target.name), (a,), (made,))
    source = landing.packed(call, call.operands[0])
    if source.byte_offset % 4:
        call.forget()
        source = source.copy()
    convert_in(call, source, call.results[0], odd=odd)
    call.keep()
    return made


def cast_in(call: Call, a: Array, made: Array) -> None:
    """Convert an array of a call, with elements, to the type of a temporary one, as :func:`cast` does."""
    conversion = _CONVERSIONS.get((a.dtype.name, made.dtype.name))
    if conversion is not None:
        operands = (a, *conversion.bounds)
        launch(conversion, conversion.meaning(operands), operands, [made], call=call)
        return
    halves = [dtype.is_float and dtype.itemsize == 2 for dtype in (a.dtype, made.dtype)]
    source = landing.packed(call, a)
    if {a.dtype.name, made.dtype.name} <= set(FLOATS):
        call.convert(source, made)
    elif any(halves) or source.byte_offset % 4:
        call.forget()
        made.copy_from(cast(a, made.dtype))
    else:
        convert_in(call, source, made)


def convert_in(call: Call, source: Array, made: Array, *, odd: bool = False) -> None:
    """Convert an array of a call, whose elements lie side by side from a word on, to another one's type, by bits."""
    target = made.dtype
    direct = made.is_contiguous and made.byte_offset % 4 == 0
    direct = direct and (made.nbytes % 4 == 0 or made.byte_offset + made.nbytes == made.storage.nbytes)
    result = made if direct else call.temporary(made.shape, target)
    places = [binding(array) for array in (source, result)]
    if places[0] is None or places[1] is None:
        device, nbytes = source.device, source.nbytes
        raise UnsupportedError(f"cast: a kernel of {device} cannot see {nbytes} bytes at once; take parts of it")
    (seen, first), (put, to) = places[0], places[1]
    size, made_size = source.dtype.itemsize, target.itemsize
    told = abi.Narrow(source.size, first * size // 4, to * made_size // 4)
    kinds = (_KINDS[source.dtype.numpy.kind], _ODD if odd else _KINDS[target.numpy.kind])
    constants = abi.NarrowConstants(8 * size, 8 * made_size, *kinds)
    call.dispatch("narrow", (source, result), (seen, put), pack(told), -(-source.size // 1024), constants)
    landing.land(call, result, made)


operations.update(cast_in=cast_in)
