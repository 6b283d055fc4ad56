"""Tree: recursive halving, then recursive doubling, with the rank 1, 2, 4, ... away.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004 (Thakur, Rabenseifner and Gropp, 2005, for
ranks that are no power of two): 2 log2 p steps, where p is the largest power of two <= n. Rank p + i gives its elements
to rank i (folding) and gets the result from it.

No array holds an unfinished sum: what a rank received for a chunk stays in the senders' slots until the rank adds all
of it to its own elements, in the ranks' order, and sends the chunk on, which it does once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from vkpar.comm.schedule.pipeline import abreast, chunks, interleaved, segments
from vkpar.comm.schedule.primitives import recv_copy, recv_copy_send, recv_reduce_copy_send, recv_reduce_send
from vkpar.comm.schedule.steps import Problem, Reduce, Span, Step


def least_slots(nranks: int) -> int:
    """Return the fewest slots a rank: one per chunk. The chunks are as many as the largest power of two <= ``nranks``.

    One slot per chunk will do: doubling puts a chunk's sum into the slot from which halving's contribution to that sum
    was read before.
    """
    return 1 << (nranks.bit_length() - 1)


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; rank r owns chunk r, if there is one of that number."""
    owners = least_slots(problem.nranks)
    sets = problem.slots.per_rank // owners
    first = problem.generation * (sets // 2)
    parts = [segments(chunk, problem.slots.blocks) for chunk in chunks(problem.count, owners)]
    rounds = [
        _Round(problem, (first + index) % sets * owners, spans).stages() for index, spans in enumerate(abreast(parts))
    ]
    return interleaved(rounds, sets)


class _Round:
    """One segment of every chunk, ``spans`` by chunk; on every rank, chunk c goes through slot ``first`` + c."""

    def __init__(self, problem: Problem, first: int, spans: dict[int, Span]) -> None:
        self._problem = problem
        self._first = first
        self._spans = spans
        self._owners = least_slots(problem.nranks)
        self._received: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # (rank, chunk) -> senders

    def stages(self) -> list[list[Step]]:
        p = self._owners
        near = [1 << bit for bit in range(p.bit_length() - 1)]
        ranks, folded = range(p), range(p, self._problem.nranks)
        stages = [[self._send(rank, "fold", rank - p, range(p)) for rank in folded]]
        stages += [[self._send(rank, "halve", rank ^ d, _block(rank ^ d, d)) for rank in ranks] for d in near[::-1]]
        stages.append([self._finish(rank) for rank in ranks])
        stages += [[self._take(rank, "double", rank ^ d, _block(rank ^ d, d)) for rank in ranks] for d in near]
        stages.append([self._take(rank, "unfold", rank - p, range(p)) for rank in folded])
        filled = ([step for step in stage if step.actions] for stage in stages)
        return [stage for stage in filled if stage]

    def _slot(self, rank: int, chunk: int) -> int:
        return self._problem.slots.slot(rank, self._first + chunk)

    def _send(self, rank: int, phase: str, receiver: int, sent: Iterable[int]) -> Step:
        actions = []
        for chunk in sent:
            if chunk in self._spans and (self._received[rank, chunk] or self._problem.contributes(rank)):
                actions.append(self._sum(rank, chunk, final=False))
                self._received[receiver, chunk].append(rank)
        return Step(rank, phase, tuple(actions))

    def _finish(self, owner: int) -> Step:
        return Step(owner, "reduce", (self._sum(owner, owner, final=True),) if owner in self._spans else ())

    def _sum(self, rank: int, chunk: int, *, final: bool) -> Reduce:
        span, senders, to = self._spans[chunk], sorted(self._received[rank, chunk]), self._slot(rank, chunk)
        sources, own_at = tuple(self._slot(sender, chunk) for sender in senders), self._problem.own_at(rank, senders)
        if not final:
            return recv_reduce_send(span, sources, own_at, to)
        return recv_reduce_copy_send(span, sources, own_at, to if self._problem.sent(chunk) else None)

    def _take(self, rank: int, phase: str, sender: int, taken: Iterable[int]) -> Step:
        """Store finished chunks; pass them on where a rank farther away, or a folded rank, reads them next."""
        farthest = abs(rank - sender) >= self._owners // 2
        passes_on = rank < self._owners and (not farthest or rank + self._owners < self._problem.nranks)
        actions = []
        for chunk in taken:
            if chunk in self._spans:
                span, source = self._spans[chunk], self._slot(sender, chunk)
                to = self._slot(rank, chunk)
                actions.append(recv_copy_send(span, source, to) if passes_on else recv_copy(span, source))
        return Step(rank, phase, tuple(actions))


def _block(rank: int, size: int) -> range:
    """Return the chunks of the block of ``size`` ranks, aligned to ``size``, that ``rank`` is in."""
    return range(rank & -size, (rank & -size) + size)
