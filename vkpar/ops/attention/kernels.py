"""Which kernel attention runs by, and in how many parts the keys are cut."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkpar.abi import attention as abi
from vkpar.errors import UnsupportedError
from vkpar.ops.attention import rates
from vkpar.ops.attention.form import ROWS, WARPS, Kernel
from vkpar.ops.call.checks import SHORT
from vkpar.ops.call.makes import make_of
from vkpar.ops.call.work import WARP, ceil_power, group_size, has_warps
from vkpar.ops.tiles.cores import offers
from vkpar.ops.tiles.fragments import NARROW, fragment_of
from vkpar.ops.tiles.occupancy import units_of

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.machine.physical import DeviceInfo

CORES: Final = "attention_cores"
CORES_CONVERTING: Final = "attention_cores2"
LEAST_THREADS: Final = 64
_SMALL: Final = "attention_small"
_TILED: Final = "attention_tiled"
_TILED_THREADS: Final = (128, 256)  # of eight rows an invocation, and of four
_MOST_TILED: Final = 128  # elements of a row
_TILED_SHARED: Final = (28_672, 30_720)  # bytes of shared memory, of both
_MOST_OF_CORES: Final = 256  # elements of a row
_MOST_HELD: Final = 224  # of one whose queries every compiler finds registers for
_USUAL_WIDTH: Final = 64
# Of matrices of eight rows: what invocations of their subgroups have registers for, the sums of so many of them each.
_NARROW_THREADS, _NARROW_KEYS, _NARROW_SUMS = 256, 16, 3
_MOST_TURNS: Final = 50_000  # of loops in an invocation on CPU drivers: some stop at 65,535
_MOST_SPLITS: Final = 64
_SHARED_OF_PARTS: Final = 12 * _MOST_SPLITS  # bytes for a row, where the kernel itself brings parts together
_KEYS_PER_ROW: Final = 64  # that a work-group of matrix cores takes while a part's sums of a row are stored and read


@dataclass(frozen=True)
class Tuning:
    """How attention is spread over a GPU.

    Attributes:
        threads: invocations of a work-group.
        part: the least keys of a part.
        groups: work-groups that a compute unit is to have, where the keys suffice and matrix cores do not serve.
        rows: queries that a work-group takes at most, where matrix cores do not serve: 1, 4 or 8. A device's make may
            have registers for fewer. Where subgroups serve, eight are twice four.
        cores: from so many queries of a head of keys on, matrix cores serve.
        keys: of a tile of theirs at most, a multiple of 16.
        core_threads: invocations of their work-groups at most: 128 or 256.
        tiled: from so many queries on, tiles of queries serve where these do not.
    """

    threads: int = 128
    part: int = 128
    groups: int = 6
    rows: int = 8
    cores: int = 9
    keys: int = 32
    core_threads: int = 256
    tiled: int = 24


tuning = Tuning()


def kernel_for(device: Device, queries: int, q_type: str, k_type: str, width: int) -> Kernel:
    """Return the kernel for so many queries that share a head of keys."""
    if queries >= tuning.cores and q_type == k_type:
        cores = _cores(device.info, k_type, width)
        if cores is not None:
            return cores
    chunks = -(-width // 8)
    limits = device.limits
    threads = min(tuning.threads, group_size(device))
    if threads < 2 * LEAST_THREADS:
        return Kernel(_SMALL, max(LEAST_THREADS, ceil_power(2 * chunks)), 1)
    most = min(tuning.rows, make_of(device.info).rows)
    less = most < tuning.rows  # invocations have registers for half of what others keep
    if queries >= tuning.tiled and width <= _MOST_TILED and limits.max_shared_memory >= _TILED_SHARED[less]:
        plain = Kernel(f"{_TILED}_rows4" if less else _TILED, _TILED_THREADS[less], 64)
        narrow = _narrow(device.info, k_type, width) if q_type == k_type else None
        return narrow if narrow and rates.faster(device, narrow, plain, k_type, width) else plain
    warps = has_warps(device.info, "vote", "shuffle") and chunks <= WARP and threads % WARP == 0
    shared = _shared_of_warps if warps else _shared_of_tiles
    rows = 1 if queries == 1 else 4 if queries <= (8 if warps else 4) else most
    while rows > 1 and shared(threads, rows, chunks) > limits.max_shared_memory:
        rows = 4 if rows == 8 else 1
    if warps:
        return Kernel(f"{WARPS}{rows}", threads, rows, abi.LanesConstants(16 if chunks <= 16 else 32, WARP))
    return Kernel(f"{ROWS}4_slim" if less and rows == 4 else f"{ROWS}{rows}", threads, rows)


def _shared_of_tiles(threads: int, rows: int, chunks: int) -> int:
    """Return the bytes of shared memory of shaders/attention.comp, at most: the slim kernel takes less."""
    each = 2 if rows == 8 else 4
    return (
        32 * rows * chunks + 4 * threads * (max(rows * each, 8) + rows * each // 4 + 2) + rows * _SHARED_OF_PARTS + 64
    )


def _shared_of_warps(threads: int, rows: int, chunks: int) -> int:
    """Return the bytes of shared memory of shaders/attention_warps.comp."""
    return threads // WARP * rows * (32 * chunks + 8) + rows * _SHARED_OF_PARTS + 64


def _cores(info: DeviceInfo, dtype: str, width: int) -> Kernel | None:
    """Return the kernel of matrix cores for rows of a type; None where the device does not run it."""
    warp, limits = info.features.subgroup_size, info.limits
    kinds = (CORES_CONVERTING, CORES)
    kind = next((kind for kind in kinds if offers(info, f"{kind}_t128_{SHORT[dtype]}", dtype)), None)
    if kind is None or warp not in (16, 32, 64) or width > _MOST_OF_CORES:
        return None
    held = width <= _MOST_HELD or info.driver_version >> 22 >= make_of(info).wide_since
    most = tuning.keys if width <= _MOST_TILED else 16  # the sums of wider rows leave no registers for more
    largest = tuning.core_threads if held else 128  # more queries would take more than 48 KiB
    for threads, keys in itertools.product(dict.fromkeys((largest, 128)), dict.fromkeys((most, 16))):
        own = abi.CoresConstants(keys, warp, ahead=int(held))
        if (
            threads <= limits.max_workgroup_invocations
            and _shared_of_cores(threads, own, width) <= limits.max_shared_memory
        ):
            return Kernel(f"{kind}_t{threads}", threads, threads // warp * own.fm, own)
    return None


def _shared_of_cores(threads: int, own: abi.CoresConstants, width: int) -> int:
    """Return the bytes of shared memory of shaders/common/attention_cores.glsl."""
    slots, pitch = threads // own.warp * own.fm, 2 * -(-width // 16) + 1
    rows = 4 * own.keys if own.ahead else 2 * own.keys + slots // own.parts
    return 16 * max(rows * pitch + slots * 4, slots * 9) + 8 * slots


def _narrow(info: DeviceInfo, dtype: str, width: int) -> Kernel | None:
    """Return the kernel of matrix cores whose matrices have eight rows of sixteen; None where a device has no such."""
    fragment, threads, limits = fragment_of(info, dtype), _NARROW_THREADS, info.limits
    if fragment != NARROW[0] or not offers(info, f"{CORES}_t{threads}_{SHORT[dtype]}", dtype, fragment):
        return None
    warp, depth, parts = fragment.warp(info), -(-width // 16), 1
    while -(-depth // parts) > _NARROW_SUMS:
        parts *= 2
    if threads > limits.max_workgroup_invocations or threads // warp > limits.max_workgroup_subgroups:
        return None
    own = abi.CoresConstants(_NARROW_KEYS, warp, fragment.rows, ahead=0, parts=parts)
    if _shared_of_cores(threads, own, width) > limits.max_shared_memory:
        return None
    return Kernel(f"{CORES}_t{threads}", threads, threads // warp * fragment.rows // parts, own)


def on_cores(info: DeviceInfo, dtype: str) -> bool:
    """Tell whether a device runs a kernel of matrix cores on rows of a type, which may be measured first."""
    return _cores(info, dtype, _USUAL_WIDTH) is not None or _narrow(info, dtype, _USUAL_WIDTH) is not None


def combining(device: Device, width: int) -> int:
    """Return the invocations of a work-group that brings the parts of a row of ``width`` elements together."""
    return max(ceil_power(2 * -(-width // 8)), group_size(device))


def splits_for(device: Device, kernel: Kernel, groups: int, rows: int, keys: int, width: int) -> int:
    """Return in how many parts the keys are cut.

    Args:
        device: where it runs.
        kernel: by which.
        groups: work-groups that take whole rows.
        rows: queries of all heads and batches.
        keys: of a head.
        width: elements of a row.

    Raises:
        UnsupportedError: there are so many keys that the parts' weights do not fit in the shared memory of the kernel
            that brings them together.
    """
    if kernel.name == _SMALL:
        of_tile = 130 + 2 * -(-width // 8)  # turns, for 64 keys
        splits = -(-keys * of_tile // (64 * _MOST_TURNS))
        most = (device.limits.max_shared_memory - 16 * combining(device, width)) // 12
        if splits > most:
            raise UnsupportedError(
                f"attention: there are {keys} keys, and kernels on {device.name} take "
                f"{most * 64 * _MOST_TURNS // of_tile} at most"
            )
        return splits
    units = units_of(device.info)
    wanted = -(-tuning.groups * units // groups)
    if kernel.name.startswith(CORES):  # one of their groups fills a unit; s parts take keys / s + s * rows / 64
        wanted = min(units // groups, math.isqrt(_KEYS_PER_ROW * keys // rows))
    return max(min(wanted, -(-keys // tuning.part), _MOST_SPLITS), 1)
