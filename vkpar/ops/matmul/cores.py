"""How matrix cores make products of few rows of float16 by quantised weights (shaders/common/quantized_cores.glsl)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar.abi import matmul as abi
from vkpar.ops.call.work import has_warps
from vkpar.ops.tiles import cores, occupancy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vkpar.arrays.array import Array
    from vkpar.ops.quantized.kinds import Kind
    from vkpar.ops.quantized.weights import Quantized
    from vkpar.vulkan.machine.physical import DeviceInfo

KERNEL: Final = "quantized_cores"
MOST_ROWS: Final = 16

_UNIT: Final = 8  # elements of the rows, which begin at one
_STEP_NBYTES: Final = 64  # of a column, that a subgroup loads at once
_LINE: Final = 3  # places of 16 bytes of a column in shared memory, one of which keeps columns on different banks
_MOST_LOADED: Final = 64  # columns and turns that there are registers for
_EIGHT_ROWS: Final = 8  # that the narrower matrices hold, which are:
_EIGHT: Final = "16x8x16 f16*f16->f32"
_WIDE: Final = 64  # columns


class CoreSpread(NamedTuple):
    """How a product is spread.

    Attributes:
        columns: that a work-group makes.
        turns: steps of each subgroup that are loaded together.
        threads: of a work-group.
        high: rows that a matrix holds.
    """

    columns: int
    turns: int
    threads: int
    high: int

    @property
    def width(self) -> int:
        """Columns of a work-group."""
        return self.columns

    def shape(self, m: int) -> abi.StreamShape:
        """Return the constants that say what a work-group makes of ``m`` rows."""
        return abi.StreamShape(m, self.columns)

    def tail(self, info: DeviceInfo) -> abi.QuantizedCoresTail:
        """Return the constants that follow those of every product by quantised weights."""
        return abi.QuantizedCoresTail(self.turns, self.threads, info.features.subgroup_size, self.high)

    def shared_nbytes(self, kind: Kind, m: int, warp: int) -> int:
        """Return the bytes of shared memory that it takes for ``m`` rows, with subgroups of ``warp``."""
        groups, blocks = self.threads // warp, kind.chunk // 16  # of 32 weights, of a column at a time
        weights = groups * self.columns * 16 * max(_LINE, self.high // 4) * (2 if kind.extra else 1)
        rows = (groups * m + self.high - m) * 8 * (blocks * 8 + 2)
        return weights + rows + groups * 4 * self.columns * blocks * kind.terms


def step_of(kind: Kind) -> int:
    """Return how many columns of the weights a subgroup loads at once."""
    return _STEP_NBYTES // 16 * kind.chunk


def spreads(info: DeviceInfo, kind: Kind, m: int) -> Iterator[CoreSpread]:
    """Yield how products of ``m`` rows can be spread, as far as a device has the invocations and the shared memory."""
    warp, limits = info.features.subgroup_size, info.limits
    high = 8 if m <= _EIGHT_ROWS and _EIGHT in info.features.cooperative_matrix else 16
    for columns, warps, turns in itertools.product((64, 32, 16), (2, 4, 8), (1, 2)):
        how = CoreSpread(columns, turns, warps * warp, high)
        fits = how.threads <= limits.max_workgroup_invocations and m * columns <= 4 * how.threads
        if fits and how.shared_nbytes(kind, m, warp) <= limits.max_shared_memory and columns * turns <= _MOST_LOADED:
            yield how


def spread(info: DeviceInfo, kind: Kind, m: int, n: int) -> CoreSpread:
    """Return how a product of ``m`` rows by n columns is spread: as was fastest on an NVIDIA H200, or next to that."""
    wide = -(-n // _WIDE) >= occupancy.units_of(info)  # there are groups enough without sharing K among many subgroups
    columns, turns, warps = kind.spreads[2 * (m > _EIGHT_ROWS) + (not wide)]
    threads = warps * info.features.subgroup_size
    return min(
        spreads(info, kind, m),
        key=lambda how: (abs(how.columns - columns), abs(how.turns - turns), abs(how.threads - threads)),
    )


def usable(info: DeviceInfo, kind: Kind) -> bool:
    """Tell whether a device has the kernel, and is known to be fast with it: GPUs of one vendor were measured."""
    return has_warps(info) and cores.offers(info, module_of(kind), "float16")


def module_of(kind: Kind) -> str:
    """Return the name of a kind's kernel."""
    return f"{KERNEL}_{kind.module}"


def fits(info: DeviceInfo, kind: Kind, m: int, k: int) -> bool:
    """Tell whether a device's kernel takes ``m`` rows of ``k`` halves, all of whose steps are whole."""
    few = kind.least_rows <= m <= MOST_ROWS and k % step_of(kind) == 0
    return few and usable(info, kind) and any(spreads(info, kind, m))


def takes(a: Array, q: Quantized, kind: Kind) -> bool:
    """Tell whether a device's kernel takes the rows of ``a`` and some weights: loads are aligned, too."""
    if a.dtype.name != "float16" or not fits(a.device.info, kind, *a.shape):
        return False
    return a.window()[1] % _UNIT == 0 and all(piece.scales.window()[1] % 4 == 0 for piece in q.pieces)
