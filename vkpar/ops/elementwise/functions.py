"""Arithmetic, comparisons and functions of arrays by element.

All take arrays of one device, of which one may be a number, broadcast as NumPy does, and take ``out=``: where the
result goes, of its shape and type; it may be an operand itself, and share no other memory with one. float32, float16
and bfloat16 mix as ``np.result_type`` says (bfloat16 with another float gives float32), are computed in float32 and
rounded once; int32 and uint32 wrap. Integers that meet floats, arrays or numbers, are converted to the floats' type
first (float32 where a number is the float), and int32 is compared with uint32 as the numbers that they are. Whole
numbers of 8 and 16 bits are computed in 32 and stored as NumPy stores them; comparisons give bool.
docs/operations.md has the error bounds.
"""

from __future__ import annotations

from typing import Any

from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.checks import NARROW, NUMBERS
from vkpar.ops.elementwise.expressions import INTEGERS, LONG
from vkpar.ops.elementwise.shipped import SHIPPED, Comparison, Shipped

_greater, _greater_equal = Comparison("less", "greater"), Comparison("less_equal", "greater_equal")
_pow = Shipped("power", "pow")


def subtract(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return ``a - b``; floats and integers.

    Examples:
        >>> vkpar.subtract(device.array([3, 5], "float32"), 1).tolist()
        [2.0, 4.0]
    """
    return SHIPPED["subtract"](a, b, out=out)


def multiply(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return ``a * b``; floats and integers.

    Examples:
        >>> vkpar.multiply(device.array([3, 5], "float32"), 2).tolist()
        [6.0, 10.0]
    """
    return SHIPPED["multiply"](a, b, out=out)


def divide(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return ``a / b`` of floats; a division by zero gives infinity, or NaN of zero.

    Examples:
        >>> vkpar.divide(device.array([3, 5], "float32"), 2).tolist()
        [1.5, 2.5]
    """
    return SHIPPED["divide"](a, b, out=out)


def pow(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return ``a`` to the power of ``b``, of floats; NaN of a negative ``a`` where ``b`` is no whole number.

    The numbers 2, 1, 0.5 and -1 as ``b`` are a product, the array itself, a root and a quotient.

    Examples:
        >>> vkpar.pow(device.array([3, 5], "float32"), 2).tolist()
        [9.0, 25.0]
    """
    if isinstance(a, Array) and isinstance(b, (int, float)) and a.dtype.is_float:
        if b == 2:
            return SHIPPED["multiply"](a, a, out=out)
        if b == 0.5:
            return SHIPPED["sqrt"](a, out=out)
        if b == -1:
            return SHIPPED["divide"](1.0, a, out=out)
    return _pow(a, b, out=out)


def maximum(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the larger of ``a`` and ``b``, NaN where one is NaN; floats and integers.

    Examples:
        >>> vkpar.maximum(device.array([3, 5], "float32"), 4).tolist()
        [4.0, 5.0]
    """
    return SHIPPED["maximum"](a, b, out=out)


def minimum(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the smaller of ``a`` and ``b``, NaN where one is NaN; floats and integers.

    Examples:
        >>> vkpar.minimum(device.array([3, 5], "float32"), 4).tolist()
        [3.0, 4.0]
    """
    return SHIPPED["minimum"](a, b, out=out)


def equal(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether ``a == b``, as bool; NaN equals nothing.

    Examples:
        >>> vkpar.equal(device.array([3, 5], "float32"), 5).tolist()
        [False, True]
    """
    return SHIPPED["equal"](a, b, out=out)


def not_equal(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether ``a != b``, as bool.

    Examples:
        >>> vkpar.not_equal(device.array([3, 5], "float32"), 5).tolist()
        [True, False]
    """
    return SHIPPED["not_equal"](a, b, out=out)


def less(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether ``a < b``, as bool.

    Examples:
        >>> vkpar.less(device.array([3, 5], "float32"), 5).tolist()
        [True, False]
    """
    return SHIPPED["less"](a, b, out=out)


def less_equal(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether ``a <= b``, as bool.

    Examples:
        >>> vkpar.less_equal(device.array([3, 5], "float32"), 5).tolist()
        [True, True]
    """
    return SHIPPED["less_equal"](a, b, out=out)


def greater(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether ``a > b``, as bool.

    Examples:
        >>> vkpar.greater(device.array([3, 5], "float32"), 3).tolist()
        [False, True]
    """
    return _greater(b, a, out=out)


def greater_equal(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether ``a >= b``, as bool.

    Examples:
        >>> vkpar.greater_equal(device.array([3, 5], "float32"), 5).tolist()
        [False, True]
    """
    return _greater_equal(b, a, out=out)


def is_whole(x: object) -> bool:
    """Say whether something is an array of whole numbers."""
    return isinstance(x, Array) and (x.dtype.name in INTEGERS or x.dtype.name in NARROW)


def is_long(x: object) -> bool:
    """Say whether something is an array of elements of 64 bits."""
    return isinstance(x, Array) and x.dtype.name in LONG


def isnan(x: Array, *, out: Array | None = None) -> Array:
    """Return whether ``x`` is NaN, as bool.

    Examples:
        >>> vkpar.isnan(device.array([1.0, float("nan")])).tolist()
        [False, True]
    """
    return SHIPPED["not_equal"](x, x, out=out) if is_whole(x) else SHIPPED["isnan"](x, out=out)


def isinf(x: Array, *, out: Array | None = None) -> Array:
    """Return whether ``x`` is infinite, as bool.

    Examples:
        >>> vkpar.isinf(device.array([1.0, float("inf")])).tolist()
        [False, True]
    """
    return SHIPPED["not_equal"](x, x, out=out) if is_whole(x) else SHIPPED["isinf"](x, out=out)


def isfinite(x: Array, *, out: Array | None = None) -> Array:
    """Return whether ``x`` is neither NaN nor infinite, as bool.

    Examples:
        >>> vkpar.isfinite(device.array([1.0, float("inf")])).tolist()
        [True, False]
    """
    return SHIPPED["equal"](x, x, out=out) if is_whole(x) else SHIPPED["isfinite"](x, out=out)


def logical_and(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether both are other than 0, as bool; NaN is no 0.

    Examples:
        >>> vkpar.logical_and(device.array([0, 2]), 3).tolist()
        [False, True]
    """
    return SHIPPED["logical_and"](a, b, out=out)


def logical_or(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether one is other than 0, as bool; NaN is no 0.

    Examples:
        >>> vkpar.logical_or(device.array([0, 2]), 0).tolist()
        [False, True]
    """
    return SHIPPED["logical_or"](a, b, out=out)


def logical_xor(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return whether one of two is 0 and the other is not, as bool.

    Examples:
        >>> vkpar.logical_xor(device.array([0, 2]), 3).tolist()
        [True, False]
    """
    return SHIPPED["logical_xor"](a, b, out=out)


def logical_not(x: Array, *, out: Array | None = None) -> Array:
    """Return whether ``x`` is 0, as bool; NaN is no 0.

    Examples:
        >>> vkpar.logical_not(device.array([0, 2])).tolist()
        [True, False]
    """
    return SHIPPED["bitwise_xor"](x, True, out=out) if getattr(x, "dtype", None) == "bool" else equal(x, 0, out=out)


def where(condition: Any, a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return ``a`` where ``condition`` is not zero, else ``b``.

    Args:
        condition: of any computed type, or a number; NaN is not zero.
        a: an array or a number; numbers alone give float32, or int32 where both are whole.
        b: as ``a``.
        out: where the result goes.

    Raises:
        InvalidUsageError: no array, closed ones, or arrays of several devices; shapes that do not broadcast; a wrong
            ``out``.
        UnsupportedError: a type that devices do not compute, such as float64.

    Examples:
        >>> a = device.array([3.0, -5.0])
        >>> vkpar.where(a > 0, a, 0).tolist()
        [3.0, 0.0]
    """
    if isinstance(condition, Array) and condition.dtype.is_float:
        condition = not_equal(condition, 0.0)
    elif isinstance(condition, NUMBERS):
        condition = bool(condition)
    return SHIPPED["where"](condition, a, b, out=out)


def exp(x: Array, *, out: Array | None = None) -> Array:
    """Return e to the power of ``x``, of floats.

    Examples:
        >>> vkpar.exp(device.array([0], "float32")).tolist()
        [1.0]
    """
    return SHIPPED["exp"](x, out=out)


def log(x: Array, *, out: Array | None = None) -> Array:
    """Return the natural logarithm of floats: -infinity of zero, NaN of what is less.

    Examples:
        >>> vkpar.log(device.array([1], "float32")).tolist()
        [0.0]
    """
    return SHIPPED["log"](x, out=out)


def sqrt(x: Array, *, out: Array | None = None) -> Array:
    """Return the square root of floats: NaN of what is less than zero.

    Examples:
        >>> round(float(vkpar.sqrt(device.array([9.0]))), 3)
        3.0
    """
    return SHIPPED["sqrt"](x, out=out)


def rsqrt(x: Array, *, out: Array | None = None) -> Array:
    """Return one over the square root of floats: infinity of zero, NaN of what is less.

    Examples:
        >>> round(float(vkpar.rsqrt(device.array([4.0]))), 3)
        0.5
    """
    return SHIPPED["rsqrt"](x, out=out)


def abs(x: Array, *, out: Array | None = None) -> Array:
    """Return absolute values; of the least int32 it is that itself, as NumPy's is.

    Examples:
        >>> vkpar.abs(device.array([3, -5], "float32")).tolist()
        [3.0, 5.0]
    """
    if is_long(x):
        return maximum(x, x if x.dtype == "uint64" else negative(x), out=out)
    return SHIPPED["abs"](x, out=out) if getattr(x, "dtype", None) != "uint32" else SHIPPED["fill"](x, out=out)


def negative(x: Array, *, out: Array | None = None) -> Array:
    """Return ``-x``; of uint32 what wraps to zero with ``x``.

    Examples:
        >>> vkpar.negative(device.array([3, -5], "float32")).tolist()
        [-3.0, 5.0]
    """
    if is_long(x):
        return multiply(x, -1.0, out=out) if x.dtype.is_float else subtract(0, x, out=out)
    return SHIPPED["negative"](x, out=out)


def relu(x: Array, *, out: Array | None = None) -> Array:
    """Return ``x`` where it is more than zero, else 0; NaN stays.

    Examples:
        >>> vkpar.relu(device.array([3, -5], "float32")).tolist()
        [3.0, 0.0]
    """
    return SHIPPED["relu"](x, out=out) if getattr(x, "dtype", None) != "uint32" else SHIPPED["fill"](x, out=out)


def tanh(x: Array, *, out: Array | None = None) -> Array:
    """Return the hyperbolic tangent of floats.

    Examples:
        >>> vkpar.tanh(device.array([0], "float32")).tolist()
        [0.0]
    """
    return SHIPPED["tanh"](x, out=out)


def sigmoid(x: Array, *, out: Array | None = None) -> Array:
    """Return ``1 / (1 + exp(-x))`` of floats.

    Examples:
        >>> vkpar.sigmoid(device.array([0], "float32")).tolist()
        [0.5]
    """
    return SHIPPED["sigmoid"](x, out=out)


def silu(x: Array, *, out: Array | None = None) -> Array:
    """Return ``x * sigmoid(x)`` of floats (swish); NaN of -infinity, as torch's.

    Examples:
        >>> vkpar.silu(device.array([0], "float32")).tolist()
        [0.0]
    """
    return SHIPPED["silu"](x, out=out)


def gelu(x: Array, *, approximate: str = "none", out: Array | None = None) -> Array:
    """Return ``x`` times the share of a normal distribution below it, of floats; NaN of -infinity, as torch's.

    Args:
        x: the array.
        approximate: ``"none"``, or ``"tanh"`` for the approximation by a hyperbolic tangent.
        out: where the result goes.

    Raises:
        InvalidUsageError: another ``approximate``; as the others.

    Examples:
        >>> vkpar.gelu(device.array([0], "float32")).tolist()
        [0.0]
    """
    if approximate not in ("none", "tanh"):
        raise InvalidUsageError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return SHIPPED["gelu" if approximate == "none" else "gelu_tanh"](x, out=out)
