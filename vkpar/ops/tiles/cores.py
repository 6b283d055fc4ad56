"""Which kernels of matrix cores there are for products of halves, and which of them a device runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkpar.abi import matmul as abi
from vkpar.ops.call.checks import SHORT
from vkpar.ops.tiles import streamed, tiled
from vkpar.vulkan.pipelines import declared
from vkpar.vulkan.pipelines.capabilities import missing

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo

KHR: Final = "matmul_coop"
NV2: Final = "matmul_coop2"

_FRAGMENT: Final = (16, 16, 16)  # of one matrix of subgroups
_WIDEST_AHEAD: Final = 32  # wider subgroups have matrices twice as large, and no registers for more of them
_OF_GROUPS: Final = frozenset(("cooperativeMatrixWorkgroupScope", "cooperativeMatrixFlexibleDimensions"))


@dataclass(frozen=True)
class Core:
    """A kernel and the tile that a work-group of it makes.

    Attributes:
        kernel: :data:`KHR`, :data:`NV2`, or :data:`vkpar.ops.tiles.tiled.KERNEL`.
        threads: invocations of a work-group, of the tiled kernel the fewest.
        tile: rows and columns.
        step: of K, at a time.
        span: steps that are loaded at once, 1 or 2; 1 in any case by subgroups without registers for two. Of
            :data:`NV2`, steps that follow each other in a turn of its loop.
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

    def tail(self, info: DeviceInfo, *, eights: bool) -> abi.CoresTail | abi.WholeCoresTail | abi.TiledTail:
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

    @property
    def turned(self) -> bool:
        """True of a kernel that is for transposed second operands alone, and measured with these alone."""
        return False

    @property
    def checked(self) -> bool:
        """True of a kernel that is taken only on devices on which a product by it was right."""
        return False

    def takes(self, m: int, n: int, k: int, *, transpose_b: bool, whole: bool) -> bool:
        """Tell whether what was measured of it holds for a product; all is as :func:`choose` has it."""
        return True

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


class GroupCore(Core):
    """A kernel whose matrices belong to work-groups: the driver stages operands, and spreads them over subgroups.

    How it spreads results is not said anywhere: the kernel stores them as NVIDIA's driver does, which is tried first.
    """

    def variant(self, dtype: str) -> str:
        """Return how its module's name ends: all have as many invocations."""
        return f"_{SHORT[dtype]}"

    def tail(self, info: DeviceInfo, *, eights: bool) -> abi.WholeCoresTail:
        """Return the constants that follow those of every kernel of products."""
        return abi.WholeCoresTail(self.step, self.span, eights)

    def shared_nbytes(self, warp: int) -> int:
        """Return 0: the shader declares none."""
        return 0

    @property
    def turned(self) -> bool:
        """True: elements of an operand that is not transposed are loaded one by one, which takes twice as long."""
        return True

    @property
    def checked(self) -> bool:
        """True: see the class."""
        return True

    def takes(self, m: int, n: int, k: int, *, transpose_b: bool, whole: bool) -> bool:
        """Tell whether all of a product is loaded without checks of bounds, with which it takes twice as long.

        Of rows and columns there are whole eights, and as many as a tile has, within which the last one then begins.
        """
        high, broad = self.tile
        return transpose_b and whole and m >= high and n >= broad and not (m % 8 or n % 8 or k % self.step)

    def runs(self, info: DeviceInfo, dtype: str) -> bool:
        """Tell whether a device has matrices of work-groups of so many invocations that the tile is made of."""
        features, limits = info.features, info.limits
        if info.api_version < (1, 3, 0) or limits.max_workgroup_invocations < self.threads:
            return False  # the modules are SPIR-V 1.6
        if not (_OF_GROUPS.issubset(features.matrix_features) and features.subgroup_control):
            return False
        if missing(declared.shipped(self.kernel + self.variant(dtype)).capabilities, features):
            return False
        kind = SHORT[dtype]
        given = f" {kind}*{kind}->f32 workgroup {self.threads}"
        units = [shape.removesuffix(given) for shape in features.cooperative_matrix2 if shape.endswith(given)]
        sizes = [map(int, unit.split("x")) for unit in units]
        return any(not (self.tile[0] % m or self.tile[1] % n or self.step % k) for m, n, k in sizes)


CORES: Final = (
    Core(KHR, 256, (128, 256), 32, 2),
    Core(KHR, 128, (128, 128), 32),
    Core(KHR, 128, (128, 128), 64),
    Core(KHR, 256, (128, 192), 64),
    Core(KHR, 256, (128, 64), 64),
    Core(KHR, 128, (64, 64), 64),
    Core(KHR, 128, (16, 64), 128),
    GroupCore(NV2, 256, (128, 256), 64, 16),
    GroupCore(NV2, 256, (64, 128), 64, 16),
)
PLAIN: Final = Core(tiled.KERNEL, 128, (128, 128), 8)


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
    return not missing(declared.shipped(module).capabilities, features)


def streams(info: DeviceInfo, dtype: str) -> bool:
    """Tell whether a device runs the kernel of :mod:`vkpar.ops.tiles.streamed` on a type of halves."""
    return offers(info, f"{streamed.KERNEL}_{SHORT[dtype]}", dtype)
