"""Ring: reduce-scatter, then all-gather, to the next rank each time.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009: 2(n-1) steps, each
rank sends 2(n-1)/n of the array. A reduce_scatter is the first half; in a reduce the root takes every sum from its
owner instead of the second.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.steps import Forward, Problem, Reduce, Span, Step, require, segments

COLLECTIVES = frozenset({"all_reduce", "reduce", "reduce_scatter"})
_WORTH_CUTTING = 1024  # blocks: a smaller segment takes longer to start than to send


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: while a rank fills one, its next rank may not have read the one before."""
    return 2


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; rank r owns chunk r, which starts its way at the rank after r."""
    require(problem, "ring", least_slots(problem.nranks), COLLECTIVES, most_ranks=None)
    in_flight = problem.slots.per_rank // 2
    parts = [
        segments(chunk, problem.slots.blocks, min(in_flight, chunk.blocks // _WORTH_CUTTING))
        for chunk in problem.chunks()
    ]
    ring = _Ring(problem)
    for first in range(0, max(map(len, parts)), in_flight):
        lanes = range(first, first + in_flight)
        ring.start()
        for time in range(ring.rounds):
            for lane in lanes:
                spans = [part[lane] if lane < len(part) else None for part in parts]
                yield from ring.round(time, lane, spans)


class _Ring:
    """Which slot holds each chunk's segment on its way round.

    Attributes:
        rounds: how many there are.
    """

    def __init__(self, problem: Problem) -> None:
        n = problem.nranks
        self._order = problem.order or tuple(range(n))
        self.rounds = {"all_reduce": 2 * n - 1, "reduce": n + 1, "reduce_scatter": n}[problem.collective]
        self._problem = problem
        self._turn = [problem.generation * (problem.slots.per_rank // 2)] * n
        self._held: dict[tuple[int, int], int] = {}  # (lane, chunk) -> the slot that holds it now

    def start(self) -> None:
        """Forget the lanes before: their sums are everywhere."""
        self._held.clear()

    def round(self, time: int, lane: int, spans: list[Span | None]) -> Iterator[Step]:
        """Yield what every rank does with lane ``lane`` at ``time``; all read what was sent before this round."""
        n = self._problem.nranks
        if time >= n and self._problem.root is not None:
            yield from self._collect(self._problem.root, lane, spans)
            return
        sent: dict[tuple[int, int], int] = {}
        for place, rank in enumerate(self._order):
            chunk = self._order[(place - 1 - time) % n]
            span = spans[chunk]
            if span is None:
                continue
            if time < n:
                step = self._reduce(rank, lane, chunk, span, final=time == n - 1)
            else:
                step = self._forward(rank, lane, chunk, span, last=time == 2 * n - 2)
            if step is not None:
                yield step
                for slot in step.writes:
                    sent[lane, chunk] = slot
        self._held.update(sent)

    def _reduce(self, rank: int, lane: int, chunk: int, span: Span, *, final: bool) -> Step | None:
        held = self._held.get((lane, chunk))
        sources = () if held is None else (held,)
        own_at = len(sources) if self._problem.contributes(rank) else None
        if own_at is None and not sources:
            return None
        out_slot = self._take(rank) if not final or self._problem.sent(chunk) else None
        stored = final and self._problem.receives(rank, chunk)
        return Step(rank, "reduce-scatter", (Reduce(span, sources, own_at, stored, out_slot, final),))

    def _forward(self, rank: int, lane: int, chunk: int, span: Span, *, last: bool) -> Step:
        out_slot = None if last else self._take(rank)
        return Step(rank, "all-gather", (Forward(span, self._held[lane, chunk], out_slot),))

    def _collect(self, root: int, lane: int, spans: list[Span | None]) -> Iterator[Step]:
        sums = [(chunk, span) for chunk, span in enumerate(spans) if span is not None and chunk != root]
        if sums:
            yield Step(root, "gather", tuple(Forward(span, self._held[lane, chunk]) for chunk, span in sums))

    def _take(self, rank: int) -> int:
        self._turn[rank] += 1
        return self._problem.slots.slot(rank, self._turn[rank] - 1)
