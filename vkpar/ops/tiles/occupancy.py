"""How a product is spread over a device's compute units: the size of tiles, and whether K is split into parts.

The time of a cut is estimated by counting. A unit runs its work-groups side by side: two big tiles keep it busy, a
single one does not, for want of work while it waits for loads. Parts of K fill units that have no tile, and cost a
second kernel that adds them up. The numbers are those of an NVIDIA H200; only their ratios matter, which differ little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vkpar.vulkan.machine.physical import DeviceInfo

MACS_PER_NS: Final = 140.0  # of a unit with two 128 x 128 tiles, by invocations of 64 sums
_BYTES_PER_NS: Final = 36.0  # that a unit reads, where all do
_MOST_BYTES_PER_NS: Final = 58.0  # where few do, each with a group of 1,024
_FINISH_NS: Final = 6000.0  # of the second kernel, and of the wait between the two
_GAIN: Final = 0.9  # a cut is taken only where it is so much faster than the plain one
_LEAST_STEPS: Final = 64  # of K that are worth a part
_PARTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_STEP: Final = 16

# Multiply-adds a nanosecond of a unit with one, two, ... groups, by an invocation's most sums, and the tile. With 128
# sums (2, 1) and (1, 1) are guesses, on the low side; with 32 all are, those of 64.
_OF_FEW: Final = {
    (2, 2): (101.0, MACS_PER_NS),
    (1, 2): (77.0, 112.0, 119.0),
    (2, 1): (77.0, 112.0, 119.0),
    (1, 1): (53.0, 84.0, 98.0, 105.0),
}
TILED_RATES: Final[Mapping[int, Mapping[tuple[int, int], Sequence[float]]]] = {
    32: _OF_FEW,
    64: _OF_FEW,
    128: {
        (4, 2): (170.0, 172.0),
        (2, 2): (145.0, 167.0),
        (1, 2): (127.0,),
        (2, 1): (127.0,),
        (1, 1): (53.0, 84.0, 98.0, 105.0),
    },
}
_READING: Final = (0.9 * _BYTES_PER_NS, _BYTES_PER_NS)


@dataclass(frozen=True)
class Cut:
    """How a product is cut.

    Attributes:
        tile: rows and columns of a tile over 64.
        parts: of K.
        k_part: steps of K of a part, a multiple of 16 or K.
    """

    tile: tuple[int, int]
    parts: int
    k_part: int


def units_of(info: DeviceInfo) -> int:
    """Return a device's number of compute units, a guess where the driver does not say."""
    return info.limits.compute_units or {"discrete": 48, "virtual": 48}.get(info.type, 12)


def tiled(m: int, n: int, k: int, batch: int, units: int, most_parts: int, sums: int) -> Cut:
    """Return how a product of so many matrices is cut for the tiled kernel.

    Args:
        m: rows.
        n: columns.
        k: steps.
        batch: how many products.
        units: compute units of the device.
        most_parts: the most parts of K, 1 for no split.
        sums: the most sums of an invocation, 32, 64 or 128.
    """
    rates = TILED_RATES[sums]

    def groups(tile: tuple[int, int]) -> int:
        return batch * -(-m // (64 * tile[0])) * -(-n // (64 * tile[1]))

    def cost(cut: Cut) -> float:
        macs = cut.tile[0] * cut.tile[1] * 64 * 64 * cut.k_part
        run = _run_ns(groups(cut.tile) * cut.parts, units, macs, rates[cut.tile])
        return run + finish_ns(cut.parts, batch * m * n, units)

    whole = min((Cut(tile, 1, k) for tile in rates), key=cost)
    split = min((Cut(tile, *part) for tile in rates for part in _splits(k, most_parts)), key=cost, default=whole)
    return split if cost(split) < _GAIN * cost(whole) else whole


def reading(
    groups: int,
    group_nbytes: int,
    m: int,
    n: int,
    k: int,
    batch: int,
    units: int,
    most_parts: int,
    *,
    large: bool = False,
) -> Cut:
    """Return how a product that is bound by reading one matrix is cut.

    Args:
        groups: work-groups of all products.
        group_nbytes: what one of them reads.
        m: rows.
        n: columns.
        k: steps.
        batch: how many products.
        units: compute units of the device.
        most_parts: the most parts of K, 1 for no split.
        large: groups are of 1,024 invocations, of which one alone keeps a unit busy.
    """

    def cost(cut: Cut) -> float:
        nbytes, count = group_nbytes * cut.k_part / k, groups * cut.parts
        if large:
            run = max(-(-count // units) * nbytes / _MOST_BYTES_PER_NS, count * nbytes / (units * _BYTES_PER_NS))
        else:
            run = _run_ns(count, units, nbytes, _READING)
        return run + finish_ns(cut.parts, batch * m * n, units)

    whole = Cut((1, 1), 1, k)
    split = min((Cut((1, 1), *part) for part in _splits(k, most_parts)), key=cost, default=whole)
    return split if cost(split) < _GAIN * cost(whole) else whole


def _splits(k: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the ways to split K: numbers of parts above 1, and steps of each."""
    for parts in _PARTS[1:]:
        k_part = -(-k // (parts * _STEP)) * _STEP
        if parts <= most and k_part >= _LEAST_STEPS and k_part < k:
            yield -(-k // k_part), k_part


def _run_ns(groups: int, units: int, work: float, rates: Sequence[float]) -> float:
    """Return the time of work-groups of so much work each, by the rates of a unit with one, two, ... of them."""
    turns = -(-groups // units)
    return turns * work / rates[min(turns, len(rates)) - 1]


def finish_ns(parts: int, count: int, units: int) -> float:
    """Return the time that adding up the parts of a result of ``count`` elements takes."""
    return 0.0 if parts == 1 else _FINISH_NS + 4 * (parts + 1) * count / (units * _BYTES_PER_NS)
