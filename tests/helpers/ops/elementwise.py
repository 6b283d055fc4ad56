"""What elementwise operations come to in tests: the values that types hold, and comparisons with float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vkpar.doctor.functions import F64, TINY
from vkpar.testing import U

ROUNDED = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float32": TINY, "float16": 2.0**-25, "bfloat16": TINY}
LARGEST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


def pow_bound(x: F64, y: F64) -> F64:
    # exp2(t), t = y log2(x): the logarithm errs by 8 U of itself or, between 1/2 and 2 but not near 1, by 2^-21.
    t = np.abs(y * np.log2(np.abs(x) + (x == 0)))
    off = np.abs(y) * (8 * U * np.abs(np.log2(np.abs(x) + (x == 0))) + 2.0**-21) + t * U
    return np.abs(np.float64(np.abs(x)) ** y) * (np.expm1(off) + (3 + 2 * t) * U)


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
