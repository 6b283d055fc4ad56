"""Words of the kernels of matrix products, see shaders/common/matmul.glsl, small.glsl and eights.glsl."""

from __future__ import annotations

from typing import NamedTuple

# ---- push constants ----


class Product(NamedTuple):
    """Every product: its sizes, the operands' first elements, and elements from one row to the next."""

    m: int
    n: int
    k: int
    a_first: int
    b_first: int
    o_first: int
    a_row: int
    b_row: int
    o_row: int
    accumulate: int = 0


class Forms(NamedTuple):
    """Behind :class:`Product` where there are batches, parts of K, or something follows; ``k_part`` is K of one."""

    a_batch: int = 0
    b_batch: int = 0
    o_batch: int = 0
    parts: int = 1
    k_part: int = 0
    o_part: int = 0
    bias_first: int = 0
    bias_step: int = 1
    residual_first: int = 0


class Windows(NamedTuple):
    """Behind :class:`Forms` on matrix cores: rows of the second operand that are windows of an image, channels last.

    Attributes:
        across: windows side by side.
        down: elements from behind the last of these to the next one, modulo 2^32.
        span: elements of a window that lie side by side.
        gap: elements from behind these to the next.
    """

    across: int = 1
    down: int = 0
    span: int = 1
    gap: int = 0


class Scales(NamedTuple):
    """Quantised weights."""

    scales_first: int


class Chosen(NamedTuple):
    """Experts of the second operand, ``each`` of which a row takes."""

    each: int
    first: int
    experts: int
    rows: int
    choice_first: int


class Norm(NamedTuple):
    """A norm that the product makes on the way."""

    norm_first: int
    norm_eps: float


class Send(NamedTuple):
    """A product that fills a staging slot, and tells lanes of transfers."""

    source_at: int
    target_at: int
    tail: int
    out_slot: int
    count_: int
    sends: int


class Small(NamedTuple):
    """The kernels of one invocation for each column, instead of :class:`Product`."""

    m: int
    n: int
    k: int
    a_first: int
    b_first: int
    o_first: int
    a_row: int
    b_step: int
    b_column: int
    o_row: int
    accumulate: int


class SmallForms(NamedTuple):
    """Behind :class:`Small` where there are batches, or the first operand is transposed."""

    a_step: int
    a_batch: int
    b_batch: int
    o_batch: int


class Lanes(NamedTuple):
    """The kernels for CPU drivers with subgroups of eight, instead of :class:`Product`."""

    m: int
    n: int
    k: int
    a_first: int
    b_first: int
    o_first: int
    a_row: int
    b_row: int
    o_row: int
    a_batch: int
    b_batch: int
    o_batch: int


class LanesPart(NamedTuple):
    """Behind :class:`Lanes` where K is in parts."""

    o_part: int


class LanesBias(NamedTuple):
    """Behind :class:`Lanes` where a bias follows."""

    bias_first: int


class Finish(NamedTuple):
    """What follows a product, by a kernel of its own."""

    count_: int
    part_first: int
    bias_first: int
    residual_first: int
    o_first: int
    parts: int
    stride: int
    columns: int
    phase: int


# ---- specialization constants: of all kernels on GPUs Operands, a shape, Turned and Follows, then a tail ----


class Operands(NamedTuple):
    """Element types, and where first elements and rows lie at multiples of four."""

    a_type: int
    b_type: int
    o_type: int
    transpose_b: int
    a_wide: int
    b_wide: int
    o_wide: int


class BlockOperands(NamedTuple):
    """The same where the second operand is quantised: its kind, where several share the module."""

    a_type: int
    kind_code: int
    o_type: int
    transpose_b: int
    a_wide: int
    b_wide: int
    o_wide: int


class RowsShape(NamedTuple):
    """Few rows by floats: how many, invocations side by side, and which operands are read in eights."""

    rows: int
    span: int
    a_eights: int = 0
    b_eights: int = 0


class TiledShape(NamedTuple):
    """Tiles without matrix cores: how many times four rows, and four columns, an invocation makes."""

    mrep: int
    nrep: int
    a_eights: int = 0  # of no effect
    b_eights: int = 0


class CoresShape(NamedTuple):
    """Tiles on matrix cores: their sizes, and which operands are read in eights."""

    tile_m: int
    tile_n: int
    a_eights: int = 0
    b_eights: int = 0


class StreamShape(NamedTuple):
    """Few rows on matrix cores: rows, and the columns of a work-group."""

    rows: int
    columns: int
    a_eights: int = 0  # of no effect
    b_eights: int = 0


class QuantizedShape(NamedTuple):
    """Few rows by quantised weights: see :class:`vkpar.ops.matmul.few.Spread`."""

    rows: int
    span: int
    columns: int
    turns: int


class Turned(NamedTuple):
    """Whether the first operand is transposed."""

    transpose_a: int = 0


class Follows(NamedTuple):
    """What follows the product."""

    activation: int = 0
    has_bias: int = 0
    bias_type: int = 0
    has_residual: int = 0
    residual_type: int = 0
    residual_wide: int = 0


class TiledTail(NamedTuple):
    """Tiles without matrix cores."""

    threads: int


class CoresTail(NamedTuple):
    """Tiles on matrix cores: see :class:`vkpar.ops.tiles.cores.Core`."""

    step: int
    warp_m: int
    warp_n: int
    warp: int
    ahead: int
    fm: int
    fn: int
    fk: int
    span: int
    o_eights: int
    rolled: int = 0
    windows: int = 0


class StreamTail(NamedTuple):
    """Few rows on matrix cores: see :class:`vkpar.ops.tiles.streamed.Stream`."""

    step: int
    threads: int
    warp: int
    turns: int
    fm: int = 16
    fn: int = 16
    fk: int = 16


class PassesTail(NamedTuple):
    """Few rows by quantised weights, and what takes a norm on the way."""

    passes: int = 0


class FoldTail(NamedTuple):
    """Behind :class:`PassesTail`: a norm before the product, a gate after."""

    normed: int = 0
    norm_type: int = 0
    norm_wide: int = 0
    gated: int = 0


class DotsTail(NamedTuple):
    """Behind :class:`FoldTail`: one row as whole numbers, see :class:`vkpar.ops.matmul.dots.DotSpread`."""

    threads: int
    even: int
    each: int


class QuantizedCoresTail(NamedTuple):
    """Few rows by quantised weights on matrix cores: see :class:`vkpar.ops.matmul.cores.CoreSpread`."""

    turns: int
    threads: int
    warp: int
    high: int


class EightsConstants(NamedTuple):
    """Products in eights on CPU drivers: an activation, and the rows and lanes of an invocation."""

    relu: int
    rows: int
    lanes: int


class NarrowConstants(NamedTuple):
    """Products of few columns on CPU drivers."""

    relu: int
    columns: int


class ShortConstants(NamedTuple):
    """Products of few steps on CPU drivers."""

    relu: int
    steps: int


class StepsConstants(NamedTuple):
    """Products in parts of K on CPU drivers."""

    threads: int


class FinishConstants(NamedTuple):
    """What follows a product, by a kernel of its own; :class:`Follows` comes behind."""

    o_type: int
    o_wide: int
    part_wide: int
