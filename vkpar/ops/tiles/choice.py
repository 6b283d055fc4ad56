"""Which kernel of matrix cores makes a product of halves soonest.

What a kernel takes is estimated from what :mod:`vkpar.ops.tiles.core_rates` measured. The kernels without matrix cores,
for tiles and for few rows, are measured beside them and taken where they are faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar.ops.tiles import matvec, occupancy, streamed
from vkpar.ops.tiles.core_rates import FEW_STEPS, Few, Measured, Rates, measured
from vkpar.ops.tiles.cores import PLAIN, Core, available, streams

if TYPE_CHECKING:
    from vkpar.device import Device

_LEAST_PART: Final = 256  # steps of K that are worth a part
_PARTS: Final = (2, 3, 4, 6, 8, 12, 16)
_GAIN: Final = 0.9  # parts are taken only where they are so much faster


class Choice(NamedTuple):
    """A kernel, and how many parts of K it makes of how many steps each.

    Attributes:
        core: the kernel.
        parts: of K.
        k_part: steps of each.
        ns: what it takes, by what was measured; 0 where that was not.
    """

    core: Core | streamed.Stream
    parts: int
    k_part: int
    ns: float = 0.0


def prepare(device: Device, dtype: str) -> Measured | None:
    """Return what was measured of a device's kernels for operands of a type; None where matrix cores take none.

    It is measured now if it was not: whoever captures products calls it before, since captures measure nothing.
    """
    cores = () if dtype == "float32" else available(device.info, dtype)
    return measured(device, dtype, (*cores, PLAIN), streams=streams(device.info, dtype)) if cores else None


def choose(
    device: Device,
    dtype: str,
    m: int,
    n: int,
    k: int,
    batch: int,
    most_parts: int,
    *,
    transpose_b: bool,
    whole: bool = False,
) -> Choice | None:
    """Return which kernel of matrix cores makes a product; None where there is none, or none is faster than the others.

    Args:
        device: where.
        dtype: of both operands.
        m: rows.
        n: columns.
        k: steps.
        batch: how many products.
        most_parts: the most parts of K, 1 for no split.
        transpose_b: the second operand is stored as (N, K).
        whole: rows of both operands are whole units of :mod:`vkpar.ops.tiles.streamed`, and the first one is not
        transposed.
    """
    found = prepare(device, dtype) if m > 1 else None
    if found is None:
        return None
    fragment, units = streams(device.info, dtype), occupancy.units_of(device.info)
    few = found.few[transpose_b] if found.few else None
    if few and whole and few.streamed and fragment:
        way = streamed.spread(device.info, m, n, k, batch, transpose_b=transpose_b, fragment=fragment)
        other = few.rows_of(m) if m <= matvec.MOST_ROWS else few.cores
        if way is not None and few.streamed < other:
            return Choice(way, 1, k)
    rates = found.rates
    if m > matvec.MOST_ROWS:
        best = soonest(rates, units, m, n, k, batch, most_parts, transpose_b=transpose_b)
        ns = best and few and _cost(rates, units, m, n, batch, best, transpose_b=transpose_b)
        return best._replace(ns=ns) if best and ns else best
    return few and of_few_rows(rates, few, units, m, n, k, batch, most_parts)


def of_few_rows(
    rates: Mapping[Core, Rates], few: Few, units: int, m: int, n: int, k: int, batch: int, most_parts: int
) -> Choice | None:
    """Return the kernel of matrix cores for a product of few rows; None where the kernel for these is faster.

    The rates are of matrices in caches: one that is not takes no less than what reading it takes.
    """
    low = min(rates, key=lambda core: core.tile[0])
    best = soonest({low: rates[low]}, units, m, n, k, batch, most_parts)
    if best is None:
        return None
    reading = few.cores * batch * n * k / (few.columns * FEW_STEPS)
    return best if max(reading, _cost(rates, units, m, n, batch, best)) < few.time(m, n, batch * k) else None


def soonest(
    rates: Mapping[Core, Rates],
    units: int,
    m: int,
    n: int,
    k: int,
    batch: int,
    most_parts: int,
    *,
    transpose_b: bool = True,
) -> Choice | None:
    """Return the kernel, and the parts of K, that the measured rates say are the fastest; None for the tiled one."""

    def cost(choice: Choice) -> float:
        return _cost(rates, units, m, n, batch, choice, transpose_b=transpose_b)

    whole = min((Choice(core, 1, k) for core in rates), key=cost)
    split = min(
        (Choice(core, *part) for core in rates for part in _splits(k, core, most_parts)), key=cost, default=whole
    )
    best = split if cost(split) < _GAIN * cost(whole) else whole
    return None if best.core.tiled else best


def _cost(
    rates: Mapping[Core, Rates],
    units: int,
    m: int,
    n: int,
    batch: int,
    choice: Choice,
    *,
    transpose_b: bool = True,
) -> float:
    core, parts, k_part, _ = choice
    assert isinstance(core, Core)
    groups = batch * parts * -(-m // core.tile[0]) * -(-n // core.tile[1])
    return rates[core].time(groups, units, k_part, transpose_b=transpose_b) + occupancy.finish_ns(
        parts, batch * m * n, units
    )


def _splits(k: int, core: Core, most: int) -> Iterator[tuple[int, int]]:
    """Yield the ways to split K: numbers of parts above 1, and steps of each, whole steps of the kernel."""
    for parts in _PARTS:
        k_part = -(-k // (parts * core.step)) * core.step
        if parts <= most and _LEAST_PART <= k_part < k and not core.tiled:
            yield -(-k // k_part), k_part
