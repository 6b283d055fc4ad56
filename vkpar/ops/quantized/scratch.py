"""Scratch arrays of products of many rows: in which quantised weights are made, some rows at a time; pure sizes.

The memory of a dropped array serves the next one of its size alone. So scratch arrays have few sizes: those of all
matrices of a model are served by two or three arrays, in eager work too.
"""

from __future__ import annotations

from typing import Final

SLAB: Final = 1 << 26  # bytes at once, for 128 rows at least
_SMALL: Final = 1 << 23  # of processors, which gain nothing by more and may have less memory
_LEAST: Final = 1 << 16


def rows_at_once(columns: int, itemsize: int, *, halves: bool) -> int:
    """Return how many rows are made at a time; ``halves``: by devices that multiply these, as processors do not."""
    slab = SLAB if halves else min(SLAB, _SMALL)
    return max(slab // (columns * itemsize) // 128 * 128, 128)


def nbytes(rows: int, columns: int, itemsize: int) -> int:
    """Return the bytes of the array that they are made in: a power of two."""
    return 1 << (max(rows * columns * itemsize, _LEAST) - 1).bit_length()
