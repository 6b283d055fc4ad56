"""What elementwise operations come to in float64, and how far they may be from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vkpar.testing import U

F64 = NDArray[np.float64]
TINY: Final = 2.0**-126  # below it drivers may flush to zero


@dataclass(frozen=True)
class Case:
    """A function: its float64 reference, and a bound on the error of its float32 result before rounding."""

    name: str
    reference: Callable[..., F64]
    bound: Callable[..., F64]


def _erfc(x: F64) -> F64:
    return np.asarray(np.vectorize(math.erfc, otypes=[float])(x))


def _sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: F64) -> F64:
    return 0.5 * x * _erfc(-x / math.sqrt(2))


def _gelu_tanh(x: F64) -> F64:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def relative(units: float) -> Callable[..., F64]:
    """Return a bound of so many units of the reference."""
    return lambda value, *_: units * U * np.abs(value)


# Vulkan: division 2.5 units in the last place; exp 3 + 2 |x|; log 3, or 2^-21 between 1/2 and 2; square roots 2, and
# what they are divided by. U is a unit in the last place at worst.
def _exp(x: F64) -> F64:
    return (3 + 2 * np.abs(x)) * U


def _tanh_bound(value: F64, x: F64) -> F64:
    return np.asarray(8 * U * np.abs(value) + 2 * _exp(2 * np.minimum(np.abs(x), 10)) * np.exp(-2 * np.abs(x)))


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


UNARY: Final = [
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


BINARY: Final = [
    Case("add", np.add, relative(0.5)),
    Case("subtract", np.subtract, relative(0.5)),
    Case("multiply", np.multiply, relative(0.5)),
    Case("divide", np.divide, relative(2.5)),
    Case("maximum", np.maximum, relative(0)),
    Case("minimum", np.minimum, relative(0)),
]
