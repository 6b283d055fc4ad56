"""Direct: every rank publishes all of its elements and sums everybody's in rank order: one hop, n times the bytes.

For small messages between ranks of the same device model, whose sums agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.steps import Problem, Reduce, Span, Step, overlapped, ramped, require

COLLECTIVES = frozenset({"all_reduce"})


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: one to fill while the other is read."""
    return 2


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; every rank sums every segment."""
    require(problem, "direct", least_slots(problem.nranks), COLLECTIVES)
    parts = ramped(Span(0, problem.count), problem.slots.blocks)
    return overlapped([_stages(problem, index + problem.generation, span) for index, span in enumerate(parts)])


def _stages(problem: Problem, turn: int, span: Span) -> list[list[Step]]:
    slots = {rank: problem.slots.slot(rank, turn % 2) for rank in problem.contributors}
    publish = [
        Step(rank, "publish", (Reduce(span, own_at=0, to_array=True, out_slot=slot),)) for rank, slot in slots.items()
    ]
    return [publish, [Step(rank, "reduce", (_reduce(rank, span, slots),)) for rank in range(problem.nranks)]]


def _reduce(rank: int, span: Span, slots: dict[int, int]) -> Reduce:
    """Sum what the others sent and, of the rank's own, what it sent: it has stored that, so none of it comes back."""
    own_at = sum(other < rank for other in slots) if rank in slots else None
    others = tuple(slot for other, slot in slots.items() if other != rank)
    return Reduce(span, others, own_at, to_array=True, own_stored=True)
