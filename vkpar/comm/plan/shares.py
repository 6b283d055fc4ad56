"""Who sums how much, where the ranks are not equally fast: shares of the chunks, and the order of a ring.

What a rank has to do with a chunk depends on where it stands to the chunk's owner. How long that takes is measured role
by role, because ranks are slow in different ways: a narrow link is slow in all roles, a processor copies fast where
elements travel as they are, and sums slowly. Pure arithmetic on the measured costs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from vkpar.comm.plan import minimax

_WORTH = 1.5  # times faster: ranks closer together than that are taken as equal
_CLEAR = 1.1  # times sooner that the slowest rank must be done: less may be an error of measurement


@dataclass(frozen=True)
class Costs:
    """Seconds that one rank takes per byte on the wire in each role.

    Attributes:
        wire: which one they are of, see :func:`vkpar.comm.wires.timed_as`.
        publish: its own elements go to a slot.
        reduce: a slot and its own elements are summed to a slot.
        own: the same, for the last time: to the array and a slot.
        forward: a finished sum goes from a slot to the array and a slot.
        gather: a finished sum goes from a slot to the array.
        exchange: publish and gather at a time, per byte of one of them.
        meet: the slots of all other ranks and its own elements are summed to the array and a slot.
    """

    wire: str
    publish: float
    reduce: float
    own: float
    forward: float
    gather: float
    exchange: float
    meet: float

    def seconds(self, roles: Sequence[str]) -> float:
        """Return what ``roles`` take together, per byte."""
        return sum(float(getattr(self, role)) for role in roles)


ROLES = tuple(field.name for field in fields(Costs) if field.name != "wire")

Roles = Callable[[int, int], tuple[str, ...]]  # of the number of ranks and of the places after the owner


def ring_roles(nranks: int, away: int) -> tuple[str, ...]:
    """Return what a rank that stands ``away`` places after a chunk's owner in a ring does with the chunk."""
    if away == 0:
        return ("own",)
    return ("publish" if away == 1 else "reduce", "gather" if away == nranks - 1 else "forward")


def two_shot_roles(_nranks: int, away: int) -> tuple[str, ...]:
    """Return what a rank does with another's chunk, or its own, in a two-shot exchange."""
    return ("exchange",) if away else ("meet",)


def rows(costs: Sequence[Costs], roles: Roles, order: Sequence[int]) -> list[list[float]]:
    """Return, by rank and owner, the seconds per byte that the rank takes for that owner's chunk.

    Args:
        costs: of one wire, by rank.
        roles: what ranks do by their place.
        order: the ranks by place.
    """
    n = len(costs)
    places = {rank: place for place, rank in enumerate(order)}
    return [
        [each.seconds(roles(n, (places[rank] - places[owner]) % n)) for owner in range(n)]
        for rank, each in enumerate(costs)
    ]


def differ(costs: Sequence[Costs]) -> bool:
    """Say whether the slowest rank takes more than 1.5 times as long as the fastest, all roles together."""
    totals = [each.seconds(ROLES) for each in costs]
    return len(totals) > 1 and max(totals) > _WORTH * min(totals)


@functools.lru_cache
def two_shot(costs: tuple[Costs, ...]) -> tuple[float, ...] | None:
    """Return each rank's share of the array, so that the slowest is done as early as it can be.

    None where ranks are about equally fast, or where that would not be done clearly earlier than equal chunks.
    """
    if not differ(costs):
        return None
    made = rows(costs, two_shot_roles, range(len(costs)))
    shares = minimax.shares(made)
    return shares if _CLEAR * minimax.largest(made, shares) < _equal(made) else None


@functools.lru_cache
def ring(costs: tuple[Costs, ...]) -> tuple[tuple[int, ...], tuple[float, ...]] | None:
    """Return the ranks in ring order and each rank's share, so that the slowest is done as early as it can be.

    Slow ranks stand side by side: from the slowest to the fastest or the other way round, whichever is done earlier.
    None where ranks are about equally fast, or where that would not be done clearly earlier than equal chunks in the
    ranks' own order.
    """
    if not differ(costs):
        return None
    ranks = range(len(costs))
    down = tuple(sorted(ranks, key=lambda rank: (-costs[rank].seconds(ROLES), rank)))
    ways = []
    for order in (down, down[:1] + down[:0:-1]):  # both begin with the slowest
        made = rows(costs, ring_roles, order)
        shares = minimax.shares(made)
        ways.append((minimax.largest(made, shares), order, shares))
    seconds, order, shares = min(ways, key=lambda way: way[0])
    return (order, shares) if _CLEAR * seconds < _equal(rows(costs, ring_roles, ranks)) else None


def _equal(made: minimax.Rows) -> float:
    return minimax.largest(made, [1 / len(made)] * len(made))
