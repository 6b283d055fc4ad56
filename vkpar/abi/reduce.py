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


class Units(NamedTuple):
    """Rows, or columns of blocks, in parts of units; shaders/reduce_units.comp."""

    blocks: int
    extent: int
    columns: int
    parts: int
    part: int
    lanes: int
    a_first: int
    o_first: int


class UnitsConstants(NamedTuple):
    """What is done, what elements are, whether units have 16 bytes, whether columns are reduced, and packed."""

    op: int
    bits: int
    is_signed: int
    wide: int
    down: int
    packed: int = 0


class Scan(NamedTuple):
    """Rows in chunks; where elements, results and what chunks come to begin; waits, and groups of one pass."""

    count_: int
    rows: int
    chunks: int
    a_first: int
    o_first: int
    s_first: int
    turns: int
    groups: int


class ScanConstants(NamedTuple):
    """Whether elements are floats, multiplied; the phase; the work-group; places or sums; a chunk each; whole fours."""

    floats: int
    product: int
    phase: int
    threads: int
    places: int
    alone: int
    wide: int


class Sort(NamedTuple):
    """Rows of elements and places, in chunks; which bits of their keys, which of them turned."""

    count_: int
    rows: int
    chunks: int
    shift: int
    bits: int
    flip: int


class SortFirsts(NamedTuple):
    """Where elements and places begin, those that are stored, and counts."""

    keys_first: int
    places_first: int
    sorted_keys_first: int
    sorted_places_first: int
    counts_first: int


class ScatterAdd(NamedTuple):
    """Rows of sorted places and of what goes there, in chunks; rows of what is added to; where all begin."""

    count_: int
    rows: int
    chunks: int
    size: int
    keys_first: int
    places_first: int
    values_first: int
    left_keys_first: int
    left_values_first: int
    totals_first: int


class ScatterAddConstants(NamedTuple):
    """Whether values lie where they came from, and whether no chunk leaves any."""

    begins: int
    ends: int


class SortConstants(NamedTuple):
    """What elements are, the order, whether this is the first pass, what is done of three things, what is stored.

    Then the work-group, the elements of an invocation, and the invocations of a subgroup.
    """

    kind: int
    largest: int
    begins: int
    phase: int
    keys: int
    places: int
    threads: int
    items: int
    warp: int


class SortLanesConstants(NamedTuple):
    """What :class:`SortConstants` says, the elements of a chunk being one invocation's; and an element's words."""

    kind: int
    largest: int
    begins: int
    phase: int
    keys: int
    places: int
    threads: int
    items: int
    words: int


class Topk(NamedTuple):
    """Rows of what is left of elements, in chunks; how many are wanted; rows of elements; where all begin."""

    count_: int
    rows: int
    chunks: int
    chunk: int
    k: int
    elements: int
    a_first: int
    left_first: int
    values_first: int
    places_first: int


class TopkConstants(NamedTuple):
    """What elements are, the order, whether all are left, whether this ends; the work-group, words, cells at once."""

    kind: int
    largest: int
    begins: int
    ends: int
    threads: int
    words: int
    each: int
