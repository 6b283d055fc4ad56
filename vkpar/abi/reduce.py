"""Words of the reductions: shaders/reduce_rows.comp, reduce_columns.comp."""

from __future__ import annotations

from typing import NamedTuple


class RowsPass(NamedTuple):
    """Rows: how many, their elements, from one to the next; parts of a row; :class:`Ends` follows."""

    rows: int
    extent: int
    row: int
    parts: int
    part: int
    lanes: int


class ColumnsPass(NamedTuple):
    """Blocks of rows, reduced down their columns; :class:`Ends` follows."""

    blocks: int
    extent: int
    columns: int
    block: int
    row: int
    o_row: int
    parts: int
    part: int
    lanes: int


class Ends(NamedTuple):
    """Where operand and result begin, the place of the first element, whether this is the last pass; what is done."""

    a_first: int
    o_first: int
    place: int
    last: int
    flip: int
    divisor: float


class RowsConstants(NamedTuple):
    """The work-group, whether rows begin at multiples of four, and what an invocation reads in a turn."""

    threads: int
    a_wide: int
    turns: int


class ColumnsConstants(NamedTuple):
    """The work-group, whether rows begin at multiples of four, and whether the kernel has no loop."""

    threads: int
    a_wide: int
    o_wide: int
    straight: int = 0
