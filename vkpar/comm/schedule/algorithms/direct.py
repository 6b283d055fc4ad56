"""Direct, in prose one-shot: every rank publishes its elements and sums everybody's: one hop, n times the bytes.

For small messages between ranks of the same device model, whose sums, all in rank order, agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.pipeline import overlapped, ramped
from vkpar.comm.schedule.steps import Problem, Reduce, Span, Step


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: one to fill while the other is read."""
    return 2


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; every rank sums every segment."""
    parts = ramped(Span(0, problem.count), problem.slots.blocks)
    stages = [_stages(problem, index + problem.generation, span) for index, span in enumerate(parts)]
    return overlapped(stages, problem.slots.lag)


def _stages(problem: Problem, turn: int, span: Span) -> list[list[Step]]:
    slots = {rank: problem.slots.slot(rank, turn % (problem.slots.lag + 1)) for rank in problem.contributors}
    publish = [
        Step(rank, "publish", (Reduce(span, own_at=0, to_array=True, out_slot=slot),)) for rank, slot in slots.items()
    ]
    return [publish, [Step(rank, "reduce", (_reduce(problem, rank, span, slots),)) for rank in range(problem.nranks)]]


def _reduce(problem: Problem, rank: int, span: Span, slots: dict[int, int]) -> Reduce:
    """Sum the other ranks' elements and the rank's own, rounded as they were sent, which the rank stored."""
    others = [other for other in slots if other != rank]
    sources = tuple(slots[other] for other in others)
    return Reduce(span, sources, problem.own_at(rank, others), to_array=True, own_stored=True)
