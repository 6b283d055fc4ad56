"""Two-shot: every rank publishes what the others own, each owner sums and publishes, every rank gathers: two hops.

Each contribution is encoded once and each sum once, whatever the number of ranks. In a reduce only the root gathers;
a reduce_scatter ends with the owners' sums.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.steps import Forward, Problem, Reduce, Span, Step, overlapped, ramped, require

COLLECTIVES = frozenset({"all_reduce", "reduce", "reduce_scatter"})


def least_slots(nranks: int) -> int:
    """Return the fewest slots a rank: two sets, each of one per other owner and one for the own sum."""
    return 2 * nranks


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; rank r owns chunk r."""
    require(problem, "two_shot", least_slots(problem.nranks), COLLECTIVES)
    sets = problem.slots.per_rank // problem.nranks
    parts = [ramped(chunk, problem.slots.blocks) for chunk in problem.chunks()]
    rounds = []
    for index in range(max(map(len, parts))):
        spans = {owner: part[index] for owner, part in enumerate(parts) if index < len(part)}
        turn = (index + problem.generation * (sets // 2)) % sets
        rounds.append(_Round(problem, turn * problem.nranks, spans).stages())
    return overlapped(rounds)


class _Round:
    """One segment of every chunk.

    Args:
        problem: what is to be done.
        first: the first slot of the set to use, on every rank.
        spans: the segments, by owner.
    """

    def __init__(self, problem: Problem, first: int, spans: dict[int, Span]) -> None:
        self._problem = problem
        self._first = first
        self._spans = spans

    def _slot(self, rank: int, owner: int) -> int:
        return self._problem.slots.slot(rank, self._first + owner)

    def stages(self) -> list[list[Step]]:
        ranks = range(self._problem.nranks)
        publish = [self._publish(rank) for rank in ranks if self._problem.contributes(rank)]
        reduce = [self._reduce(owner) for owner in self._spans]
        gather = [self._gather(rank) for rank in ranks]
        return [[step for step in stage if step.actions] for stage in (publish, reduce, gather)]

    def _publish(self, rank: int) -> Step:
        actions = (
            Reduce(span, own_at=0, out_slot=self._slot(rank, owner))
            for owner, span in self._spans.items()
            if owner != rank
        )
        return Step(rank, "publish", tuple(actions))

    def _reduce(self, owner: int) -> Step:
        others = [rank for rank in self._problem.contributors if rank != owner]
        own_at = sum(rank < owner for rank in others) if self._problem.contributes(owner) else None
        action = Reduce(
            self._spans[owner],
            tuple(self._slot(rank, owner) for rank in others),
            own_at,
            to_array=self._problem.receives(owner, owner),
            out_slot=self._slot(owner, owner) if self._problem.sent(owner) else None,
            final=True,
        )
        return Step(owner, "reduce", (action,))

    def _gather(self, rank: int) -> Step:
        actions = (
            Forward(span, self._slot(owner, owner))
            for owner, span in self._spans.items()
            if owner != rank and self._problem.receives(rank, owner)
        )
        return Step(rank, "gather", tuple(actions))
