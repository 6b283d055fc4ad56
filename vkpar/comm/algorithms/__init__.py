"""The AllReduce algorithms: each turns a problem into steps. This is the one table of their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vkpar.comm.algorithms import direct, naive, ring, two_shot
from vkpar.comm.schedule import Problem, Step


@dataclass(frozen=True)
class Algorithm:
    """An algorithm and what the rest needs to know of it.

    Attributes:
        sums_travel: unfinished sums cross links, so that contributions must be sent wide enough to hold them.
        every_rank_sums: replicas agree only where all ranks run the same driver on the same device model.
        least_slots: the fewest slots a rank, from the number of ranks.
    """

    name: str
    steps: Callable[[Problem], Iterator[Step]]
    least_slots: Callable[[int], int]
    sums_travel: bool = False
    every_rank_sums: bool = False


TABLE: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("ring", ring.steps, ring.least_slots, sums_travel=True),
        Algorithm("two_shot", two_shot.steps, two_shot.least_slots),
        Algorithm("direct", direct.steps, direct.least_slots, every_rank_sums=True),
        Algorithm("naive", naive.steps, naive.least_slots),
    )
}
