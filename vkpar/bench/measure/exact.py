"""What ranks are given and what they must get: numbers whose every rounding is exact, or a bound, derived here.

**Exact data.** Floats are whole numbers so small that no sum of them is rounded, on the wire neither; factors are plus
or minus 2^-1, 1 or 2, so that products are powers of two; what is divided by a number of ranks that is no power of two
is a multiple of it, so that rounding the quotient to a half gives it back. Integers are any bits, factors odd ones:
sums and products wrap, and averages are such sums divided, rounded toward zero. Whatever is only moved, or compared,
covers all whole numbers that the type holds. A wrong element is one that differs.

**A bound** takes its place where no numbers survive: on the q8 wire, and in averages of float32 and float64 over a
number of ranks that is no power of two. A wrong element then is one that is further from the true result, in float64,
than that. Let B be the largest magnitude of any element of any rank. A sum of n such numbers, and every partial sum, is
at most n B in magnitude, and a product B^n; call it S. A number v that crosses a link is off by at most ``relative``
times its size + ``block`` times the largest magnitude in its block, see :mod:`vkpar.testing`, hence by (relative +
block) S; an operation rounds by at most U S. Each rank but an element's owner encodes once on the element's way to the
owner, the owner once the result, which makes n encodings for every algorithm; there are n - 1 operations. Errors are
themselves encoded and added, so that with growth = (1 + relative + block) (1 + U)

    | result - true result | <= (growth^n (1 + U)^2 - 1) S.

An average multiplies the sum by 1/n, rounded: two roundings more, hence the square, and S is B. For float64, which no
wire rounds, U is 2^-53, and the true result in float64 is rounded as well: a cube.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.random import Generator  # imported here: NumPy's lazy import can swallow a Ctrl-C

from vkpar.arrays.array import Array
from vkpar.dtypes import DType, float32
from vkpar.testing import U, wire_of

Host = np.ndarray[Any, Any]

OPS: Final = ("sum", "prod", "max", "min", "avg")
_COMBINE: Final = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_LARGEST: Final = 15
_LARGEST_FACTOR: Final = 8
_LARGEST_EXPONENT: Final = 14  # 2^-14 to 2^14 are normal halves, and 28 binary digits fit a block of the f16 wire
# Whole numbers up to these are exact in the dtype.
_EXACT: Final = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}


def largest_term(dtype: DType, wire: str, nranks: int) -> int:
    """Return the largest magnitude of a term such that every partial sum over the ranks is exact, on the wire too.

    Where nothing is exact on the wire, it is that of the others.
    """
    exact = _EXACT.get(dtype.name, 2**31)
    if dtype == float32:
        exact = min(wire_of(wire).exact or exact, exact)
    return max(1, min(_LARGEST, exact // nranks))


def largest_factor(depth: int) -> int:
    """Return the largest magnitude of a factor such that sums of ``depth`` products are exact in float32."""
    return max(1, min(_LARGEST_FACTOR, math.isqrt(_EXACT["float32"] // max(depth, 1))))


def integers(generator: Generator, shape: tuple[int, ...], dtype: DType, largest: int) -> Host:
    """Return random whole numbers: any bits for integer types, magnitudes up to ``largest`` in float32 for floats."""
    if dtype.is_float:
        width = np.int8 if largest < 2**7 else np.int32
        return generator.integers(-largest, largest, shape, width, endpoint=True).astype(np.float32)
    bounds = np.iinfo(dtype.numpy)
    return generator.integers(bounds.min, bounds.max, shape, dtype.numpy, endpoint=True)


def anything(generator: Generator, shape: tuple[int, ...], dtype: DType) -> Host:
    """Return random whole numbers over all that ``dtype`` holds exactly, as ``Array.write`` takes them."""
    if dtype.name == "float64":
        return generator.integers(-_EXACT["float64"], _EXACT["float64"], shape, np.int64).astype(np.float64)
    return integers(generator, shape, dtype, _EXACT.get(dtype.name, 0))


@dataclass(frozen=True)
class Terms:
    """What the ranks of a reduction contribute, and how far its result may be from the true one.

    Attributes:
        op: one of :data:`OPS`.
        wire: how float32 crosses links.
    """

    op: str
    dtype: DType
    wire: str
    nranks: int

    @property
    def takes_wire(self) -> bool:
        """True where numbers may be rounded to cross a link; all else travels exactly."""
        return self.dtype == float32 and self.op not in ("max", "min")

    @property
    def is_exact(self) -> bool:
        """True where every correct result is exact."""
        if self.nranks == 1 or not (self.takes_wire or self._is_double):
            return True
        divides = self.op != "avg" or self._halves
        return divides and (self._is_double or wire_of(self.wire).exact > 0)

    @property
    def bound(self) -> float:
        """How far a correct element may be from the true one; 0.0 where it must be equal."""
        if self.is_exact:
            return 0.0
        wire, n = wire_of(self.wire), self.nranks
        growth = ((1.0 + wire.relative + wire.block) * (1.0 + U)) ** n * (1.0 + U) ** 2
        if self._is_double:
            growth = 1.0 + (n + 3) * 2.0**-53 * 1.0001  # the power, to more digits than float64 has
        largest = float(self._largest)
        return (growth - 1.0) * {"sum": n * largest, "avg": largest, "prod": largest**n}[self.op]

    def describe(self) -> str:
        """Return what is checked, in words."""
        if not self.dtype.is_float:
            numbers = "odd numbers" if self.op == "prod" else "any integers"
        else:
            numbers = "powers of two" if self.op == "prod" else "whole numbers"
        if self.is_exact:
            return f"exact: {numbers}, every element must be equal to the true result"
        return f"bound: {numbers}, every element must be within {self.bound:.3g} of the true result"

    def draw(self, generator: Generator, count: int) -> Host:
        """Return one rank's contribution, as ``Array.write`` takes it."""
        shape = (count,)
        if self.op == "prod" and self.dtype.is_float:
            signs = generator.integers(0, 1, shape, np.int8, endpoint=True) * np.float32(2) - np.float32(1)
            most = int(self.is_exact and self.nranks <= _LARGEST_EXPONENT)
            exponents = generator.integers(-most, most, shape, np.int8, endpoint=True)
            return np.asarray(np.ldexp(signs, exponents), np.float32)
        if self.op in ("max", "min"):
            return anything(generator, shape, self.dtype)
        drawn = integers(generator, shape, self.dtype, self._largest)
        if self.op == "prod":
            drawn |= drawn.dtype.type(1)
        if self.op == "avg" and self._multiples:
            drawn *= np.float32(self.nranks)
        return drawn

    def combine(self, total: Host | None, part: Host) -> Host:
        """Add one rank's contribution to the others'; ``total``, None at first, may be overwritten."""
        return part.copy() if total is None else np.asarray(_COMBINE[self.op](total, part, out=total))

    def finish(self, total: Host) -> Host:
        """Return the true result: as the dtype holds it where that is exact, else in float64."""
        if self.op == "avg" and not self.dtype.is_float:
            return truncated_quotient(total, self.nranks)
        result = total if self.op != "avg" else np.divide(total, self.nranks, dtype=np.float64)
        return rounded(result, self.dtype) if self.is_exact else result.astype(np.float64)

    @property
    def _is_double(self) -> bool:
        return self.dtype.name == "float64"

    @property
    def _halves(self) -> bool:
        return self.nranks & (self.nranks - 1) == 0

    @property
    def _multiples(self) -> bool:
        return self.is_exact and not self._halves and self.dtype.is_float

    @property
    def _largest(self) -> int:
        return 1 if self.op == "prod" else largest_term(self.dtype, self.wire, self.nranks)


def truncated_quotient(numbers: Host, divisor: int) -> Host:
    """Return integers divided by a positive one, rounded toward zero, as NumPy's ``//`` does not."""
    negative = numbers < 0
    magnitudes = np.where(negative, -numbers, numbers).view(f"u{numbers.itemsize}").astype(np.uint64)
    quotients = (magnitudes // np.uint64(divisor)).astype(numbers.dtype)
    return np.where(negative, -quotients, quotients)


def poison(array: Array) -> None:
    """Fill ``array`` with what no correct result holds everywhere: NaN, or a conspicuous integer."""
    if array.dtype.is_float:
        array.write(np.full(array.shape, np.nan, np.float32))
    else:
        array.write(np.full(array.shape, 0x5EADBEEF5EADBEEF).astype(array.dtype.numpy))


def rounded(expected: Host, dtype: DType) -> Host:
    """Return the exact float or integer ``expected`` as the dtype holds it, rounded to nearest even."""
    return expected.astype(dtype.numpy, copy=False)


def wrong_elements(result: Host, expected: Host, bound: float = 0.0) -> Host:
    """Say of every element of ``result`` whether it is wrong; NaN always is.

    Args:
        result: what ``Array.numpy`` gave.
        expected: as the dtype holds it, or the true numbers where there is a bound.
        bound: how far a correct element may be from the expected one.
    """
    if bound:
        return np.asarray(~(np.abs(result.astype(np.float64) - expected) <= bound))
    return np.asarray(result != expected)


def count_wrong(array: Array, expected: Host) -> int:
    """Return how many elements of ``array`` differ from ``expected``, given as the dtype holds it; NaN always does."""
    return int(np.count_nonzero(wrong_elements(array.numpy(), expected)))
