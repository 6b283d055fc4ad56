"""How work-groups of the tiled kernel (shaders/common/tiled.glsl) make their tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vkpar.abi import matmul as abi
from vkpar.ops.call.makes import make_of
from vkpar.ops.call.work import has_warps

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo

KERNEL: Final = "matmul_tiled"
LEAST_SUMS: Final = 32
FEW_SUMS: Final = 64
MANY_SUMS: Final = 128

_THREADS: Final = {LEAST_SUMS: 256, FEW_SUMS: 256, MANY_SUMS: 128}  # at least
_SIDE: Final = 64  # of what tiles are counted in
_STEP: Final = 8
_LARGEST: Final = {LEAST_SUMS: (2, 2), FEW_SUMS: (2, 2), MANY_SUMS: (4, 2)}


def runs(info: DeviceInfo) -> bool:
    """Tell whether a device has the invocations and the shared memory of a work-group."""
    limits, tile = info.limits, _LARGEST[FEW_SUMS]
    return limits.max_workgroup_invocations >= threads(tile, FEW_SUMS) and limits.max_shared_memory >= shared(tile)


def sums_of(info: DeviceInfo) -> int:
    """Return the most sums that an invocation keeps: those of the device's make, where its limits allow their tile."""
    sums, limits = make_of(info).sums, info.limits
    largest = _LARGEST[sums]
    fits = limits.max_shared_memory >= shared(largest) and limits.max_workgroup_invocations >= threads(largest, sums)
    return sums if fits and (sums != MANY_SUMS or has_warps(info)) else FEW_SUMS


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
