"""Which kernels of matrix cores there are for products of halves, and which of them a device runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkpar.abi import matmul as abi
from vkpar.ops.call.checks import SHORT
from vkpar.ops.call.makes import make_of
from vkpar.ops.tiles import streamed, tiled
from vkpar.ops.tiles.fragments import NARROW, WHOLE, Fragment, fragment_of, has
from vkpar.vulkan.pipelines import declared
from vkpar.vulkan.pipelines.capabilities import missing

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo

KHR: Final = "matmul_coop"

_MOST_ROWS: Final = 4  # of matrices of a subgroup: shaders/common/coop.glsl has no more copies of what stores one
_WIDEST_AHEAD: Final = 32  # wider subgroups have matrices twice as large, and no registers for more of them


@dataclass(frozen=True)
class Core:
    """A kernel and the tile that a work-group of it makes.

    Attributes:
        kernel: :data:`KHR` or :data:`vkpar.ops.tiles.tiled.KERNEL`.
        threads: invocations of a work-group, of the tiled kernel the fewest.
        tile: rows and columns.
        step: of K, at a time.
        span: steps that are loaded at once, 1 or 2; 1 in any case by subgroups without registers for two.
        fragment: the matrices of subgroups that it is for.
        since: the driver's version from which on its compiler spills nothing of it.
        roomy: it is for invocations with registers for matrices ahead of what multiplies them.
    """

    kernel: str
    threads: int
    tile: tuple[int, int]
    step: int = 16
    span: int = 1
    fragment: Fragment = WHOLE
    since: int = 0
    roomy: bool = False

    @property
    def tiled(self) -> bool:
        """True of the kernel that takes no matrix cores."""
        return self.kernel == tiled.KERNEL

    @property
    def label(self) -> str:
        """What measurements are kept by."""
        step = f"{self.step}" if self.span == 1 else f"{self.step}*{self.span}"
        of = "" if self.fragment == WHOLE else f" of {self.fragment.shape}"
        return f"{self.kernel} {self.threads} {self.tile[0]}x{self.tile[1]}x{step}{of}"

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
        warp = self.fragment.warp(info)
        ahead, brief = self.ahead(info), make_of(info).brief
        span = self.span if ahead else 1
        return abi.CoresTail(self.step, *self.warp_tile(warp), warp, ahead, *self.fragment, span, eights, brief)

    def ahead(self, info: DeviceInfo) -> bool:
        """Tell whether invocations have registers for matrices that are loaded ahead of what multiplies them."""
        narrow = self.fragment.warp(info) <= _WIDEST_AHEAD
        return narrow and self.fragment == WHOLE and not make_of(info).brief

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
        results = self.threads // warp * self.fragment.rows * (self.warp_tile(warp)[1] // 4 + 1) * 16
        return max(2 * sum(along), results)

    def runs(self, info: DeviceInfo, dtype: str) -> bool:
        """Tell whether a device has the matrix cores, the invocations and the shared memory."""
        warp, limits = self.fragment.warp(info), info.limits
        if limits.max_workgroup_invocations < self.threads or self.threads % warp:
            return False
        if limits.max_shared_memory < self.shared_nbytes(warp) or (self.roomy and not self.ahead(info)):
            return False
        asked = self.fragment != WHOLE  # for subgroups of that size
        if info.driver_version >> 22 < self.since or (asked and self.threads // warp > limits.max_workgroup_subgroups):
            return False
        if not offers(info, self.kernel + self.variant(dtype), dtype, self.fragment):
            return False
        high, broad = self.warp_tile(warp)
        rows, rest = divmod(high, self.fragment.rows)
        return rows <= _MOST_ROWS and not rest and not broad % self.fragment.columns


CORES: Final = (
    Core(KHR, 256, (128, 256), 32, 2),
    Core(KHR, 128, (128, 128), 32),
    Core(KHR, 128, (128, 128), 64, roomy=True),
    Core(KHR, 256, (128, 192), 64),
    Core(KHR, 256, (128, 64), 64),
    Core(KHR, 128, (64, 64), 64),
    Core(KHR, 128, (16, 64), 128),
)
# Subgroups of an invocation for each column have registers for 16 sums each beside what they multiply; newer compilers
# find some for 32.
OF_NARROW: Final = (
    Core(KHR, 256, (64, 128), 32, fragment=NARROW[0], since=26),
    *(
        Core(KHR, threads, tile, step, fragment=fragment)
        for fragment in NARROW
        for threads, tile, step in ((256, (64, 64), 32), (128, (16, 64), 64))
    ),
)
PLAIN: Final = Core(tiled.KERNEL, 128, (128, 128), 8)


def available(info: DeviceInfo, dtype: str) -> tuple[Core, ...]:
    """Return the kernels of matrix cores that a device runs on a type of halves.

    Args:
        info: the device.
        dtype: of both operands.
    """
    fragment = fragment_of(info, dtype)
    return tuple(core for core in (*CORES, *OF_NARROW) if core.fragment == fragment and core.runs(info, dtype))


def offers(info: DeviceInfo, module: str, dtype: str, fragment: Fragment = WHOLE) -> bool:
    """Tell whether a device has matrix cores of a type of halves, whole subgroups, and what a shipped module needs."""
    return has(info, fragment, dtype) and not missing(declared.shipped(module).capabilities, info.features)


def streams(info: DeviceInfo, dtype: str) -> Fragment | None:
    """Return the matrices by which a device runs the kernel of :mod:`vkpar.ops.tiles.streamed`; None: it does not."""
    fragment = fragment_of(info, dtype)
    return fragment if fragment and offers(info, f"{streamed.KERNEL}_{SHORT[dtype]}", dtype, fragment) else None
