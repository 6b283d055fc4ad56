"""How far a rig's results may be from float64, where the worst case says nothing any more.

How far a single rounding may be off is known. Errors of many roundings, added up with their worst signs, soon exceed
the results; with signs that do not know of each other they add up as random steps do, K of them to sqrt(K) in place of
K (Higham and Mary, 2019), and Hoeffding bounds them: steps of at most d_i that move a result by J_i d_i move it further
than c sqrt(sum (J_i d_i)^2) with a probability of 2 exp(-c^2 / 2). That root is the standard deviation of runs in which
each rounding is off by all that it may be, with signs that are drawn. ``RUNS`` such runs measure it, for all elements
of a row together; ``C`` makes the probability 1e-9. It is generous: no rounding is off by all that it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from vkpar.demo.reference import EXACT, F64, Errors

RUNS: Final = 2
C: Final = math.sqrt(2.0 * math.log(2e9))


def bounded(run: Callable[[Errors], F64], errors: Errors) -> tuple[F64, F64]:
    """Return the result of a run without errors, (rows, n), and how far its rows may be from it, (rows,), as norms."""
    value = run(EXACT)
    runs = [run(replace(errors, signs=np.random.default_rng(seed))) - value for seed in range(RUNS)]
    return value, C * np.sqrt(np.mean([np.square(off).sum(axis=1) for off in runs], axis=0))


def errors_of(wire: str, nranks: int, heads: Sequence[int], inner: Sequence[int], width: int) -> Errors:
    """Return the errors of a rig whose ranks sum what they have.

    Args:
        wire: how sums cross the links.
        nranks: ranks that sum; with one, nothing crosses a link.
        heads: by rank how many heads it has.
        inner: by rank how much of the inner width it has.
        width: elements of a head.
    """
    if nranks < 2:
        return EXACT
    return Errors(None, wire, _slices([count * width for count in heads]), _slices(inner))


def _slices(counts: Sequence[int]) -> list[slice]:
    return [slice(start, stop) for start, stop in pairwise(accumulate(counts, initial=0))]
