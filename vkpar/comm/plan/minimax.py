"""Shares of a whole that make the largest of several weighted sums as small as it can be. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

_SPREAD = 0.005  # of the least maximum: what may be given up so that shares are alike
_SLACK = 0.01  # the same, and shares too small to be worth their steps left out
_CRUMB = 0.02  # the largest share that may be left out
_LEAST_CELL = 1e-6  # of the largest: less counts as that, and would cost the method its digits
_EPSILON = 1e-12
_STEEP_PIVOTS = 10  # a column
_MOST_PIVOTS = 10_000  # far more than any rig takes; what is reached by then is feasible

Rows = Sequence[Sequence[float]]


def largest(rows: Rows, shares: Sequence[float]) -> float:
    """Return the largest of the rows' sums, each cell times its column's share."""
    return max(sum(cell * share for cell, share in zip(row, shares, strict=True)) for row in rows)


def shares(rows: Rows) -> tuple[float, ...]:
    """Return shares of one, a share per column, at which the largest of the rows' sums is within 1 % of the least.

    That is a matrix game: for positive rows A the least maximum is 1 / max(sum of x) over A x <= 1 and x >= 0 (Dantzig,
    "A proof of the equivalence of the programming problem and the game problem", 1951), a linear program that the
    simplex method solves from x = 0. Of the shares within half a per cent of it, a second program takes those whose
    largest is least: what is left to choose is spread. Shares of less than 2 % are left out where that is possible.

    Args:
        rows: positive numbers.
    """
    scale = max(map(max, rows))
    scaled = [[max(cell / scale, _LEAST_CELL) for cell in row] for row in rows]
    least = 1 / sum(_most(scaled, [1.0] * len(rows)))
    limit = (1 + _SPREAD) * least
    # As shares are y / sum(y) and the largest y is 1, the largest sum of y has the most even shares.
    identity = [[float(one == other) for other in range(len(rows[0]))] for one in range(len(rows[0]))]
    below = [[cell - limit for cell in row] for row in scaled]
    spread = _most([*below, *identity], [0.0] * len(rows) + [1.0] * len(identity))
    return _without_crumbs(scaled, _normal(spread), (1 + _SLACK) * least)


def _without_crumbs(rows: Rows, found: tuple[float, ...], limit: float) -> tuple[float, ...]:
    for column in sorted(range(len(found)), key=lambda column: (found[column], column)):
        if found[column] > _CRUMB:
            break
        fewer = _normal([0.0 if other == column else share for other, share in enumerate(found)])
        if largest(rows, fewer) > limit:
            break
        found = fewer
    return found


def _normal(values: Sequence[float]) -> tuple[float, ...]:
    total = sum(values)
    return tuple(value / total for value in values)


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
