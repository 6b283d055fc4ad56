"""P2P: sources publish, targets gather, in one hop; the schedule of all collectives that move data.

Nothing is summed: the source encodes every element once, and the targets store it as they read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from vkpar.comm.schedule.pipeline import overlapped, segments
from vkpar.comm.schedule.primitives import recv_copy, send
from vkpar.comm.schedule.steps import Forward, Move, SlotSet, Span, Step

_Segment = tuple[Span, int, tuple[int, ...]]  # a segment, the slot that it goes through, and who takes it


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: one to fill while the other is read."""
    return 2


def steps(moves: Iterable[Move], slots: SlotSet, generation: int = 0, *, swaps: bool = False) -> Iterator[Step]:
    """Yield the steps; in each round a source fills up to half of its slots, the two halves in turn.

    Args:
        moves: the elements to move; moves to the same rank have different spans.
        slots: the slots.
        generation: see :class:`~vkpar.comm.schedule.steps.Problem`.
        swaps: a rank may store the elements from a partner where its own elements for that partner lie. Two ranks then
            publish for each other at the same time, before either stores. Each move has one target, and no two moves
            have the same source and target.

    Raises:
        InvalidUsageError: too few slots.
    """
    slots.require("p2p", least_slots(slots.nranks))
    half = slots.per_rank // 2
    sources = _sources(moves, slots, generation * half, swaps=swaps)
    last = max((number for pieces in sources.values() for number in pieces), default=-1)
    rounds = (range(first, first + half) for first in range(0, last + 1, half))
    return overlapped([_stages(_some(sources, numbers)) for numbers in rounds])


def _some(sources: dict[int, dict[int, _Segment]], numbers: range) -> dict[int, list[_Segment]]:
    return {source: [pieces[number] for number in numbers if number in pieces] for source, pieces in sources.items()}


def _sources(moves: Iterable[Move], slots: SlotSet, first: int, *, swaps: bool) -> dict[int, dict[int, _Segment]]:
    """Return every source's segments, numbered: without gaps, or so that both ends of a swap have the same number."""
    n, in_turn = slots.nranks, slots.per_rank // 2 * 2  # the halves follow each other
    found: defaultdict[int, dict[int, _Segment]] = defaultdict(dict)
    for move in sorted(moves, key=lambda move: _distance(move, n)):
        pieces = found[move.source]
        for index, span in enumerate(segments(move.span, slots.blocks) if move.targets else ()):
            number = index * n + (move.source + move.targets[0]) % n if swaps else len(pieces)
            pieces[number] = span, slots.slot(move.source, (first + number) % in_turn), move.targets
    return found


def _distance(move: Move, nranks: int) -> int:
    """Return how many ranks after the source the first target is, so that sources begin with different targets."""
    return min(((target - move.source) % nranks for target in move.targets), default=0)


def _stages(sources: dict[int, list[_Segment]]) -> list[list[Step]]:
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
