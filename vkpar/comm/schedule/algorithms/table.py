"""The one table of the algorithms that reduce: a row holds every fact that the rest of the library asks for.

A further algorithm is one file with a ``steps`` function and one row. Two schedules reduce nothing and have no row:
:mod:`~vkpar.comm.schedule.algorithms.p2p` moves data, :mod:`~vkpar.comm.schedule.algorithms.barrier` only waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vkpar.comm.schedule.algorithms import direct, naive, ring, tree, two_level, two_shot
from vkpar.comm.schedule.steps import MOST_SOURCES, Problem, Step
from vkpar.errors import UnsupportedError

_EVERY = frozenset({"all_reduce", "reduce", "reduce_scatter"})
_ROOTED = frozenset({"all_reduce", "reduce"})
_ALL_REDUCE = frozenset({"all_reduce"})


@dataclass(frozen=True)
class Algorithm:
    """An algorithm and the facts about it.

    Attributes:
        schedule: yields the steps of a problem that the row allows.
        least_slots: returns the fewest slots per rank for a number of ranks.
        collectives: the collectives that it does, of ``"all_reduce"``, ``"reduce"`` and ``"reduce_scatter"``.
        most_ranks: the most ranks that it takes.
        sums_travel: unfinished sums cross links, so that contributions must be sent wide enough to hold them.
        every_rank_sums: every rank sums all elements; replicas agree only where all ranks run the same driver on the
            same device model.
        reads_whole: a rank reads the whole array of every other rank, so that large messages take too long.
        takes_shares: chunks may have unequal shares.
        built_in_nbytes: the built-in choice takes it for messages whose bytes on the wire, times the number of other
            ranks, are at most this; with 0 only a caller or a tuning takes it.
        tuned: measuring a rig times it; else only measuring one within whose groups slots are carried does.
        tunes_segments: measuring also tries longer and shorter segments.
        tunes_copies: measuring also tries it through copies of the slots.
    """

    name: str
    schedule: Callable[[Problem], Iterator[Step]]
    least_slots: Callable[[int], int]
    collectives: frozenset[str]
    most_ranks: float = MOST_SOURCES
    sums_travel: bool = False
    every_rank_sums: bool = False
    reads_whole: bool = False
    takes_shares: bool = False
    built_in_nbytes: float = 0
    tuned: bool = True
    tunes_segments: bool = True
    tunes_copies: bool = False

    def check_ranks(self, nranks: int) -> None:
        """Refuse more ranks than the algorithm takes.

        Raises:
            UnsupportedError: there are more.
        """
        if nranks > self.most_ranks:
            raise UnsupportedError(f"{self.name} sums at most {self.most_ranks} ranks; there are {nranks}")

    def steps(self, problem: Problem) -> Iterator[Step]:
        """Return the steps that solve ``problem``, in one global order.

        Raises:
            UnsupportedError: the algorithm does not do the collective, or takes fewer ranks.
            InvalidUsageError: the algorithm needs more slots.
        """
        if problem.collective not in self.collectives:
            raise UnsupportedError(f"{self.name} does no {problem.collective}")
        self.check_ranks(problem.nranks)
        problem.slots.require(self.name, self.least_slots(problem.nranks))
        return self.schedule(problem)


# Every tuning must be at least as fast as this algorithm, at every size.
BASELINE = Algorithm("naive", naive.steps, naive.least_slots, _ROOTED, reads_whole=True, tunes_segments=False)

# The built-in choice takes the first row that fits.
TABLE: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "direct",
            direct.steps,
            direct.least_slots,
            _ALL_REDUCE,
            every_rank_sums=True,
            reads_whole=True,
            # Measured on two H200s, see docs/performance.md: one hop beats two until its bytes take longer.
            built_in_nbytes=1280 << 10,
        ),
        Algorithm(
            "two_shot",
            two_shot.steps,
            two_shot.least_slots,
            _EVERY,
            takes_shares=True,
            built_in_nbytes=math.inf,
            tunes_copies=True,
        ),
        Algorithm(
            "ring",
            ring.steps,
            ring.least_slots,
            _EVERY,
            most_ranks=math.inf,
            sums_travel=True,
            built_in_nbytes=math.inf,
        ),
        Algorithm(
            "two_level",
            two_level.steps,
            two_level.least_slots,
            _EVERY,
            sums_travel=True,
            tuned=False,
        ),
        Algorithm("tree", tree.steps, tree.least_slots, _ALL_REDUCE, sums_travel=True),
        BASELINE,
    )
}
