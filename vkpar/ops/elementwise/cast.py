"""Conversion between types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import UnsupportedError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, INTEGERS, SHORT, check_arrays, check_out, check_overlap
from vkpar.ops.call.dispatch import run_single
from vkpar.ops.elementwise.run import computed
from vkpar.ops.elementwise.shipped import Shipped
from vkpar.ops.elementwise.ways import Meaning, Operand


class _Conversion(Shipped):
    """A conversion from or to integers."""

    def __init__(self, name: str, target: str) -> None:
        super().__init__(name, "cast")
        self.key = f"cast {name} {target}"
        self._target = target

    def meaning(self, operands: Sequence[Operand]) -> Meaning:
        """Return what it means."""
        return Meaning(self._builtin.kinds[0], (operands[0].dtype.name,), (self._target,))


# By the types that they convert between; int32 and uint32 have their bits in common.
_CONVERSIONS: Final = {
    (source, target): _Conversion(f"from_{source}" if source in INTEGERS else f"to_{target}", target)
    for source in (*FLOATS, *INTEGERS)
    for target in (*FLOATS, *INTEGERS)
    if (source in INTEGERS) != (target in INTEGERS)
}


def cast(a: Array, dtype: object, *, out: Array | None = None) -> Array:
    """Return the elements of ``a`` in another type.

    Floats are rounded to nearest even: overflow gives infinity; NaN (as the canonical one) and infinity are kept;
    subnormal values are exact. Floats become integers by dropping the fraction; what is out of range becomes the
    nearest integer of the type, NaN becomes 0. Integers become floats by way of float32, rounded. int32 and uint32 keep
    their bits.

    Args:
        a: any shape; float32, float16, bfloat16, int32 or uint32, or any type when ``dtype`` is its own (then bytes are
            copied).
        dtype: float32, float16, bfloat16, int32 or uint32.
        out: where the result goes, of ``a``'s shape and of type ``dtype``; by default a new array.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; a wrong ``out``, or one in shared memory.
        UnsupportedError: a type that devices do not convert, such as float64.

    Examples:
        >>> vkpar.cast(device.array([2.7, -2.7]), "int32").tolist()
        [2, -2]
    """
    target = dtypes.resolve(dtype)
    done = run_single("cast", a, out, target.name)
    if done is not None:
        return done
    found = repeat("cast", (a,), (out,), target.name)
    if found is not None:
        return found[0]
    check_arrays("cast", out, a=a)
    conversion = _CONVERSIONS.get((a.dtype.name, target.name))
    if conversion is not None:
        return conversion(a, out=out)
    same_bits = a.dtype == target or (a.dtype.name in INTEGERS and target.name in INTEGERS)
    if not same_bits:
        if target.name not in SHORT:
            raise UnsupportedError(
                f"cast makes {', '.join(SHORT)}, not {target}; convert on the host: a.numpy().astype('{target}')"
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
