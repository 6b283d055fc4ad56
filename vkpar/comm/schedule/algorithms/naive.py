"""Naive: every rank sends its elements to one rank, which sums them and sends the result to all that receive it.

The tests compare the other algorithms with this one.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.pipeline import pipelined, segments
from vkpar.comm.schedule.primitives import recv_copy, recv_reduce_copy_send, send
from vkpar.comm.schedule.steps import Problem, Span, Step


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: one to fill while the other is read."""
    return 2


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; the root, rank 0 where there is none, owns everything."""
    parts = segments(Span(0, problem.count), problem.slots.blocks)
    return pipelined([_stages(problem, index + problem.generation, span) for index, span in enumerate(parts)])


def _stages(problem: Problem, turn: int, span: Span) -> list[list[Step]]:
    root = problem.root or 0
    slots = {rank: problem.slots.slot(rank, turn % 2) for rank in range(problem.nranks)}
    givers = [rank for rank in problem.contributors if rank != root]
    takers = [rank for rank in range(problem.nranks) if rank != root and problem.receives(rank, root)]
    sources, to = tuple(slots[rank] for rank in givers), slots[root] if takers else None
    return [
        [Step(rank, "gather", (send(span, slots[rank]),)) for rank in givers],
        [Step(root, "reduce", (recv_reduce_copy_send(span, sources, problem.own_at(root, givers), to),))],
        [Step(rank, "broadcast", (recv_copy(span, slots[root]),)) for rank in takers],
    ]
