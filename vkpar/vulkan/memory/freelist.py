"""The free pieces of one block of memory: arithmetic alone, no Vulkan."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable


class FreeList:
    """Which bytes of a block are free: best fit to take, merged with both neighbours when given back.

    The smallest piece that holds what is asked for is taken, the lowest of several, and what is left of it stays free:
    large pieces stay whole for large requests. Pieces are found by bisection in a list that is sorted by size, and
    neighbours by two dictionaries: both calls take O(log n) comparisons for n free pieces.

    Args:
        nbytes: the block's size; all of it is free.

    Attributes:
        nbytes: the block's size.
        free: bytes that are free.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = self.free = nbytes
        self._by_size: list[tuple[int, int]] = [(nbytes, 0)]  # (bytes, offset), sorted
        self._ends: dict[int, int] = {0: nbytes}  # offset of a piece to its end
        self._starts: dict[int, int] = {nbytes: 0}  # and back

    @classmethod
    def around(cls, nbytes: int, taken: Iterable[tuple[int, int]]) -> FreeList:
        """Return the list of a block of ``nbytes`` of which pieces, (offset, bytes), are taken and all else is free."""
        made = cls(nbytes)
        made._drop(0)
        start = 0
        for offset, held in sorted(taken):
            if offset > start:
                made._add(start, offset)
            start = offset + held
            made.free -= held
        if start < nbytes:
            made._add(start, nbytes)
        return made

    def take(self, nbytes: int) -> int | None:
        """Take ``nbytes`` from the piece that fits best; return their offset, None where no piece holds them."""
        index = bisect_left(self._by_size, (nbytes, 0))
        if index == len(self._by_size):
            return None
        room, offset = self._by_size.pop(index)
        del self._ends[offset], self._starts[offset + room]
        if room > nbytes:
            self._add(offset + nbytes, offset + room)
        self.free -= nbytes
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Free ``nbytes`` from ``offset``, which were taken before."""
        start, end = offset, offset + nbytes
        if start in self._starts:
            start = self._drop(self._starts[start])
        if end in self._ends:
            end = self._ends[end]
            self._drop(offset + nbytes)
        self._add(start, end)
        self.free += nbytes

    def _add(self, start: int, end: int) -> None:
        insort(self._by_size, (end - start, start))
        self._ends[start], self._starts[end] = end, start

    def _drop(self, start: int) -> int:
        end = self._ends.pop(start)
        del self._starts[end]
        self._by_size.pop(bisect_left(self._by_size, (end - start, start)))
        return start

    @property
    def largest(self) -> int:
        """Bytes of the largest free piece, 0 where nothing is free."""
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def empty(self) -> bool:
        """True where everything is free."""
        return self.free == self.nbytes

    def pieces(self) -> list[tuple[int, int]]:
        """Return the free pieces as (offset, bytes), by offset; no two touch."""
        return [(start, end - start) for start, end in sorted(self._ends.items())]
