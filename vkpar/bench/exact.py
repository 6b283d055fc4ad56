"""Integer-valued data on which every correct result is exact, so that one wrong bit can be counted."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.random import Generator  # imported here: NumPy's lazy import can swallow a Ctrl-C

from vkpar.array import Array, bfloat16_bits
from vkpar.demo.bounds import wire_of
from vkpar.dtypes import DType, bfloat16

Host = np.ndarray[Any, Any]

_LARGEST: Final = 15
_LARGEST_FACTOR: Final = 8
# Whole numbers up to these are exact in the dtype.
_EXACT: Final = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24}


def largest_term(dtype: DType, wire: str, nranks: int) -> int:
    """Return the largest magnitude of a term such that every partial sum over the ranks is exact, on the wire too."""
    exact = min(wire_of(wire).exact, _EXACT["float32"]) if dtype.name == "float32" else _EXACT.get(dtype.name, 2**31)
    return max(1, min(_LARGEST, exact // nranks))


def largest_factor(depth: int) -> int:
    """Return the largest magnitude of a factor such that sums of ``depth`` products are exact in float32."""
    return max(1, min(_LARGEST_FACTOR, math.isqrt(_EXACT["float32"] // max(depth, 1))))


def integers(generator: Generator, shape: tuple[int, ...], dtype: DType, largest: int) -> Host:
    """Return random whole numbers: any bits for integer types, magnitudes up to ``largest`` in float32 for floats."""
    if dtype.is_float:
        return generator.integers(-largest, largest, shape, np.int8, endpoint=True).astype(np.float32)
    bounds = np.iinfo(dtype.numpy)
    return generator.integers(bounds.min, bounds.max, shape, dtype.numpy, endpoint=True)


def poison(array: Array) -> None:
    """Fill ``array`` with what no correct result holds everywhere: NaN, or a conspicuous integer."""
    if array.dtype.is_float:
        array.write(np.full(array.shape, np.nan, np.float32))
    else:
        array.write(np.full(array.shape, 0x5EADBEEF, array.dtype.numpy))


def rounded(expected: Host, dtype: DType) -> Host:
    """Return the exact float32 or integer ``expected`` as the dtype holds it, rounded to nearest even."""
    return bfloat16_bits(expected) if dtype == bfloat16 else expected.astype(dtype.numpy, copy=False)


def values(host: Host, dtype: DType) -> Host:
    """Return what ``Array.numpy`` gave as numbers (bfloat16 comes as bit patterns)."""
    return (host.astype(np.uint32) << 16).view(np.float32) if dtype == bfloat16 else host


def count_wrong(array: Array, expected: Host) -> int:
    """Return how many elements of ``array`` differ from ``expected``, given as the dtype holds it; NaN always does."""
    result, wanted = values(array.numpy(), array.dtype), values(expected, array.dtype)
    return int(np.count_nonzero(result != wanted))
