"""Words of the kernels that move elements: shaders/region_*.comp, take.comp, random.comp, quantized_*pack.comp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vkpar.abi.words import Words2, Words6, padded

AXES: Final = 6  # of a region that a kernel moves


class Region(NamedTuple):
    """Some units of an array, packed side by side: how many along each axis, and from one to the next."""

    first: int
    packed: int
    count_: int
    counts: Words6
    strides: Words6

    @classmethod
    def of(cls, first: int, packed: int, counts: Sequence[int], strides: Sequence[int]) -> Region:
        """Return a region of :data:`AXES` axes at most; steps back are words like any other."""
        count = 1
        for each in counts:
            count *= each
        steps = [stride % (1 << 32) for stride in strides]
        return cls(first, packed, count, padded(counts, AXES, 1), padded(steps, AXES, 1))


class RegionConstants(NamedTuple):
    """How many of the axes there are, and the words of an invocation."""

    axes: int
    each: int


class Copy(NamedTuple):
    """Units of 16 bytes."""

    units: int


class Take(NamedTuple):
    """Rows of a table by their numbers, in units: how many in all, of a row; rows that there are; what is missing."""

    count_: int
    row: int
    height: int
    table_first: int
    index_first: int
    rows_first: int
    is_signed: int
    missing_even: int
    missing_odd: int


class Random(NamedTuple):
    """Elements by a counter: key and number of the first four, and what they are mapped to."""

    count_: int
    first: int
    key: Words2
    block: Words2
    low: float
    range: float


class RandomConstants(NamedTuple):
    """Element type, and whether the first one is at a multiple of four."""

    o_type: int
    o_wide: int


class Pack(NamedTuple):
    """Quantised blocks of files on their way into chunks and scales: ``row`` of them side by side."""

    count_: int
    first: int
    chunks_first: int
    scales_first: int
    row: int


class PackConstants(NamedTuple):
    """The code of a kind, where several share the module."""

    kind_code: int


class Unpack(NamedTuple):
    """Quantised weights on their way into elements: ``fours`` of a row; rows that there are, for numbers of rows."""

    count_: int
    chunks_first: int
    scales_first: int
    o_first: int
    fours: int
    height: int
    index_first: int


class UnpackConstants(NamedTuple):
    """Element type, whether it begins at a multiple of four; rows by numbers, and signed ones; the code of a kind."""

    o_type: int
    o_wide: int
    takes: int
    signed: int
    kind_code: int
