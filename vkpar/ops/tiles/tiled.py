"""How work-groups of the tiled kernel (shaders/common/tiled.glsl) make their tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vkpar.abi import matmul as abi
from vkpar.ops.call.work import has_warps

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo

KERNEL: Final = "matmul_tiled"
FEW_SUMS: Final = 64
MANY_SUMS: Final = 128

_THREADS: Final = {FEW_SUMS: 256, MANY_SUMS: 128}  # at least
_SIDE: Final = 64  # of what tiles are counted in
_STEP: Final = 8
_LARGEST: Final = {FEW_SUMS: (2, 2), MANY_SUMS: (4, 2)}


def runs(info: DeviceInfo) -> bool:
    """Tell whether a device has the invocations and the shared memory of a work-group."""
    limits, tile = info.limits, _LARGEST[FEW_SUMS]
    return limits.max_workgroup_invocations >= threads(tile, FEW_SUMS) and limits.max_shared_memory >= shared(tile)


def sums_of(info: DeviceInfo) -> int:
    """Return the most sums that an invocation keeps.

    With 128 it needs some 200 registers. A unit of NVIDIA's still holds eight subgroups of these, which keep it busy;
    one of AMD's older cards holds a single one for each of its parts, which does not.
    """
    fits = info.limits.max_shared_memory >= shared(_LARGEST[MANY_SUMS])
    return MANY_SUMS if has_warps(info) and fits else FEW_SUMS


def threads(tile: tuple[int, int], sums: int) -> int:
    """Return the invocations that make a tile of so many times 64 x 64, each at most so many sums."""
    return max(_THREADS[sums], tile[0] * tile[1] * _SIDE**2 // sums)


def shape(tile: tuple[int, int], sums: int) -> abi.TiledShape:
    """Return how much an invocation makes of a tile."""
    return abi.TiledShape(tile[0] * _SIDE * 4 // threads(tile, sums), tile[1])


def tail(tile: tuple[int, int], sums: int) -> abi.TiledTail:
    """Return the constant that follows those of every kernel of products."""
    return abi.TiledTail(threads(tile, sums))


def sides(tile: tuple[int, int]) -> tuple[int, int]:
    """Return how many times 64 rows and columns a tile has."""
    return tile[0] // _SIDE, tile[1] // _SIDE


def shared(tile: tuple[int, int]) -> int:
    """Return the bytes of shared memory of a work-group: two steps of both operands, of lines that are padded."""
    return 2 * _STEP * sum(_SIDE * side + 4 for side in tile) * 4
