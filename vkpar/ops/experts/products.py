"""Products of rows by the matrices of the experts that they take, and the sums of what a token's experts give."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import experts as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.errors import UnsupportedError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS
from vkpar.ops.call.work import WORK_PER_NS, has_warps
from vkpar.ops.experts.routing import Groups, Span
from vkpar.ops.quantized.kinds import KINDS
from vkpar.ops.quantized.weights import Quantized
from vkpar.ops.reduce.scans import seen
from vkpar.ops.tiles import cores

TILE: Final = 4
"""Pairs of a tile."""
CORES_TILE: Final = 32
"""Pairs of a tile on matrix cores."""
_CORES_COLUMNS: Final = 256  # of weights, of a work-group on these
_CORES_STEP: Final = 32
_COLUMNS: Final = 128  # of a work-group


class Stack(NamedTuple):
    """Matrices of the experts that a device has, one after the other.

    Attributes:
        weights: (experts times rows, columns), of floats or in blocks.
        span: which experts.
    """

    weights: Array | Quantized
    span: Span

    @property
    def rows(self) -> int:
        """Of a matrix."""
        return self.weights.shape[0] // self.span.held

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What kernels bind.

        Raises:
            UnsupportedError: more than a kernel of the device sees at once.
        """
        if isinstance(self.weights, Array):
            return (self.weights,)
        if len(self.weights.pieces) != 1:
            raise UnsupportedError(
                f"experts in {self.weights.nbytes} bytes: a kernel of {self.weights.device} cannot see them at once"
            )
        return tuple(self.weights.pieces[0][2:])

    @property
    def kind(self) -> str | None:
        """Of blocks; None of floats."""
        return self.weights.kind if isinstance(self.weights, Quantized) else None


def tile_for(*stacks: Stack, dtype: str) -> int:
    """Return how many pairs products by matrices want in a tile, whose rows are of a type: many on matrix cores."""
    return CORES_TILE if dtype == "float16" and all(map(_on_cores, stacks)) else TILE


def _on_cores(stack: Stack) -> bool:
    """Tell whether matrix cores multiply by the matrices."""
    info, weights, whole = stack.weights.device.info, stack.weights, stack.weights.shape[1] % _CORES_STEP == 0
    if isinstance(weights, Array) and (weights.dtype != dtypes.float16 or weights.window()[1] % 8):
        return False
    return whole and has_warps(info) and cores.offers(info, _module("expert_cores", stack.kind), "float16")


def _module(kernel: str, kind: str | None) -> str:
    """Return the name of a kernel for weights of a kind."""
    return kernel if kind is None else f"{kernel}_quantized_{KINDS[kind].module}"


def product(
    x: Array,
    stack: Stack,
    choice: Array,
    groups: Groups | None = None,
    *,
    gated: bool = False,
    dtype: str = "float32",
) -> Array:
    """Return the products of rows by the matrices of their experts, those of pairs of a token and an expert.

    Args:
        x: (T, K), the rows of tokens, or (T * experts of a token, K), those of pairs; of floats.
        stack: the matrices; pairs whose expert is not among them are left as they are.
        choice: of :func:`vkpar.ops.experts.routing.route`.
        groups: the pairs by expert, in tiles of what :func:`tile_for` gives; None takes them one by one, as is best
            for few.
        gated: the first half of the columns are gates of the second half.
        dtype: of the result.

    Returns:
        (T * experts of a token, columns), half as many where they are gated.
    """
    columns = stack.rows // 2 if gated else stack.rows
    operands = (x, *stack.arrays, choice if groups is None else groups.table)
    options = (*stack.span, gated, dtype, stack.kind, choice.size, None if groups is None else groups.tile)
    done = repeat("experts", operands, (None,), *options)
    if done is not None:
        return done[0]
    pairs = choice.size // 2
    made = x.device.empty((pairs, columns), dtype)
    call = Call("experts", key_of("experts", operands, (None,), *options), operands, (made,))
    direct = made.dtype.itemsize == 4 or columns % 2 == 0
    target = call.results[0] if direct else call.temporary(made.shape, dtypes.float32)
    tiles = pairs if groups is None else groups.tiles
    _dispatch(call, stack, target, (pairs, tiles), gated=gated, tile=0 if groups is None else groups.tile)
    landing.land(call, target, call.results[0])
    call.keep()
    return made


def _dispatch(call: Call, stack: Stack, out: Array, counts: tuple[int, int], *, gated: bool, tile: int) -> None:
    (pairs, tiles), (x, *weights, chosen) = counts, call.operands
    x = landing.packed(call, x)
    k, columns = x.shape[-1], out.shape[-1]
    ranges, firsts = zip(*(seen(call, array) for array in (x, weights[0], out, chosen, *weights[1:])), strict=True)
    a_first, b_first, o_first, chosen_first = firsts[:4]
    kind = None if stack.kind is None else KINDS[stack.kind]
    push = abi.Grouped(
        pairs,
        columns,
        k,
        pairs // x.shape[0],
        *stack.span,
        tiles,
        a_first,
        b_first if kind is None else b_first // 4,
        o_first,
        chosen_first,
        0 if kind is None else firsts[4] // kind.per_block,
    )
    wide = [math.gcd(first, row) % 4 == 0 for first, row in ((a_first, k), (b_first, k), (o_first, columns))]
    a_wide, b_wide, o_wide = wide
    a_type, o_type = FLOATS[x.dtype.name], FLOATS[out.dtype.name]
    how = a_wide, b_wide, o_wide, gated, tile > 0
    constants: tuple[int, ...]
    if kind is None:
        constants = abi.GroupedConstants(a_type, FLOATS[weights[0].dtype.name], o_type, *how)
    else:
        constants = abi.BlockGroupedConstants(a_type, kind.code, o_type, *how)
    kernel, width = "expert_product", _COLUMNS
    if tile == CORES_TILE:
        kernel, width = "expert_cores", _CORES_COLUMNS // (2 if gated else 1)
    kernel = _module(kernel, stack.kind)
    groups = tiles * -(-columns // width)
    cost = pairs * stack.rows * k // WORK_PER_NS
    call.dispatch(kernel, (x, weights[0], out, chosen, *weights[1:]), ranges, pack(push), groups, constants, cost)


def add_up(x: Array, choice: Array, span: Span) -> Array:
    """Return what the experts of each token give together, each by its weight, in their order.

    Args:
        x: (T * experts of a token, N), of floats.
        choice: of :func:`vkpar.ops.experts.routing.route`.
        span: the experts that the device has; others give nothing.

    Returns:
        (T, N) float32.
    """
    done = repeat("add_up", (x, choice), (None,), *span)
    if done is not None:
        return done[0]
    _, rows, each = choice.shape
    made = x.device.empty((rows, x.shape[1]), "float32")
    call = Call("add_up", key_of("add_up", (x, choice), (None,), *span), (x, choice), (made,))
    x, choice = call.operands
    arrays = (x, call.results[0], choice)
    ranges, (a_first, o_first, choice_first) = zip(*(seen(call, array) for array in arrays), strict=True)
    columns = x.shape[1]
    push = pack(abi.Sum(rows, columns, each, *span, a_first, o_first, choice_first))
    wide = [math.gcd(first, columns) % 4 == 0 for first in (a_first, o_first)]
    constants = abi.SumConstants(FLOATS[x.dtype.name], *wide)
    call.dispatch("expert_sum", arrays, ranges, push, -(-rows * -(-columns // 4) // 256), constants)
    call.keep()
    return made
