"""Words of the kernels on rows: shaders/common/rows.glsl, norm.glsl, softmax.glsl, shaders/swiglu.comp."""

from __future__ import annotations

from typing import NamedTuple

from vkpar.abi.words import Words2, Words16


class Rows(NamedTuple):
    """Rows: how many, their elements, lanes of each; where arrays begin, by slot; the kernel's number."""

    rows: int
    extent: int
    lanes: int
    x_first: int
    y_first: int
    w_first: int
    b_first: int
    h_first: int
    value: float


class Gathers(NamedTuple):
    """Behind :class:`Rows`: slots whose sum is the first operand, see :class:`vkpar.abi.wire.Reduce`; the wait."""

    tail: int
    factor: Words2
    slots: Words16
    awaits: int = 0


class RowsConstants(NamedTuple):
    """The work-group, fours that an invocation keeps, which rows begin at multiples of four; whether they are whole."""

    threads: int
    keep: int
    x_wide: int
    y_wide: int
    y_full: int
    whole: int


class NormConstants(NamedTuple):
    """Behind :class:`RowsConstants`: the vectors of a norm, or its residual, and the sum that it keeps."""

    weighted: int = 0
    w_type: int = 0
    w_wide: int = 0
    biased: int = 0
    b_type: int = 0
    b_wide: int = 0
    h_type: int = 0
    h_full: int = 0
    h_wide: int = 0


class MomentConstants(NamedTuple):
    """Behind :class:`NormConstants` of layers: 1 for variances alone, 2 for their roots, which ``value`` divides."""

    moment: int = 0


class NormGradConstants(NamedTuple):
    """Behind :class:`RowsConstants`: the vector of a norm, what came back, and the gradient that it keeps."""

    weighted: int
    w_type: int
    w_wide: int
    b_type: int
    b_wide: int
    h_wide: int


class GathersConstants(NamedTuple):
    """Behind :class:`NormConstants`: slots, whether their sum is averaged, and where the rank's own term comes."""

    sources: int
    average: int
    own_at: int


class Swiglu(NamedTuple):
    """Rows of gates and of what these let through."""

    rows: int
    extent: int
    a_row: int
    b_row: int
    a_first: int
    b_first: int
    o_first: int


class SwigluConstants(NamedTuple):
    """Which rows begin at multiples of four, element types, whether fours are whole."""

    a_wide: int
    b_wide: int
    o_wide: int
    b_type: int
    o_type: int
    whole: int
