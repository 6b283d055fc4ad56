"""P2P: sources publish, targets gather, one hop: all_gather, broadcast, all_to_all and send_recv.

Nothing is summed, so every element is encoded once, by its source, and stored as it is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from vkpar.comm.schedule.pipeline import overlapped, segments
from vkpar.comm.schedule.primitives import recv_copy, send
from vkpar.comm.schedule.steps import Forward, Move, SlotSet, Span, Step

_Piece = tuple[Span, int, tuple[int, ...]]  # a segment, the slot that it goes through, and who takes it


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: one to fill while the other is read."""
    return 2


def steps(moves: Iterable[Move], slots: SlotSet, generation: int = 0) -> Iterator[Step]:
    """Yield the steps; in each round a source fills up to half of its slots, the two halves in turn.

    Args:
        moves: what goes where; moves to the same rank have spans of their own.
        slots: the slots.
        generation: see :class:`~vkpar.comm.schedule.steps.Problem`.

    Raises:
        InvalidUsageError: too few slots.
    """
    slots.require("p2p", least_slots(slots.nranks))
    half = slots.per_rank // 2
    sources: defaultdict[int, list[_Piece]] = defaultdict(list)
    for move in sorted(moves, key=lambda move: _distance(move, slots.nranks)):
        for span in segments(move.span, slots.blocks) if move.targets else ():
            index = len(sources[move.source]) + generation * half  # the halves follow each other
            slot = slots.slot(move.source, index % (2 * half))
            sources[move.source].append((span, slot, move.targets))
    longest = max(map(len, sources.values()), default=0)
    rounds = (
        {source: pieces[first : first + half] for source, pieces in sources.items()}
        for first in range(0, longest, half)
    )
    return overlapped([_stages(pieces) for pieces in rounds])


def _distance(move: Move, nranks: int) -> int:
    """Return how far on the first target is: sources that begin with different targets keep all of them busy."""
    return min(((target - move.source) % nranks for target in move.targets), default=0)


def _stages(sources: dict[int, list[_Piece]]) -> list[list[Step]]:
    publish = [
        Step(source, "publish", tuple(send(span, slot, final=True) for span, slot, _ in pieces))
        for source, pieces in sorted(sources.items())
        if pieces
    ]
    gathered: defaultdict[int, list[Forward]] = defaultdict(list)
    for pieces in sources.values():
        for span, slot, targets in pieces:
            for target in targets:
                gathered[target].append(recv_copy(span, slot))
    return [publish, [Step(target, "gather", tuple(actions)) for target, actions in sorted(gathered.items())]]
