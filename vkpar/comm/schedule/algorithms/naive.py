"""Naive: everyone sends all to one rank, which sums, and sends the result back unless it alone is to have it.

The oracle that the others are held to.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.steps import Forward, Problem, Reduce, Span, Step, pipelined, require, segments

COLLECTIVES = frozenset({"all_reduce", "reduce"})


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: one to fill while the other is read."""
    return 2


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; the root, rank 0 where there is none, owns everything."""
    require(problem, "naive", least_slots(problem.nranks), COLLECTIVES)
    parts = segments(Span(0, problem.count), problem.slots.blocks)
    return pipelined([_stages(problem, index + problem.generation, span) for index, span in enumerate(parts)])


def _stages(problem: Problem, turn: int, span: Span) -> list[list[Step]]:
    root = problem.root or 0
    slots = {rank: problem.slots.slot(rank, turn % 2) for rank in range(problem.nranks)}
    givers = [rank for rank in problem.contributors if rank != root]
    gather = [Step(rank, "gather", (Reduce(span, own_at=0, out_slot=slots[rank]),)) for rank in givers]
    total = Reduce(
        span,
        tuple(slots[rank] for rank in givers),
        sum(rank < root for rank in givers) if problem.contributes(root) else None,
        to_array=True,
        out_slot=slots[root] if problem.sent(root) else None,
        final=True,
    )
    takers = [rank for rank in range(problem.nranks) if rank != root and problem.receives(rank, root)]
    broadcast = [Step(rank, "broadcast", (Forward(span, slots[root]),)) for rank in takers]
    return [gather, [Step(root, "reduce", (total,))], broadcast]
