"""Who sums how much, where the ranks' links differ: shares of the chunks, and the order of a ring. Pure arithmetic.

A slow link should carry less. In a two-shot exchange a rank sends as much as the array has, whatever it owns, but
reads its own chunk from all others: the slow one should own little. In a ring, rank p does not send the chunk that it
owns while sums are made, nor the chunk of the next rank while they go round: both should be large.
"""

from __future__ import annotations

from collections.abc import Sequence

_WORTH = 1.5  # times faster: links closer together than that are taken as equal
_HALVINGS = 40
_SLACK = 1.02  # how much longer than the least time it may take


def differ(speeds: Sequence[float]) -> bool:
    """Say whether the fastest of the ranks' links is more than 1.5 times as fast as the slowest."""
    return len(speeds) > 1 and min(speeds) > 0 and max(speeds) > _WORTH * min(speeds)


def order(speeds: Sequence[float]) -> tuple[int, ...]:
    """Return the ranks in ring order: the slow ones side by side, where one large chunk spares two of them."""
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
    low, high = 0.0, 2.0 * n / min(speeds)

    def shares(seconds: float) -> list[float]:
        return [max(0.0, (seconds * speed - 1) / (n - 2)) for speed in speeds]

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        late = middle < 1 / min(speeds) or sum(shares(middle)) < 1
        low, high = (middle, high) if late else (low, middle)
    return _normalized(shares(high))


def ring(speeds: Sequence[float]) -> tuple[float, ...]:
    """Return the share of the array that the rank at each place of the ring owns.

    Of an array of one, the rank at place p sends 2 - c_p - c_(p+1). The least time in which every rank can do that is
    found by halving; whether a time is enough, by covering each pair of neighbours from place to place. Of all shares
    that take about that time, these are the ones nearest to equal.

    Args:
        speeds: bytes per second, in ring order.
    """
    n = len(speeds)
    low, high = 0.0, 2.0 / min(speeds)
    best = [1.0 / n] * n
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        cover = _cover([max(0.0, 2 - middle * speed) for speed in speeds])
        if sum(cover) <= 1:
            best, high = cover, middle
        else:
            low = middle
    return _evened(_normalized(best), speeds)


def _evened(shares: Sequence[float], speeds: Sequence[float]) -> tuple[float, ...]:
    """Move the places' shares of a ring towards equal ones for as long as that costs next to nothing."""
    n = len(shares)

    def seconds(given: Sequence[float]) -> float:
        return max((2 - share - given[(p + 1) % n]) / speeds[p] for p, share in enumerate(given))

    def mixed(part: float) -> list[float]:
        return [part / n + (1 - part) * share for share in shares]

    low, high, most = 0.0, 1.0, _SLACK * seconds(shares)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(mixed(middle)) <= most else (low, middle)
    return _normalized(mixed(low))


def _cover(wanted: Sequence[float]) -> list[float]:
    """Return shares of the least sum with ``share[p] + share[p + 1] >= wanted[p]`` all the way round.

    Once the first share is set, each next one is as small as it may be; the sum is convex in the first.
    """

    def filled(first: float) -> list[float]:
        shares = [first]
        for need in wanted[:-1]:
            shares.append(max(0.0, need - shares[-1]))
        shares[-1] += max(0.0, wanted[-1] - shares[-1] - first)
        return shares

    low, high = 0.0, max(wanted)
    for _ in range(_HALVINGS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if sum(filled(left)) <= sum(filled(right)) else (left, high)
    return filled(low) if len(wanted) > 1 else [max(wanted)]


def _normalized(shares: Sequence[float]) -> tuple[float, ...]:
    total = sum(shares)
    return tuple(share / total for share in shares)
