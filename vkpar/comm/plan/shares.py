"""The share of the array that each rank sums in an exchange of two hops; pure arithmetic on the ranks' costs.

Rank r sums its own chunk and exchanges the others': it publishes its elements of them and gathers their sums. With the
share s of the array it takes s * reduce + (1 - s) * exchange seconds per byte. Both costs are measured, because ranks
are slow in different ways: a narrow link is slow in both roles, while a processor sums slowly but copies fast where
elements travel as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

_WORTH = 1.5  # ratio of the ranks' costs below which ranks count as equal
_CLEAR = 1.1  # ratio of the times with equal and unequal chunks below which the gain may be an error of measurement
_DIGITS = 12  # digits of a share
_HALVINGS = 100  # steps of a bisection: costs are up to 2^50 apart, and have 53 bits


@dataclass(frozen=True)
class Costs:
    """Seconds that one rank takes per byte on the wire in each role.

    Attributes:
        wire: the wire that they were measured with, see :func:`vkpar.comm.wires.timed_as`.
        exchange: the rank publishes its own elements in a slot while it gathers as many finished sums from another
            slot; seconds per byte published.
        reduce: the rank sums the slots of all others and its own elements to its array and a slot.
    """

    wire: str
    exchange: float
    reduce: float

    def seconds(self, share: float) -> float:
        """Return the rank's seconds per byte of an array of which it sums ``share``."""
        return share * self.reduce + (1 - share) * self.exchange


ROLES = tuple(field.name for field in fields(Costs) if field.name != "wire")


def differ(costs: Sequence[Costs]) -> bool:
    """Say whether the slowest rank takes more than 1.5 times as long as the fastest, both roles together."""
    totals = [each.exchange + each.reduce for each in costs]
    return len(totals) > 1 and max(totals) > _WORTH * min(totals)


def slowest(costs: Sequence[Costs], shares: Sequence[float]) -> float:
    """Return the seconds per byte after which the last rank is done."""
    return max(each.seconds(share) for each, share in zip(costs, shares, strict=True))


@functools.lru_cache
def unequal(costs: tuple[Costs, ...]) -> tuple[float, ...] | None:
    """Return each rank's share of the array, such that the slowest rank is done as early as possible.

    Return None where ranks are about equally fast, or where the slowest rank would not be done clearly earlier than
    with equal chunks.
    """
    if not differ(costs):
        return None
    found, equal = best(costs), [1 / len(costs)] * len(costs)
    return found if _CLEAR * slowest(costs, found) < slowest(costs, equal) else None


def best(costs: Sequence[Costs]) -> tuple[float, ...]:
    """Return the shares with which the slowest rank is done earliest; among several such, the most even ones.

    By a given time, a rank is done with any share between a least and a most one. All ranks can be done by that time
    where the least shares sum up to at most one and the most shares to at least one. Bisection finds the earliest such
    time, and then the level to which shares are filled up between their least and most.
    """
    latest = max(max(each.exchange, each.reduce) for each in costs)
    earliest = _least(lambda time: _feasible(_limits(costs, time)), latest)
    limits = _limits(costs, earliest)

    def filled(level: float) -> list[float]:
        return [min(max(level, least), most) for least, most in limits]

    level = _least(lambda level: sum(filled(level)) >= 1, 1.0)
    return tuple(round(share, _DIGITS) for share in filled(level))


def _limits(costs: Sequence[Costs], time: float) -> list[tuple[float, float]]:
    """Return each rank's least and most share with which it is done by ``time``; none will do where least > most."""
    limits = []
    for each in costs:
        more = each.reduce - each.exchange
        if more == 0:
            limits.append((0.0, 1.0) if each.exchange <= time else (1.0, 0.0))
            continue
        share = (time - each.exchange) / more  # with which it is done right then
        limits.append((0.0, min(1.0, share)) if more > 0 else (max(0.0, share), 1.0))
    return limits


def _feasible(limits: Sequence[tuple[float, float]]) -> bool:
    leasts, mosts = zip(*limits, strict=True)
    return all(map(float.__le__, leasts, mosts)) and sum(leasts) <= 1 <= sum(mosts)


def _least(holds: Callable[[float], bool], most: float) -> float:
    """Return the least number from 0 to ``most`` from which on ``holds`` is true; it is true at ``most``."""
    least = 0.0
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        least, most = (least, middle) if holds(middle) else (middle, most)
    return most
