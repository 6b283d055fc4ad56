"""Which experts tokens take, and tokens sorted by expert; no value of these is read by the host."""

from __future__ import annotations

from typing import Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import experts as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import check_arrays
from vkpar.ops.reduce.scans import seen

MOST_EXPERTS: Final = 512
"""Experts that the kernels tell apart."""


class Span(NamedTuple):
    """Experts that a device has: the number of the first one, and how many."""

    first: int
    held: int


class Groups(NamedTuple):
    """Pairs of a token and an expert, sorted by expert.

    Attributes:
        table: uint32: the expert of each tile, then the numbers of the pairs of each.
        tiles: how many there is room for.
        tile: pairs of one.
    """

    table: Array
    tiles: int
    tile: int


def route(logits: Array, each: int, *, normed: bool = True) -> Array:
    """Return which experts tokens take, the likeliest ones, and how much of these; of equals the first ones.

    Args:
        logits: (T, experts) float32.
        each: experts that a token takes.
        normed: their weights add up to 1; else they are shares of the softmax over all experts.

    Returns:
        (2, T, each) uint32: numbers of experts, the likeliest first, and the bits of their weights, float32.

    Raises:
        InvalidUsageError: not an array, of another shape or type, or a number that there is not.
        UnsupportedError: more experts than the kernel tells apart.
    """
    done = repeat("route", (logits,), (None,), each, normed)
    if done is not None:
        return done[0]
    check_arrays("route", None, logits=logits)
    if logits.ndim != 2 or logits.dtype != dtypes.float32 or not 0 < each <= logits.shape[1]:
        raise InvalidUsageError(f"route takes {each} of the columns of rows of float32, not {logits!r}")
    check_experts(logits.shape[1])
    made = logits.device.empty((2, logits.shape[0], each), "uint32")
    if not made.size:
        return made
    call = Call("route", key_of("route", (logits,), (None,), each, normed), (logits,), (made,))
    rows, experts = logits.shape
    source = landing.packed(call, call.operands[0])
    (given, first), (taken, choice) = seen(call, source), seen(call, call.results[0])
    push = pack(abi.Route(rows, experts, each, first, choice))
    call.dispatch("expert_route", (source, call.results[0]), (given, taken), push, rows, abi.RouteConstants(normed))
    call.keep()
    return made


def check_experts(count: int) -> None:
    """Refuse more experts than kernels tell apart; raises UnsupportedError."""
    if count > MOST_EXPERTS:
        raise UnsupportedError(f"{count} experts of a block are not supported; up to {MOST_EXPERTS} are")


def tiles_of(pairs: int, experts: int, tile: int) -> int:
    """Return how many tiles pairs fill at most, whichever experts they take."""
    full = min(experts, pairs)
    return (pairs - full) // tile + full


def group(choice: Array, span: Span, tile: int) -> Groups:
    """Return pairs sorted by the experts that a device has, those of one expert in their order.

    Args:
        choice: of :func:`route`.
        span: which experts the device has.
        tile: pairs of a tile, each of which has one expert alone.
    """
    pairs = choice.size // 2
    tiles = tiles_of(pairs, span.held, tile)
    done = repeat("group", (choice,), (None,), *span, tile)
    if done is not None:
        return Groups(done[0], tiles, tile)
    made = choice.device.empty((tiles * (1 + tile),), "uint32")
    call = Call("group", key_of("group", (choice,), (None,), *span, tile), (choice,), (made,))
    (given, first), (sorted_, groups) = seen(call, call.operands[0]), seen(call, call.results[0])
    push = pack(abi.Groups(pairs, *span, tiles, first, groups))
    arrays, ranges = (call.operands[0], call.results[0]), (given, sorted_)
    call.dispatch("expert_groups", arrays, ranges, push, span.held, abi.GroupsConstants(tile))
    call.keep()
    return Groups(made, tiles, tile)
