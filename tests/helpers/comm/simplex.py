"""The least maximum of several weighted sums by the simplex method: what the bisection of shares is held to."""

from __future__ import annotations

from collections.abc import Sequence

_EPSILON = 1e-12
_STEEP_PIVOTS = 10  # a column
_MOST_PIVOTS = 10_000

Rows = Sequence[Sequence[float]]


def least_maximum(rows: Rows) -> float:
    """Return the least that the largest of the rows' sums can be, over weights of one, a weight per column.

    That is a matrix game: for positive rows A it is 1 / max(sum of x) over A x <= 1 and x >= 0, a linear program
    (Dantzig, "A proof of the equivalence of the programming problem and the game problem", 1951).
    """
    scale = max(map(max, rows))
    return scale / sum(_most([[cell / scale for cell in row] for row in rows], [1.0] * len(rows)))


def _most(rows: Rows, limits: Sequence[float]) -> list[float]:
    """Return the x >= 0 with rows x <= limits, none of them negative, whose sum is largest.

    The simplex method on a condensed tableau: the steepest column first, which is fast, then, should that go round in
    circles, by Bland's rule (1977), which cannot.
    """
    width = len(rows[0])
    table = [[*row, limit] for row, limit in zip(rows, limits, strict=True)]
    goal = [-1.0] * width + [0.0]
    outside, inside = list(range(width)), [width + row for row in range(len(rows))]
    for pivot in range(_MOST_PIVOTS):
        steep = pivot < _STEEP_PIVOTS * width
        rising = [(goal[at] if steep else 0.0, outside[at], at) for at in range(width) if goal[at] < -_EPSILON]
        if not rising:
            break
        enters = min(rising)[-1]
        usable = [at for at, row in enumerate(table) if row[enters] > _EPSILON]
        if not usable:
            break
        leaves = min(usable, key=lambda at: (table[at][-1] / table[at][enters], inside[at]))
        _exchange([*table, goal], leaves, enters)
        outside[enters], inside[leaves] = inside[leaves], outside[enters]
    found = dict(zip(inside, (row[-1] for row in table), strict=True))
    return [max(0.0, found.get(variable, 0.0)) for variable in range(width)]


def _exchange(table: list[list[float]], row: int, column: int) -> None:
    """Swap what a row and a column of the tableau stand for."""
    pivot = table[row][column]
    table[row][:] = [cell / pivot for cell in table[row]]
    table[row][column] = 1 / pivot
    for at, other in enumerate(table):
        if at != row:
            factor = other[column]
            other[column] = 0.0
            other[:] = [cell - factor * by for cell, by in zip(other, table[row], strict=True)]
