"""How a matrix product is cut into dispatches: tiles of which every operand's part lies in one binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Operand(NamedTuple):
    """A row-major matrix of a product.

    Attributes:
        reach: returns how many elements from one on a binding covers.
        row: elements from one row to the next.
        rows: the dimension of the product, ``m``, ``n`` or ``k``, that its rows run along.
        columns: that of its columns.
    """

    reach: Callable[[int], int]
    row: int
    rows: str
    columns: str

    def cut(self, tile: Tile) -> tuple[str, int] | None:
        """Return the dimension to cut ``tile`` along, and where, None where its part lies in one binding.

        Whole rows are split off as long as one fits; of a row that does not fit, columns are.
        """
        (row, rows), (column, columns) = tile[self.rows], tile[self.columns]
        room = self.reach(row * self.row + column)
        if (rows - 1) * self.row + columns <= room:
            return None
        if rows == 1:
            return self.columns, column + rounded(room, columns)
        fitting = (room - columns) // self.row + 1 if room >= columns else 1
        return self.rows, row + rounded(fitting, rows)


# By dimension, where it begins in the product and its length.
Tile = dict[str, tuple[int, int]]


def tiles(lengths: Mapping[str, int], most: Mapping[str, int], operands: Sequence[Operand]) -> Iterator[Tile]:
    """Yield the tiles of a product.

    Those of the same rows and columns come in rising order of ``k``, so that a tile of ``k`` from 0 can set what the
    later ones add to.

    Args:
        lengths: ``m``, ``n`` and ``k`` of the product.
        most: what a tile has of them at most.
        operands: the matrices.
    """
    left: list[Tile] = [{name: (0, length) for name, length in lengths.items()}]
    while left:
        tile = left.pop()
        found = _too_long(tile, most) or next(filter(None, (operand.cut(tile) for operand in operands)), None)
        if found is None:
            yield tile
            continue
        name, at = found
        start, length = tile[name]
        left.append({**tile, name: (at, start + length - at)})
        left.append({**tile, name: (start, at - start)})


def _too_long(tile: Tile, most: Mapping[str, int]) -> tuple[str, int] | None:
    for name, (start, length) in tile.items():
        if length > most[name]:
            return name, start + rounded(most[name], length)
    return None


def rounded(part: int, whole: int) -> int:
    """Round a part down to whole tiles of a kernel, or to wide loads, where it is not the whole."""
    for step in (128, 4):
        if step <= part < whole:
            return part // step * step
    return part
