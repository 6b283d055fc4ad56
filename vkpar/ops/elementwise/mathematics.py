"""NumPy's functions of numbers and bits, by element.

Operands, types, ``out=`` and errors are those of :mod:`vkpar.ops.elementwise.functions`; docs/operations.md has the
error bounds. Those that take whole numbers, too, say so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.elementwise.functions import is_long, is_whole, logical_not, maximum, minimum
from vkpar.ops.elementwise.shipped import SHIPPED


def floor(x: Array, *, out: Array | None = None) -> Array:
    """Return the largest whole numbers not above ``x``; whole numbers stay.

    Examples:
        >>> vkpar.floor(device.array([1.5, -1.5])).tolist()
        [1.0, -2.0]
    """
    return SHIPPED["fill" if is_whole(x) else "floor"](x, out=out)


def ceil(x: Array, *, out: Array | None = None) -> Array:
    """Return the least whole numbers not below ``x``; whole numbers stay.

    Examples:
        >>> vkpar.ceil(device.array([1.5, -1.5])).tolist()
        [2.0, -1.0]
    """
    return SHIPPED["fill" if is_whole(x) else "ceil"](x, out=out)


def round(x: Array, *, out: Array | None = None) -> Array:
    """Return the nearest whole numbers, halves to even ones; whole numbers stay.

    Examples:
        >>> vkpar.round(device.array([0.5, 1.5])).tolist()
        [0.0, 2.0]
    """
    return SHIPPED["fill" if is_whole(x) else "round"](x, out=out)


def trunc(x: Array, *, out: Array | None = None) -> Array:
    """Return ``x`` without its fraction; whole numbers stay.

    Examples:
        >>> vkpar.trunc(device.array([1.5, -1.5])).tolist()
        [1.0, -1.0]
    """
    return SHIPPED["fill" if is_whole(x) else "trunc"](x, out=out)


def sign(x: Array, *, out: Array | None = None) -> Array:
    """Return -1, 0 or 1, by the sign of ``x``; NaN stays; whole numbers, too.

    Examples:
        >>> vkpar.sign(device.array([3.0, -5.0])).tolist()
        [1.0, -1.0]
    """
    return clip(x, 0 if x.dtype.numpy.kind in "ub" else -1, 1, out=out) if is_whole(x) else SHIPPED["sign"](x, out=out)


def square(x: Array, *, out: Array | None = None) -> Array:
    """Return ``x * x``; whole numbers wrap.

    Examples:
        >>> vkpar.square(device.array([3.0, -5.0])).tolist()
        [9.0, 25.0]
    """
    return SHIPPED["multiply"](x, x, out=out) if is_whole(x) else SHIPPED["square"](x, out=out)


def reciprocal(x: Array, *, out: Array | None = None) -> Array:
    """Return ``1 / x`` of floats: infinity of zero.

    Examples:
        >>> vkpar.reciprocal(device.array([4.0])).tolist()
        [0.25]
    """
    return SHIPPED["reciprocal"](x, out=out)


def sin(x: Array, *, out: Array | None = None) -> Array:
    """Return the sine of floats in radians; NaN of infinity.

    Examples:
        >>> vkpar.sin(device.array([0.0])).tolist()
        [0.0]
    """
    return SHIPPED["sin"](x, out=out)


def cos(x: Array, *, out: Array | None = None) -> Array:
    """Return the cosine of floats in radians; NaN of infinity.

    Examples:
        >>> vkpar.cos(device.array([0.0])).tolist()
        [1.0]
    """
    return SHIPPED["cos"](x, out=out)


def tan(x: Array, *, out: Array | None = None) -> Array:
    """Return the tangent of floats in radians; NaN of infinity.

    Examples:
        >>> vkpar.tan(device.array([0.0])).tolist()
        [0.0]
    """
    return SHIPPED["tan"](x, out=out)


def arcsin(x: Array, *, out: Array | None = None) -> Array:
    """Return the angles of sines, from -pi/2 to pi/2; NaN of what is beyond -1 and 1.

    Examples:
        >>> vkpar.arcsin(device.array([0.0])).tolist()
        [0.0]
    """
    return SHIPPED["arcsin"](x, out=out)


def arccos(x: Array, *, out: Array | None = None) -> Array:
    """Return the angles of cosines, from 0 to pi; NaN of what is beyond -1 and 1.

    Examples:
        >>> vkpar.arccos(device.array([1.0])).tolist()
        [0.0]
    """
    return SHIPPED["arccos"](x, out=out)


def arctan(x: Array, *, out: Array | None = None) -> Array:
    """Return the angles of tangents, from -pi/2 to pi/2.

    Examples:
        >>> vkpar.arctan(device.array([0.0])).tolist()
        [0.0]
    """
    return SHIPPED["arctan"](x, out=out)


def sinh(x: Array, *, out: Array | None = None) -> Array:
    """Return the hyperbolic sine of floats.

    Examples:
        >>> vkpar.sinh(device.array([0.0])).tolist()
        [0.0]
    """
    return SHIPPED["sinh"](x, out=out)


def cosh(x: Array, *, out: Array | None = None) -> Array:
    """Return the hyperbolic cosine of floats.

    Examples:
        >>> vkpar.cosh(device.array([0.0])).tolist()
        [1.0]
    """
    return SHIPPED["cosh"](x, out=out)


def log2(x: Array, *, out: Array | None = None) -> Array:
    """Return the logarithm to base 2, of floats: -infinity of zero, NaN of what is less.

    Examples:
        >>> vkpar.log2(device.array([1.0])).tolist()
        [0.0]
    """
    return SHIPPED["log2"](x, out=out)


def log10(x: Array, *, out: Array | None = None) -> Array:
    """Return the logarithm to base 10, of floats: -infinity of zero, NaN of what is less.

    Examples:
        >>> vkpar.log10(device.array([1.0])).tolist()
        [0.0]
    """
    return SHIPPED["log10"](x, out=out)


def log1p(x: Array, *, out: Array | None = None) -> Array:
    """Return the natural logarithm of ``1 + x``, exact to the last places near 0, too.

    Examples:
        >>> vkpar.log1p(device.array([0.0])).tolist()
        [0.0]
    """
    return SHIPPED["log1p"](x, out=out)


def expm1(x: Array, *, out: Array | None = None) -> Array:
    """Return ``exp(x) - 1``, exact to the last places near 0, too.

    Examples:
        >>> vkpar.expm1(device.array([0.0])).tolist()
        [0.0]
    """
    return SHIPPED["expm1"](x, out=out)


def exp2(x: Array, *, out: Array | None = None) -> Array:
    """Return 2 to the power of ``x``, of floats.

    Examples:
        >>> vkpar.exp2(device.array([3.0])).tolist()
        [8.0]
    """
    return SHIPPED["exp2"](x, out=out)


def erf(x: Array, *, out: Array | None = None) -> Array:
    """Return the error function of floats.

    Examples:
        >>> vkpar.erf(device.array([0.0])).tolist()
        [0.0]
    """
    return SHIPPED["erf"](x, out=out)


def arctan2(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the angles of points (``b``, ``a``), from -pi to pi, by NumPy's rules of signs; floats.

    Examples:
        >>> vkpar.arctan2(device.array([0.0]), 1.0).tolist()
        [0.0]
    """
    return SHIPPED["arctan2"](a, b, out=out)


def hypot(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the root of ``a * a + b * b``, which does not overflow on the way; floats.

    Examples:
        >>> vkpar.hypot(device.array([3.0]), 4.0).tolist()
        [5.0]
    """
    return SHIPPED["hypot"](a, b, out=out)


def mod(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the remainder, with the sign of ``b``; 0 of a whole number by 0, NaN of a float.

    Examples:
        >>> vkpar.mod(device.array([7, -7]), 4).tolist()
        [3, 1]
    """
    return SHIPPED["mod"](a, b, out=out)


def floor_divide(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the whole number below ``a / b``; 0 of a whole number by 0.

    Examples:
        >>> vkpar.floor_divide(device.array([7, -7]), 4).tolist()
        [1, -2]
    """
    return SHIPPED["floor_divide"](a, b, out=out)


def bitwise_and(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the bits that both whole numbers have.

    Examples:
        >>> vkpar.bitwise_and(device.array([6, 5]), 3).tolist()
        [2, 1]
    """
    return SHIPPED["bitwise_and"](a, b, out=out)


def bitwise_or(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the bits that one of two whole numbers has.

    Examples:
        >>> vkpar.bitwise_or(device.array([6, 5]), 3).tolist()
        [7, 7]
    """
    return SHIPPED["bitwise_or"](a, b, out=out)


def bitwise_xor(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return the bits in which whole numbers differ.

    Examples:
        >>> vkpar.bitwise_xor(device.array([6, 5]), 3).tolist()
        [5, 6]
    """
    return SHIPPED["bitwise_xor"](a, b, out=out)


def left_shift(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return ``a`` with its bits ``b`` places higher; 0 from 32 places on.

    Examples:
        >>> vkpar.left_shift(device.array([1, 3]), 2).tolist()
        [4, 12]
    """
    return SHIPPED["left_shift"](a, b, out=out)


def right_shift(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return ``a`` with its bits ``b`` places lower, rounded down.

    Examples:
        >>> vkpar.right_shift(device.array([8, -1]), 2).tolist()
        [2, -1]
    """
    return SHIPPED["right_shift"](a, b, out=out)


def invert(x: Array, *, out: Array | None = None) -> Array:
    """Return whole numbers with all their bits turned.

    Examples:
        >>> vkpar.invert(device.array([0, 5])).tolist()
        [-1, -6]
    """
    dtype = getattr(x, "dtype", None)
    if dtype == "bool":
        return logical_not(x, out=out)
    every = int(np.iinfo(dtype.numpy).max) if dtype is not None and dtype.numpy.kind == "u" else -1
    return SHIPPED["bitwise_xor"](x, every, out=out)


def clip(x: Array, low: Any = None, high: Any = None, *, out: Array | None = None) -> Array:
    """Return ``x`` where it is between ``low`` and ``high``, else the nearer of them; floats and whole numbers.

    Args:
        x: the array; NaN stays.
        low: an array or a number; None for no lower bound.
        high: an array or a number, which is the result where it is below ``low``; None for no upper bound.
        out: where the result goes.

    Raises:
        InvalidUsageError: neither bound; as the others.

    Examples:
        >>> vkpar.clip(device.array([-3, 1, 7]), 0, 5).tolist()
        [0, 1, 5]
    """
    if low is None and high is None:
        raise InvalidUsageError("clip takes a bound, low or high or both")
    if low is None:
        return minimum(x, high, out=out)
    if high is None:
        return maximum(x, low, out=out)
    if is_long(x):
        return minimum(maximum(x, low), high, out=out)
    return SHIPPED["clip"](x, low, high, out=out)
