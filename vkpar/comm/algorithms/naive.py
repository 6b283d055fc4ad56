"""Naive: everyone sends all to rank 0, which sums and sends the result back: the oracle that the others are held to."""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule import Forward, Problem, Reduce, Span, Step, pipelined, require_slots, segments

_ROOT = 0


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: one to fill while the other is read."""
    return 2


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; rank 0 owns everything."""
    require_slots(problem, "naive", least_slots(problem.nranks))
    parts = segments(Span(0, problem.count), problem.slots.blocks)
    return pipelined([_stages(problem, index + problem.generation, span) for index, span in enumerate(parts)])


def _stages(problem: Problem, turn: int, span: Span) -> list[list[Step]]:
    others = [rank for rank in range(problem.nranks) if rank != _ROOT]
    slots = {rank: problem.slots.slot(rank, turn % 2) for rank in range(problem.nranks)}
    givers = [rank for rank in others if problem.contributes(rank)]
    gather = [Step(rank, "gather", (Reduce(span, own_at=0, out_slot=slots[rank]),)) for rank in givers]
    total = Reduce(
        span,
        tuple(slots[rank] for rank in givers),
        0 if problem.contributes(_ROOT) else None,
        to_array=True,
        out_slot=slots[_ROOT],
        final=True,
    )
    broadcast = [Step(rank, "broadcast", (Forward(span, slots[_ROOT]),)) for rank in others]
    return [gather, [Step(_ROOT, "reduce", (total,))], broadcast]
