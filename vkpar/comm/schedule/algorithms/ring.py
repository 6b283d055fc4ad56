"""Ring: reduce-scatter, then all-gather, to the next rank each time.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009: 2(n-1) steps, each
rank sends 2(n-1)/n of the array. A reduce_scatter is the first half alone. In the second half of a reduce, the root
takes every sum from its owner.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.pipeline import abreast, owned, segments
from vkpar.comm.schedule.primitives import recv_copy, recv_copy_send, recv_reduce_copy_send, recv_reduce_send, send
from vkpar.comm.schedule.steps import Action, Problem, Span, Step

_WORTH_CUTTING = 1024  # blocks: a smaller segment takes longer to start than to send


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: while a rank fills one, its next rank may not have read the one before."""
    return 2


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; rank r owns chunk r, which starts its way at the rank after r."""
    in_flight = problem.slots.per_rank // 2
    parts = [
        segments(chunk, problem.slots.blocks, min(in_flight, chunk.blocks // _WORTH_CUTTING))
        for chunk in owned(problem)
    ]
    turns = [problem.generation * in_flight] * problem.nranks
    rows = abreast(parts)
    for first in range(0, len(rows), in_flight):
        rings = [_Ring(problem, spans, turns) for spans in rows[first : first + in_flight]]
        for time in range(_rounds(problem)):
            for ring in rings:
                yield from ring.round(time)


def _rounds(problem: Problem) -> int:
    n = problem.nranks
    return {"all_reduce": 2 * n - 1, "reduce": n + 1, "reduce_scatter": n}[problem.collective]


class _Ring:
    """One segment of every chunk, ``spans``, on its way round; ``turns`` are the slots that each rank has filled."""

    def __init__(self, problem: Problem, spans: dict[int, Span], turns: list[int]) -> None:
        self._problem = problem
        self._spans = spans
        self._turns = turns
        self._held: dict[int, int] = {}  # by chunk, the slot that holds it now

    def round(self, time: int) -> Iterator[Step]:
        """Yield every rank's step at ``time``; the steps read slots that were filled before this round.

        Rank r works on chunk r - 1 - time, modulo the ranks, as in NCCL (``runRing`` in its ``all_reduce.h``): chunk c
        sets out from rank c + 1 at time 0 and moves on by a rank each time. Its owner c adds the last term at time
        n - 1, and the finished sum passes the other ranks once more until time 2n - 2.
        """
        n, root = self._problem.nranks, self._problem.root
        if time >= n and root is not None:
            yield from self._collect(root)
            return
        before = dict(self._held)
        for rank in range(n):
            chunk = (rank - 1 - time) % n
            action = self._action(time, rank, chunk, before.get(chunk)) if chunk in self._spans else None
            if action is not None:
                yield Step(rank, "reduce-scatter" if time < n else "all-gather", (action,))
                if action.out_slot is not None:
                    self._held[chunk] = action.out_slot

    def _action(self, time: int, rank: int, chunk: int, held: int | None) -> Action | None:
        """Return what ``rank`` does with ``chunk``, in slot ``held``; None where it has nothing to send."""
        problem, span, n = self._problem, self._spans[chunk], self._problem.nranks
        sources = () if held is None else (held,)
        own_at = len(sources) if problem.contributes(rank) else None
        if own_at is None and not sources:
            return None
        if time == n - 1:
            to = self._fill(rank) if problem.sent(chunk) else None
            return recv_reduce_copy_send(span, sources, own_at, to, stored=problem.receives(rank, chunk))
        if held is None:
            return send(span, self._fill(rank))
        if time < n - 1:
            return recv_reduce_send(span, sources, own_at, self._fill(rank))
        if time < 2 * n - 2:
            return recv_copy_send(span, held, self._fill(rank))
        return recv_copy(span, held)

    def _collect(self, root: int) -> Iterator[Step]:
        sums = tuple(recv_copy(span, self._held[chunk]) for chunk, span in self._spans.items() if chunk != root)
        if sums:
            yield Step(root, "gather", sums)

    def _fill(self, rank: int) -> int:
        self._turns[rank] += 1
        return self._problem.slots.slot(rank, self._turns[rank] - 1)
