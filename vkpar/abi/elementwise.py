"""Words of conversions, of the addition (shaders/cast.comp, narrow.comp, add.comp) and of kernels of expressions."""

from __future__ import annotations

from typing import NamedTuple


class Cast(NamedTuple):
    """Some elements."""

    count_: int
    a_first: int
    o_first: int


class CastConstants(NamedTuple):
    """Whether elements begin at multiples of four."""

    a_wide: int
    o_wide: int


class Narrow(NamedTuple):
    """Some elements; words at which elements and results begin."""

    count_: int
    a_word: int
    o_word: int


class NarrowConstants(NamedTuple):
    """Bits of elements and of results, and what they are: 0 unsigned, 1 signed, 2 float, 3 truth, 4 odd."""

    a_bits: int
    o_bits: int
    a_kind: int
    o_kind: int


class Add(NamedTuple):
    """Some elements; the second operand repeats after ``period`` of them, and begins at ``phase``."""

    count_: int
    a_first: int
    b_first: int
    o_first: int
    period: int = 1
    phase: int = 0


class AddConstants(NamedTuple):
    """Whether elements begin at multiples of four, the second operand repeats, fours are whole; fours an invocation."""

    a_wide: int
    b_wide: int
    o_wide: int
    bias: int = 0
    whole: int = 0
    blocks: int = 1


class Flat(NamedTuple):
    """Expressions over elements side by side: fours of an invocation, whether groups are full, axes."""

    blocks: int
    whole: int
    dims: int


class Tile(NamedTuple):
    """Expressions over tiles of elements that lie anyhow: the tile's sides, axes."""

    rows: int
    width: int
    dims: int


class Rows(NamedTuple):
    """Expressions over rows on CPU drivers: eights of an invocation, whether no group has more to do, the group."""

    blocks: int
    exact: int
    threads: int


class Full(NamedTuple):
    """Expressions over elements side by side on CPU drivers: the group, whether its work is whole, fours of each."""

    threads: int
    exact: int
    blocks: int


class Lying(NamedTuple):
    """Behind any of these, of each binding: how it lies, and whether it is read in fours or eights."""

    mode: int
    wide: int


class Specialized(NamedTuple):
    """The specialization constants of an expression's kernel: how all lies, then types that it does not know."""

    lying: tuple[int, ...]
    types: tuple[int, ...] = ()
