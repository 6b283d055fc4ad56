"""What a set of arrays would take of devices, before anything is allocated."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vkpar import dtypes, env, text
from vkpar.arrays.shape import dimensions
from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory import memtypes
from vkpar.vulkan.memory.pool import Pool, padded
from vkpar.vulkan.memory.subbuffers import counted, cut


@dataclass(frozen=True)
class MemoryPlan:
    """What arrays would take of one device; all sizes are bytes.

    Attributes:
        rank: the device's place in the list given.
        device: its name.
        arrays: how many of the arrays it would hold.
        nbytes: their elements.
        reserved: the same with alignment and padding.
        blocks: Vulkan allocations that a device without any would make for them, of ``block_nbytes`` together (a driver
            may round each of them up).
        largest: the largest single allocation; arrays above ``max_buffer`` bytes take several.
        heap: the heap that arrays come from.
        available: what the heap has left for this process: its budget where the driver tells it, else its size, less
            what is in use. Of a :class:`~vkpar.Device` it is read afresh and counts what ``trim`` would free; of a
            :class:`~vkpar.DeviceInfo` it is that of its enumeration.
        limit: what ``VKPAR_MAX_MEMORY`` leaves for further arrays; None without a limit.
        fits: all arrays together fit what is available and allowed.

    Examples:
        >>> (plan,) = vkpar.plan_memory([device], [((1024, 1024), "float16")])
        >>> plan.arrays, plan.nbytes
        (1, 2097152)
    """

    rank: int
    device: str
    arrays: int
    nbytes: int
    reserved: int
    blocks: int
    block_nbytes: int
    largest: int
    max_buffer: int
    heap: int
    available: int
    limit: int | None
    fits: bool

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
        return asdict(self)


class MemoryPlans(tuple[MemoryPlan, ...]):
    """The plans of several devices, by rank: a tuple that prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return a line a device: how many arrays and bytes it would hold, what they take, and whether that fits."""
        limited = any(plan.limit is not None for plan in self)
        titles = ["rank", "arrays", "bytes", "taken", "left", *(["limit"] if limited else []), "fits", "device"]
        rows = [_cells(plan, limited=limited) for plan in self]
        return "\n".join(text.columns([titles, *rows], left=(len(titles) - 1,)))


def _cells(plan: MemoryPlan, *, limited: bool) -> list[str]:
    sizes = [plan.nbytes, plan.block_nbytes, plan.available]
    shown = [text.units(nbytes) for nbytes in sizes]
    if limited:
        shown.append("-" if plan.limit is None else text.units(plan.limit))
    return [str(plan.rank), str(plan.arrays), *shown, "yes" if plan.fits else "NO", plan.device]


def plan_memory(devices: Sequence[Device | DeviceInfo], arrays: Iterable[Sequence[Any]]) -> MemoryPlans:
    """Return what arrays would take of each device, in rank order, as a tuple that prints as a table.

    Nothing is allocated.

    The arithmetic is that of the allocator, on a device that has no memory yet. What collectives take besides
    (see ``Device.memory().slots``) and the ring for uploads and downloads are not counted.

    Args:
        devices: opened devices, or what :func:`vkpar.enumerate_devices` lists; their order gives the ranks.
        arrays: ``(shape, dtype)`` for one on every device, ``(shape, dtype, rank)`` for one on ``devices[rank]``.

    Raises:
        InvalidUsageError: no devices, a bad shape or dtype, or a rank that there is not; a device that is closed.
        UnsupportedError: a device without memory for arrays.

    Examples:
        >>> plan = vkpar.plan_memory([device], [((4096, 4096), "float16")])
        >>> plan[0].nbytes >= 2 * 4096 * 4096
        True
    """
    devices = list(devices)
    for device in devices:
        if not isinstance(device, (Device, DeviceInfo)):
            raise InvalidUsageError(f"expected devices or what enumerate_devices() lists, not {type(device).__name__}")
    if not devices:
        raise InvalidUsageError("a plan needs at least one device")
    sizes: list[list[int]] = [[] for _ in devices]
    for array in arrays:
        nbytes, rank = _nbytes(array, len(devices))
        for of_rank in sizes if rank is None else [sizes[rank]]:
            of_rank.append(nbytes)
    return MemoryPlans(_plan(rank, device, sizes[rank]) for rank, device in enumerate(devices))


def _nbytes(array: Sequence[Any], nranks: int) -> tuple[int, int | None]:
    """Return an array's bytes, and its rank where it has one."""
    if isinstance(array, str) or not isinstance(array, Sequence) or len(array) not in (2, 3):
        raise InvalidUsageError(f"an array is (shape, dtype) or (shape, dtype, rank), not {array!r}")
    dims = dimensions(array[0])
    try:
        rank = operator.index(array[2]) if len(array) == 3 else None
    except TypeError as error:
        raise InvalidUsageError(f"ranks are whole numbers: {array!r}") from error
    if rank is not None and not 0 <= rank < nranks:
        raise InvalidUsageError(f"rank {rank} of {nranks} devices")
    return math.prod(dims) * dtypes.resolve(array[1]).itemsize, rank


def _plan(rank: int, device: Device | DeviceInfo, sizes: list[int]) -> MemoryPlan:
    info = device.info if isinstance(device, Device) else device
    held: Counter[int] = Counter()  # how many blocks of which size
    most, total = info.limits.max_buffer, 0
    heap = memtypes.heap_of(info, memtypes.DEVICE)
    pool = Pool(info.memory_bytes, lambda nbytes, _: held.update((nbytes,)), lambda _: None, info.limits.max_allocation)
    for size in sizes:
        if size <= info.heaps[heap].nbytes:
            total += sum(pool.take(padded(nbytes), memtypes.DEVICE).nbytes for nbytes in cut(size, most))
            continue
        for nbytes, count in counted(size, most):  # of an array that is never made, buffers are not placed one by one
            held[padded(nbytes)] += count
            total += count * padded(nbytes)
    available, limit = _room(device, heap)
    block_nbytes = sum(nbytes * count for nbytes, count in held.items())
    fits = block_nbytes <= available and (limit is None or total <= limit)
    return MemoryPlan(
        rank=rank,
        device=info.name,
        arrays=len(sizes),
        nbytes=sum(sizes),
        reserved=total,
        blocks=sum(held.values()),
        block_nbytes=block_nbytes,
        largest=max(held, default=0),
        max_buffer=most,
        heap=heap,
        available=available,
        limit=limit,
        fits=fits,
    )


def _room(device: Device | DeviceInfo, heap: int) -> tuple[int, int | None]:
    """Return what the heap has left, and what ``VKPAR_MAX_MEMORY`` leaves."""
    limit = env.get().max_memory or None
    if isinstance(device, DeviceInfo):
        found = device.heaps[heap]
        return max(0, (found.nbytes if found.budget is None else found.budget) - (found.used or 0)), limit
    memory = device.memory()
    now = memory.heaps[heap]
    if now.budget is None:
        left = now.total - now.used - now.cached
    else:
        left = now.budget - (now.process_used or 0)
    return max(0, left + memory.trimmable), None if limit is None else max(0, limit - memory.arrays)
