"""Two-shot: every rank publishes what the others own, each owner sums and publishes, every rank gathers: two hops.

Each contribution is encoded once and each sum once, whatever the number of ranks. In a reduce only the root gathers;
a reduce_scatter ends with the owners' sums.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.pipeline import abreast, overlapped, owned, ramped
from vkpar.comm.schedule.primitives import recv_copy, recv_reduce_copy_send, send
from vkpar.comm.schedule.steps import Problem, Span, Step


def least_slots(nranks: int) -> int:
    """Return the fewest slots a rank: two sets, each of one per other owner and one for the own sum."""
    return 2 * nranks


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; rank r owns chunk r."""
    sets = problem.slots.per_rank // problem.nranks
    first = problem.generation * (sets // 2)
    parts = [ramped(chunk, problem.slots.blocks) for chunk in owned(problem)]
    rounds = [
        _Round(problem, (first + index) % sets * problem.nranks, spans).stages()
        for index, spans in enumerate(abreast(parts))
    ]
    return overlapped(rounds, min(problem.slots.lag, sets - 1))


class _Round:
    """One segment of every chunk, ``spans`` by owner; ``first`` is the first slot of the set to use, on every rank."""

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
        sent = {owner: span for owner, span in self._spans.items() if owner != rank}
        return Step(rank, "publish", tuple(send(span, self._slot(rank, owner)) for owner, span in sent.items()))

    def _reduce(self, owner: int) -> Step:
        others = [rank for rank in self._problem.contributors if rank != owner]
        action = recv_reduce_copy_send(
            self._spans[owner],
            tuple(self._slot(rank, owner) for rank in others),
            self._problem.own_at(owner, others),
            self._slot(owner, owner) if self._problem.sent(owner) else None,
            stored=self._problem.receives(owner, owner),
        )
        return Step(owner, "reduce", (action,))

    def _gather(self, rank: int) -> Step:
        actions = (
            recv_copy(span, self._slot(owner, owner))
            for owner, span in self._spans.items()
            if owner != rank and self._problem.receives(rank, owner)
        )
        return Step(rank, "gather", tuple(actions))
