"""The algorithms: each turns a problem into steps.

:data:`TABLE` is the one table of the reductions' names. Two are no reductions, and have no choice: ``exchange`` moves
data (``exchange.steps(moves, slots, generation)``), ``meet`` is the barrier (``meet.steps(slots, generation)``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vkpar.comm.schedule.algorithms import barrier as meet
from vkpar.comm.schedule.algorithms import direct, naive, ring, tree, two_shot
from vkpar.comm.schedule.algorithms import p2p as exchange
from vkpar.comm.schedule.steps import Problem, Step

__all__ = ["TABLE", "Algorithm", "exchange", "meet"]


@dataclass(frozen=True)
class Algorithm:
    """An algorithm and what the rest needs to know of it.

    Attributes:
        collectives: which of ``"all_reduce"``, ``"reduce"`` and ``"reduce_scatter"`` it does.
        sums_travel: unfinished sums cross links, so that contributions must be sent wide enough to hold them.
        every_rank_sums: replicas agree only where all ranks run the same driver on the same device model.
        least_slots: the fewest slots a rank, from the number of ranks.
    """

    name: str
    steps: Callable[[Problem], Iterator[Step]]
    least_slots: Callable[[int], int]
    collectives: frozenset[str]
    sums_travel: bool = False
    every_rank_sums: bool = False


TABLE: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("ring", ring.steps, ring.least_slots, ring.COLLECTIVES, sums_travel=True),
        Algorithm("two_shot", two_shot.steps, two_shot.least_slots, two_shot.COLLECTIVES),
        Algorithm("direct", direct.steps, direct.least_slots, direct.COLLECTIVES, every_rank_sums=True),
        Algorithm("tree", tree.steps, tree.least_slots, tree.COLLECTIVES, sums_travel=True),
        Algorithm("naive", naive.steps, naive.least_slots, naive.COLLECTIVES),
    )
}
