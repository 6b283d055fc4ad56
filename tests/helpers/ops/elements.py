"""Elements for tests of operations: values that a type holds, how far rounding to it goes, what it stores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import vkpar
from vkpar.doctor.references import ROUNDING
from vkpar.testing import U

FLOATS = ("float32", "float16", "bfloat16")


def held(values: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """The nearest values that ``dtype`` holds (bfloat16: the next toward zero), as float32."""
    values = values.astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return values.astype(dtype).astype(np.float32)


def normal(
    rng: np.random.Generator, shape: int | tuple[int, ...], dtype: str, scale: float = 1.0
) -> NDArray[np.float32]:
    """Random values that ``dtype`` holds exactly, as float32."""
    return held(rng.standard_normal(shape) * scale, dtype)


def values_of(array: vkpar.Array) -> NDArray[np.float64]:
    """The elements as float64."""
    return array.numpy().astype(np.float64)


def check(array: vkpar.Array, expected: NDArray[np.float64], error: NDArray[np.float64] | float) -> None:
    """Fail unless elements are within ``error`` of what was expected, and of one rounding to their type on top.

    NaN and infinities are to be where they were expected.
    """
    found = values_of(array)
    assert found.shape == expected.shape
    relative, least = ROUNDING[array.dtype.name]
    with np.errstate(invalid="ignore", over="ignore"):
        exact = ~np.isfinite(expected)
        np.testing.assert_array_equal(found[exact], expected[exact])
        off = np.abs(found - expected)
        most = error + relative * (np.abs(expected) + error) + least + U * np.abs(expected)
        wrong = ~exact & ~(off <= most)
    assert not wrong.any(), f"{array}: {off[wrong][:3]} off {expected[wrong][:3]}, {most[wrong][:3]} allowed"
