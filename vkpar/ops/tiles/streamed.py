"""How matrix cores make products of few rows by a matrix that is read once (shaders/common/matvec_cores.glsl)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar.abi import matmul as abi
from vkpar.ops.call.checks import SHORT
from vkpar.ops.tiles import occupancy
from vkpar.ops.tiles.fragments import NARROW, WHOLE, Fragment

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo

KERNEL: Final = "matvec_cores"
UNIT: Final = 8  # elements: rows of both operands are whole units, and begin at one

_MOST_ROWS: Final = (16, 8)  # where the matrix is (K, N), and where it is transposed: for more, tiles are as fast
_WARPS: Final = (2, 4, 6, 8)
_LEAST_TURNS: Final = 8  # of a subgroup, or more of them wait than work
# Bytes of the matrix that are on the way to each compute unit: what hides the wait for memory on an H200, and with how
# many the other kernels, which cut K in parts, are no better.
_AHEAD: Final = 40 << 10
_LEAST_AHEAD: Final = 20 << 10


class _Part(NamedTuple):
    """What a subgroup multiplies at a time: columns and steps of K; ``turns`` of these are loaded at once."""

    columns: int
    step: int
    turns: int


# Where the matrix is (K, N), and where it is transposed. An invocation of narrower subgroups loads as much of each part
# more, and has registers for no larger ones.
_PARTS: Final = {
    WHOLE: (_Part(64, 32, 2), _Part(16, 64, 2)),
    NARROW[0]: (_Part(16, 32, 1), _Part(16, 32, 1)),
    NARROW[1]: (_Part(16, 16, 1), _Part(8, 32, 1)),
}


@dataclass(frozen=True)
class Stream:
    """How a product is spread.

    Attributes:
        tile: rows of the product, and the columns that a work-group makes.
        threads: invocations of a work-group.
        step: of K, that a subgroup multiplies at a time.
        turns: such steps that are loaded at once.
        fragment: the matrices of subgroups that it is for.
    """

    tile: tuple[int, int]
    threads: int
    step: int
    turns: int = 2
    fragment: Fragment = WHOLE
    kernel: str = KERNEL
    tiled: bool = False

    def variant(self, dtype: str) -> str:
        """Return how its module's name ends."""
        return f"_{SHORT[dtype]}"

    def shape(self, info: DeviceInfo) -> abi.StreamShape:
        """Return the constants that say what a work-group makes."""
        return abi.StreamShape(*self.tile)

    def tail(self, info: DeviceInfo, *, eights: bool) -> abi.StreamTail:
        """Return the constants that follow those of every kernel of products; ``eights`` makes no difference."""
        return abi.StreamTail(self.step, self.threads, self.fragment.warp(info), self.turns, *self.fragment)

    def ahead(self, warp: int) -> int:
        """Return the bytes of the matrix that a work-group has on the way, with subgroups of ``warp``."""
        return self.threads // warp * self.turns * self.step * self.tile[1] * 2

    def shared_nbytes(self, warp: int, *, transpose_b: bool) -> int:
        """Return the bytes of shared memory that it takes."""
        (m, columns), units = self.tile, self.step // UNIT
        lines, along = (columns, units) if transpose_b else (self.step, columns // UNIT)
        return self.threads // warp * 16 * (m * (units + 1) + lines * (along + 1))


def spread(
    info: DeviceInfo, m: int, n: int, k: int, batch: int, *, transpose_b: bool, fragment: Fragment = WHOLE
) -> Stream | None:
    """Return how products are spread: with as few subgroups to a work-group as keep memory busy.

    Args:
        info: the device.
        m: rows, 2 or more.
        n: columns.
        k: steps.
        batch: how many products.
        transpose_b: the matrix is stored as (N, K).
        fragment: the matrices that its subgroups multiply.

    Returns:
        None where the device runs no such group, there are too many rows, or the product is too small.
    """
    warp, limits, units = fragment.warp(info), info.limits, occupancy.units_of(info)
    columns, step, turns = _PARTS[fragment][transpose_b]
    groups, best = batch * -(-n // columns), None
    if m > min(_MOST_ROWS[transpose_b], fragment.columns) or warp % (step // UNIT) or warp % (columns // UNIT):
        return None
    for warps in _WARPS:
        way = Stream((m, columns), warps * warp, step, turns, fragment)
        shared = way.shared_nbytes(warp, transpose_b=transpose_b)
        fits = way.threads <= limits.max_workgroup_invocations and shared <= limits.max_shared_memory
        if fits and m * columns <= 4 * way.threads and warps * _LEAST_TURNS * step <= k:
            best = way
            if groups * way.ahead(warp) >= _AHEAD * units:
                break
    return best if best and groups * best.ahead(warp) >= _LEAST_AHEAD * units else None
