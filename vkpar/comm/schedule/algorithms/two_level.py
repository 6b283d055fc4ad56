"""Two-level: groups of ranks sum their own first, the owner of a chunk sums the groups' sums, all gather: three hops.

A group is what lives in one process, or what the cards' own link joins. Of each foreign chunk one rank of the group
sums what the group's ranks publish, another one for every chunk, so that one sum of a group crosses to the owner in
place of all of its contributions. Where slots of other groups cost every reader, one rank of the group reads the
finished sum, too, and hands it on: a fourth hop. Without groups, all ranks are one, and it is two_shot.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.pipeline import abreast, interleaved, overlapped, owned, ramped
from vkpar.comm.schedule.primitives import recv_copy, recv_copy_send, recv_reduce_copy_send, recv_reduce_send, send
from vkpar.comm.schedule.steps import Problem, Reduce, Span, Step


def least_slots(nranks: int) -> int:
    """Return the fewest slots a rank: two sets, each of one per other owner and one for the own sum."""
    return 2 * nranks


def steps(problem: Problem) -> Iterator[Step]:
    """Yield the steps; rank r owns chunk r."""
    sets = problem.slots.per_rank // problem.nranks
    first = problem.generation * (sets // 2)
    parts = [ramped(chunk, problem.slots.blocks) for chunk in owned(problem)]
    rounds = [
        _Turn(problem, (first + index) % sets * problem.nranks, spans).stages()
        for index, spans in enumerate(abreast(parts))
    ]
    # What is handed on is sent in slots that an overlapping segment would fill.
    return interleaved(rounds, sets) if _hands_on(problem) else overlapped(rounds)


def _hands_on(problem: Problem) -> bool:
    return problem.hands_on and problem.collective == "all_reduce"


class _Turn:
    """One segment of every chunk, ``spans`` by owner; ``first`` is the first slot of the set to use, on every rank."""

    def __init__(self, problem: Problem, first: int, spans: dict[int, Span]) -> None:
        self._problem, self._first, self._spans = problem, first, spans
        groups = problem.groups or (0,) * problem.nranks
        self._groups = groups
        self._givers: dict[int, list[int]] = {}  # by group, its ranks that add their elements
        for rank in problem.contributors:
            self._givers.setdefault(groups[rank], []).append(rank)

    def _slot(self, rank: int, owner: int) -> int:
        return self._problem.slots.slot(rank, self._first + owner)

    def _collector(self, group: int, owner: int) -> int:
        """Return which rank of a foreign group sums its elements of chunk ``owner``."""
        givers = self._givers[group]
        return givers[owner % len(givers)]

    def _senders(self, owner: int) -> list[int]:
        """Return the ranks whose slots the owner sums: the others of its group, and a collector of each other group."""
        own = self._groups[owner]
        foreign = [self._collector(group, owner) for group in self._givers if group != own]
        return sorted([*(rank for rank in self._givers.get(own, []) if rank != owner), *foreign])

    def stages(self) -> list[list[Step]]:
        """Return the steps, stage by stage; each slot is read one stage after it was filled."""
        contribute = [self._contribute(rank) for rank in self._problem.contributors]
        publish = [self._publish(rank) for rank in self._problem.contributors]
        reduce = [self._reduce(owner) for owner in self._spans]
        hand_on = [self._hand_on(rank) for rank in range(self._problem.nranks)]
        gather = [self._gather(rank) for rank in range(self._problem.nranks)]
        stages = [contribute, publish, reduce, *([hand_on] if _hands_on(self._problem) else []), gather]
        return [[step for step in stage if step.actions] for stage in stages]

    def _contribute(self, rank: int) -> Step:
        """Send what the group's collectors sum."""
        group = self._groups[rank]
        foreign = [owner for owner in self._spans if self._groups[owner] != group]
        sent = [owner for owner in foreign if self._collector(group, owner) != rank]
        return Step(rank, "contribute", tuple(send(self._spans[owner], self._slot(rank, owner)) for owner in sent))

    def _publish(self, rank: int) -> Step:
        """Send what owners sum: to those of the group the rank's elements, to others what the group has collected."""
        group = self._groups[rank]
        actions: list[Reduce] = []
        for owner, span in self._spans.items():
            if self._groups[owner] != group:
                if self._collector(group, owner) == rank:
                    actions.append(self._collected(rank, owner))
            elif owner != rank:
                actions.append(send(span, self._slot(rank, owner)))
        return Step(rank, "publish", tuple(actions))

    def _collected(self, rank: int, owner: int) -> Reduce:
        others = [other for other in self._givers[self._groups[rank]] if other != rank]
        sources = tuple(self._slot(other, owner) for other in others)
        own_at = self._problem.own_at(rank, others)
        return recv_reduce_send(self._spans[owner], sources, own_at, self._slot(rank, owner))

    def _reduce(self, owner: int) -> Step:
        senders = self._senders(owner)
        action = recv_reduce_copy_send(
            self._spans[owner],
            tuple(self._slot(rank, owner) for rank in senders),
            self._problem.own_at(owner, senders),
            self._slot(owner, owner) if self._problem.sent(owner) else None,
            stored=self._problem.receives(owner, owner),
        )
        return Step(owner, "reduce", (action,))

    def _reader(self, rank: int, owner: int) -> int | None:
        """Return which rank of a rank's group reads the owner's sum, for itself and the others; None for each."""
        group = self._groups[rank]
        members = [other for other in range(self._problem.nranks) if self._groups[other] == group]
        if not _hands_on(self._problem) or group == self._groups[owner] or len(members) == 1:
            return None
        return members[owner % len(members)]

    def _hand_on(self, rank: int) -> Step:
        owners = [owner for owner in self._spans if self._reader(rank, owner) == rank]
        actions = (
            recv_copy_send(self._spans[owner], self._slot(owner, owner), self._slot(rank, owner)) for owner in owners
        )
        return Step(rank, "hand on", tuple(actions))

    def _gather(self, rank: int) -> Step:
        actions = []
        for owner, span in self._spans.items():
            reader = self._reader(rank, owner)
            if rank not in (owner, reader) and self._problem.receives(rank, owner):
                actions.append(recv_copy(span, self._slot(owner if reader is None else reader, owner)))
        return Step(rank, "gather", tuple(actions))
