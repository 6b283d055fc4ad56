"""Who sums how much, where the ranks' links differ: shares of the chunks, and the order of a ring. Pure arithmetic.

A slow link should carry less. In a two-shot exchange a rank sends as much as the array has, whatever it owns, but
reads its own chunk from all others: the slow one should own little. In a ring everybody passes on what others own, and
a rank's own chunk neither leaves it while the sums are made nor comes to it while they go round: the slow one should
own much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_WORTH = 1.5  # times faster: links closer together than that are taken as equal
_HALVINGS = 50


def differ(speeds: Sequence[float]) -> bool:
    """Say whether the fastest of the ranks' links is more than 1.5 times as fast as the slowest."""
    return len(speeds) > 1 and min(speeds) > 0 and max(speeds) > _WORTH * min(speeds)


def order(speeds: Sequence[float]) -> tuple[int, ...]:
    """Return the ranks in ring order: the slow ones side by side, so that their large chunks pass few slow links."""
    return tuple(sorted(range(len(speeds)), key=lambda rank: (speeds[rank], rank)))


def two_shot(speeds: Sequence[float]) -> tuple[float, ...]:
    """Return each rank's share of the array, so that the slowest is done as early as it can be.

    Of an array of one, rank r reads 1 + (n - 2) c_r. What is left when no rank would finish later goes to the ranks
    in proportion to their speeds.

    Args:
        speeds: bytes per second of each rank's link; n of them.
    """
    n = len(speeds)
    if n < 3:
        return (1.0 / n,) * n

    def shares(seconds: float) -> list[float]:
        return [max(0.0, (seconds * speed - 1) / (n - 2)) for speed in speeds]

    return _least(shares, 1 / min(speeds), n / min(speeds))


def ring(speeds: Sequence[float]) -> tuple[float, ...]:
    """Return each rank's share of the array, so that the slowest is done as early as it can be.

    Of an array of one, rank r sends and receives 2 - c_r, and a little less, depending on its neighbours' chunks.

    Args:
        speeds: bytes per second of each rank's link.
    """

    def shares(per_second: float) -> list[float]:  # of one array in a second, as many as that
        return [max(0.0, 2 - speed / per_second) for speed in speeds]

    return _least(shares, min(speeds) / 2, max(speeds))


def _least(shares: Callable[[float], list[float]], low: float, high: float) -> tuple[float, ...]:
    """Return, as fractions, the shares at the least argument from ``low`` on at which they sum up to one or more.

    Args:
        shares: none of them falls as the argument rises.
        low: where to look from.
        high: where to look up to; there the sum is at least one.
    """
    if sum(shares(low)) < 1:
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(shares(middle)) < 1 else (low, middle)
        low = high
    found = shares(low)
    return tuple(share / sum(found) for share in found)
