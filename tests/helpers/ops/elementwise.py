"""What elementwise operations come to in float64, and how far they may be from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
U = 2.0**-23  # the relative error of one float32 operation that Vulkan allows
TINY = 2.0**-126  # below it drivers may flush to zero
ROUNDED = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float32": TINY, "float16": 2.0**-25, "bfloat16": TINY}
LARGEST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}


@dataclass(frozen=True)
class Case:
    """A function: its float64 reference, and a bound on the error of its float32 result before rounding."""

    name: str
    reference: Callable[..., F64]
    bound: Callable[..., F64]


def _erf(x: F64) -> F64:
    return np.vectorize(math.erf, otypes=[float])(x)


def _erfc(x: F64) -> F64:
    return np.vectorize(math.erfc, otypes=[float])(x)


def _sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: F64) -> F64:
    return 0.5 * x * _erfc(-x / math.sqrt(2))


def _gelu_tanh(x: F64) -> F64:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def pow_bound(x: F64, y: F64) -> F64:
    # exp2(t), t = y log2(x): the logarithm errs by 8 U of itself or, between 1/2 and 2 but not near 1, by 2^-21.
    t = np.abs(y * np.log2(np.abs(x) + (x == 0)))
    off = np.abs(y) * (8 * U * np.abs(np.log2(np.abs(x) + (x == 0))) + 2.0**-21) + t * U
    return np.abs(np.float64(np.abs(x)) ** y) * (np.expm1(off) + (3 + 2 * t) * U)


def relative(units: float) -> Callable[..., F64]:
    """Return a bound of so many units of the reference."""
    return lambda value, *operands: units * U * np.abs(value)


# Vulkan: division 2.5 units in the last place; exp 3 + 2 |x|; log 3, or 2^-21 between 1/2 and 2; square roots 2, and
# what they are divided by. U is a unit in the last place at worst.
def _exp(x: F64) -> F64:
    return (3 + 2 * np.abs(x)) * U


def _tanh_bound(value: F64, x: F64) -> F64:
    return 8 * U * np.abs(value) + 2 * _exp(2 * np.minimum(np.abs(x), 10)) * np.exp(-2 * np.abs(x))


def _silu_bound(value: F64, x: F64) -> F64:
    return (4 + _exp(x) / U) * U * np.abs(value) + TINY * np.abs(x)


def _gelu_bound(value: F64, x: F64) -> F64:
    # erfc is t exp(-z^2 - 1.27 + p(t)), within 1.2e-7. z errs by U of itself, so z^2 and its two sums by 1.75 U x^2 and
    # 1.3 U, t by 4 U of itself, p by 6.6 U (its steps' sizes added up) and by 4 U of t p'(t), which is 1.26 at most;
    # exp by (3 + x^2 + 2.6) U; t and the products and differences around it by 4 U and 1.5 U.
    return np.abs(value) * (1.3e-7 + (24 + 2.75 * x**2) * U) + TINY * np.abs(x)


def _gelu_tanh_bound(value: F64, x: F64) -> F64:
    cubic = np.abs(0.8 * (x + 0.044715 * x**3))
    return np.abs(value) * (8 * U + _exp(2 * cubic) + 8 * cubic * U) + TINY * np.abs(x)


UNARY = [
    Case("exp", np.exp, lambda value, x: _exp(x) * value),
    Case("log", np.log, lambda value, x: 8 * U * np.abs(value) + np.where((x > 0.5) & (x < 2), 2.0**-21, 0)),
    Case("sqrt", np.sqrt, relative(5)),
    Case("rsqrt", lambda x: 1 / np.sqrt(x), relative(2)),
    Case("tanh", np.tanh, _tanh_bound),
    Case("sigmoid", _sigmoid, lambda value, x: (4 + _exp(x) / U) * U * value),
    Case("silu", lambda x: x * _sigmoid(x), _silu_bound),
    Case("gelu", _gelu, _gelu_bound),
    Case("gelu_tanh", _gelu_tanh, _gelu_tanh_bound),
    Case("negative", np.negative, relative(0)),
    Case("abs", np.abs, relative(0)),
    Case("relu", lambda x: np.maximum(x, 0), relative(0)),
]


BINARY = [
    Case("add", np.add, relative(0.5)),
    Case("subtract", np.subtract, relative(0.5)),
    Case("multiply", np.multiply, relative(0.5)),
    Case("divide", np.divide, relative(2.5)),
    Case("maximum", np.maximum, relative(0)),
    Case("minimum", np.minimum, relative(0)),
]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


def held(values: Any, dtype: str) -> NDArray[np.float32]:
    """Return the values that ``dtype`` holds nearest to these, as float32."""
    with np.errstate(over="ignore"):
        values = np.asarray(values, np.float32)
        if dtype == "bfloat16":
            bits = values.view(np.uint32).astype(np.uint64)
            made = (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
            return np.where(np.isnan(values), values, made)
        return values.astype(dtype).astype(np.float32)


def seen(array: Any) -> NDArray[Any]:
    """Return an array's values, bfloat16 as float32."""
    values = array.numpy()
    return values.astype(np.float32) if array.dtype == "bfloat16" else values


def check(got: NDArray[Any], want: F64, bound: F64, dtype: str) -> None:
    """Compare with float64: special values exactly, all else within the bound and the rounding to ``dtype``."""
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    allowed = bound * (1 + ROUNDED[dtype]) + ROUNDED[dtype] * np.abs(want) + SMALLEST[dtype]
    near = np.abs(want) + allowed >= LARGEST[dtype] * (1 + ROUNDED[dtype])  # it may round to infinity
    fine = np.isnan(want) | (got == want) | (np.abs(got - want) <= allowed)
    fine |= near & (got == np.copysign(np.inf, want))
    worst = np.flatnonzero(~fine.ravel())[:4]
    assert fine.all(), (got.ravel()[worst], want.ravel()[worst], allowed.ravel()[worst])
