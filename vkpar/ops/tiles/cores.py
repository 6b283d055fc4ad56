"""Which kernels of matrix cores a device has for products of halves, and which of them makes a product soonest.

What a kernel takes is estimated from what :mod:`vkpar.ops.tiles.core_rates` measured. The kernels without matrix cores,
for tiles and for few rows, are measured beside them and taken where they are faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar.abi import matmul as abi
from vkpar.ops.call.checks import SHORT
from vkpar.ops.tiles import matvec, occupancy, streamed, tiled
from vkpar.ops.tiles.core_rates import FEW_STEPS, Few, Rates, measured
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pipelines.capabilities import missing
from vkpar.vulkan.pipelines.interface import reflect

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.machine.physical import DeviceInfo

KHR: Final = "matmul_coop"

_FRAGMENT: Final = (16, 16, 16)  # of one matrix of subgroups
_WIDEST_AHEAD: Final = 32  # wider subgroups have matrices twice as large, and no registers for more of them
_LEAST_PART: Final = 256  # steps of K that are worth a part
_PARTS: Final = (2, 3, 4, 6, 8, 12, 16)
_GAIN: Final = 0.9  # parts are taken only where they are so much faster


@dataclass(frozen=True)
class Core:
    """A kernel and the tile that a work-group of it makes.

    Attributes:
        kernel: :data:`KHR` or :data:`vkpar.ops.tiles.tiled.KERNEL`.
        threads: invocations of a work-group, of the tiled kernel the fewest.
        tile: rows and columns.
        step: of K, at a time.
        span: steps that are loaded at once, 1 or 2; 1 in any case by subgroups without registers for two.
    """

    kernel: str
    threads: int
    tile: tuple[int, int]
    step: int = 16
    span: int = 1

    @property
    def tiled(self) -> bool:
        """True of the kernel that takes no matrix cores."""
        return self.kernel == tiled.KERNEL

    @property
    def label(self) -> str:
        """What measurements are kept by."""
        step = f"{self.step}" if self.span == 1 else f"{self.step}*{self.span}"
        return f"{self.kernel} {self.threads} {self.tile[0]}x{self.tile[1]}x{step}"

    def variant(self, dtype: str) -> str:
        """Return how its module's name ends."""
        return "" if self.tiled else f"_{SHORT[dtype]}_t{self.threads}"

    def shape(self, info: DeviceInfo) -> abi.CoresShape | abi.TiledShape:
        """Return the constants that say what a work-group makes."""
        return tiled.shape(tiled.sides(self.tile), tiled.sums_of(info)) if self.tiled else abi.CoresShape(*self.tile)

    def tail(self, info: DeviceInfo, *, eights: bool) -> abi.CoresTail | abi.TiledTail:
        """Return the constants that follow those of every kernel of products.

        Args:
            info: the device.
            eights: rows of the result are whole eights, at multiples of eight elements.
        """
        if self.tiled:
            return tiled.tail(tiled.sides(self.tile), tiled.sums_of(info))
        warp = info.features.subgroup_size
        roomy = warp <= _WIDEST_AHEAD
        span = self.span if roomy else 1
        return abi.CoresTail(self.step, *self.warp_tile(warp), warp, roomy, *_FRAGMENT, span, eights)

    def warp_tile(self, warp: int) -> tuple[int, int]:
        """Return what a subgroup of ``warp`` invocations makes of the tile: halves of it, of the longer side first."""
        high, broad = self.tile
        for _ in range((self.threads // warp).bit_length() - 1):
            high, broad = (high // 2, broad) if high >= broad else (high, broad // 2)
        return high, broad

    def shared_nbytes(self, warp: int) -> int:
        """Return the bytes of shared memory that it takes with subgroups of ``warp``, whichever operand is transposed.

        Those of a step of both operands, or those of results on their way out, a row of matrices of each subgroup.
        """
        if self.tiled:
            return 0
        high, broad = self.tile
        along = [max(side * (self.step + 8), self.step * (side + 8)) for side in (high, broad)]
        results = self.threads // warp * _FRAGMENT[0] * (self.warp_tile(warp)[1] // 4 + 1) * 16
        return max(2 * sum(along), results)

    def runs(self, info: DeviceInfo, dtype: str) -> bool:
        """Tell whether a device has the matrix cores, the invocations and the shared memory."""
        warp, limits = info.features.subgroup_size, info.limits
        if limits.max_workgroup_invocations < self.threads or self.threads % warp:
            return False
        if limits.max_shared_memory < self.shared_nbytes(warp):
            return False
        if not offers(info, self.kernel + self.variant(dtype), dtype):
            return False
        high, broad = self.warp_tile(warp)
        return not (high % _FRAGMENT[0] or broad % _FRAGMENT[1])


CORES: Final = (
    Core(KHR, 256, (128, 256), 32, 2),
    Core(KHR, 128, (128, 128), 32),
    Core(KHR, 128, (128, 128), 64),
    Core(KHR, 256, (128, 192), 64),
    Core(KHR, 256, (128, 64), 64),
    Core(KHR, 128, (64, 64), 64),
    Core(KHR, 128, (16, 64), 128),
)
PLAIN: Final = Core(tiled.KERNEL, 128, (128, 128), 8)


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


@cache
def _module_needs(name: str) -> frozenset[int]:
    return reflect(shader.shipped(name)).capabilities


def available(info: DeviceInfo, dtype: str) -> tuple[Core, ...]:
    """Return the kernels of matrix cores that a device runs on a type of halves.

    Args:
        info: the device.
        dtype: of both operands.
    """
    return tuple(core for core in CORES if core.runs(info, dtype))


def offers(info: DeviceInfo, module: str, dtype: str) -> bool:
    """Tell whether a device has matrix cores of a type of halves, whole subgroups, and what a shipped module needs."""
    features, kind = info.features, SHORT[dtype]
    shape = "x".join(map(str, _FRAGMENT)) + f" {kind}*{kind}->f32"
    if shape not in features.cooperative_matrix or not features.subgroup_control:
        return False
    return not missing(_module_needs(module), features)


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
    if dtype == "float32" or m == 1 or not (cores := available(device.info, dtype)):
        return None
    found = measured(device, dtype, (*cores, PLAIN), streams=streams(device.info, dtype))
    units = occupancy.units_of(device.info)
    few = found.few[transpose_b] if found.few else None
    if few and whole and few.streamed:
        way = streamed.spread(device.info, m, n, k, batch, transpose_b=transpose_b)
        other = few.rows_of(m) if m <= matvec.MOST_ROWS else few.cores
        if way is not None and few.streamed < other:
            return Choice(way, 1, k)
    rates = found.rates
    if m > matvec.MOST_ROWS:
        best = soonest(rates, units, m, n, k, batch, most_parts, transpose_b=transpose_b)
        ns = best and few and _cost(rates, units, m, n, batch, best, transpose_b=transpose_b)
        return best._replace(ns=ns) if best and ns else best
    return few and of_few_rows(rates, few, units, m, n, k, batch, most_parts)


def streams(info: DeviceInfo, dtype: str) -> bool:
    """Tell whether a device runs the kernel of :mod:`vkpar.ops.tiles.streamed` on a type of halves."""
    return offers(info, f"{streamed.KERNEL}_{SHORT[dtype]}", dtype)


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
