"""Direct: every rank publishes all of its elements and sums everybody's in rank order: one hop, n times the bytes.

For small messages between ranks of the same device model, whose sums agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule import Problem, Reduce, Span, Step, pipelined, require, segments

COLLECTIVES = frozenset({"all_reduce"})


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: one to fill while the other is read."""
    return 2


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; every rank sums every segment."""
    require(problem, "direct", least_slots(problem.nranks), COLLECTIVES)
    parts = segments(Span(0, problem.count), problem.slots.blocks)
    return pipelined([_stages(problem, index + problem.generation, span) for index, span in enumerate(parts)])


def _stages(problem: Problem, turn: int, span: Span) -> list[list[Step]]:
    slots = {rank: problem.slots.slot(rank, turn % 2) for rank in problem.contributors}
    publish = [Step(rank, "publish", (Reduce(span, own_at=0, out_slot=slot),)) for rank, slot in slots.items()]
    reduce = Reduce(span, tuple(slots.values()), to_array=True)
    return [publish, [Step(rank, "reduce", (reduce,)) for rank in range(problem.nranks)]]
