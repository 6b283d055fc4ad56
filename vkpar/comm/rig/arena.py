"""The staging memory of a communicator: one host arena, cut into small and large slots once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from vkpar import env
from vkpar.comm.schedule.steps import MOST_SOURCES, SlotSet
from vkpar.errors import UnsupportedError
from vkpar.vulkan.memory.hostmemory import HostArena
from vkpar.vulkan.memory.pool import round_up

_STAMP_BYTES = 256  # after each slot: its generation, where that is checked
_REPORT_BYTES = 256  # per rank, after all slots: the first wrong generation that it found
_SMALL_SLOT = 32 << 10
_RING_SLOTS = 4
_LEAST_LARGE_SLOT = 16 << 10
_SLOT_ALIGNMENT = 4096
_FALLBACK_CACHE = 32 << 20
_MOST_STAGING = 64 << 20


@dataclass(frozen=True)
class Slab:
    """The slots of one size, side by side in the arena.

    Attributes:
        stride: bytes from one slot to the next: a slot and its stamp.
        base: id of its first slot; ``offset`` is that slot's byte in the arena.
        lag: see :class:`~vkpar.comm.schedule.steps.SlotSet`.
    """

    nranks: int
    per_rank: int
    slot_nbytes: int
    stride: int
    base: int
    offset: int
    lag: int = 1

    @property
    def number(self) -> int:
        """How many slots it has."""
        return self.nranks * self.per_rank

    @property
    def nbytes(self) -> int:
        """Bytes of all its slots."""
        return self.number * self.stride

    def slot_set(self, blocks: int) -> SlotSet:
        """Return the slots as a schedule sees them, each of ``blocks`` blocks."""
        return SlotSet(self.nranks, self.per_rank, blocks, self.base, self.lag)

    @functools.cached_property
    def starts(self) -> dict[int, int]:
        """By slot the arena byte at which it begins."""
        return {self.base + number: self.offset + number * self.stride for number in range(self.number)}

    def byte_of(self, slot: int) -> int:
        """Return the arena byte at which ``slot`` begins."""
        return self.starts[slot]

    def stamp_of(self, slot: int) -> int:
        """Return the arena byte of ``slot``'s generation."""
        return self.byte_of(slot) + self.slot_nbytes


class Arena:
    """A communicator's staging memory.

    Args:
        nranks: how many ranks share it.
        alignment: the largest alignment that a rank's driver asks of imported host memory; 0 where none imports it.
        most: the most bytes that every rank can import and bind, which no setting exceeds.
        wanted: bytes for all slots; None for ``VKPAR_STAGING_BYTES`` or its default.

    Attributes:
        memory: the host memory that the ranks import.
        small: slots for messages that fit them whole; ``large`` for all others.

    Raises:
        UnsupportedError: ``most`` bytes do not hold the smallest slots.
    """

    def __init__(self, nranks: int, alignment: int, most: int, wanted: int | None = None) -> None:
        per_rank = max(_RING_SLOTS, 2 * nranks if nranks <= MOST_SOURCES else 0)  # two_shot takes 2 n
        number = nranks * per_rank
        most = most // alignment * alignment if alignment else most
        reports = round_up(nranks * _REPORT_BYTES, _SLOT_ALIGNMENT)
        total = min(staging_nbytes() if wanted is None else wanted, most)
        small_slot = min(_SMALL_SLOT, max(_SLOT_ALIGNMENT, total // 8 // number // _SLOT_ALIGNMENT * _SLOT_ALIGNMENT))
        small_stride = small_slot + _SLOT_ALIGNMENT  # small messages are powers of two: leave the slot whole
        left = max(total - number * small_stride - reports, number * _LEAST_LARGE_SLOT)
        large_stride = left // number // _SLOT_ALIGNMENT * _SLOT_ALIGNMENT
        self.small = Slab(nranks, per_rank, small_slot, small_stride, 0, 0)
        self.large = Slab(nranks, per_rank, large_stride - _STAMP_BYTES, large_stride, number, self.small.nbytes)
        self._reports = self.large.offset + self.large.nbytes
        nbytes = self._reports + reports
        if nbytes > most:
            raise UnsupportedError(
                f"{nranks} ranks need {nbytes} bytes of staging; their devices bind {most} (maxStorageBufferRange, or "
                "VKPAR_MAX_BINDING)"
            )
        self.memory = HostArena(nbytes, alignment)

    @property
    def nslots(self) -> int:
        """How many slots there are in all."""
        return self.small.number + self.large.number

    def layout(self) -> tuple[list[int], list[int]]:
        """Return the offset and the bytes of every slot with its stamp, by id."""
        slabs = [slab for slab in (self.small, self.large) for _ in range(slab.number)]
        offsets = [slab.byte_of(slot) for slot, slab in enumerate(slabs)]
        return offsets, [slab.slot_nbytes + _STAMP_BYTES for slab in slabs]

    def report_of(self, rank: int) -> int:
        """Return the arena byte at which ``rank`` reports a wrong generation."""
        return self._reports + rank * _REPORT_BYTES

    def close(self) -> None:
        """Unmap the memory; every rank's import must be closed."""
        self.memory.close()


def staging_nbytes() -> int:
    """Return the bytes for all slots: ``VKPAR_STAGING_BYTES``, else half the host's last-level cache."""
    wanted = env.get().staging_bytes
    return wanted or min(last_level_cache() // 2, _MOST_STAGING)


def last_level_cache() -> int:
    """Return the bytes of the host's last-level cache, 32 MiB where the system does not say."""
    try:
        return _largest_cache() or _FALLBACK_CACHE
    except OSError:  # asked again next time
        return _FALLBACK_CACHE


@functools.cache
def _largest_cache() -> int:
    sizes = [0]
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
        number = text.rstrip("KMG")
        if number.isdecimal():
            sizes.append(int(number) * units.get(text[-1], 1))
    return max(sizes)
