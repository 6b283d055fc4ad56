"""Schedules: what each rank does, in one global order, without Vulkan and without threads.

A *chunk* is the part of an array that one rank owns and sums; a *segment* is the part of a chunk that is in flight
at once; a *slot* is the staging cell that holds a segment. Each step is one submission on a queue of its rank. Because
a step reads only slots that earlier steps of the global order wrote, and every queue takes its steps in that order,
no schedule can deadlock; the tests run every algorithm through a simulator that checks both.

Elements are counted in a *virtual* space that all ranks share. Where a virtual element lies in a rank's source and
target arrays, if it lies there at all, is for the executor to know.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from vkpar.errors import InvalidUsageError, UnsupportedError

BLOCK = 256  # elements that share a scale on the wire; every chunk and segment starts at a multiple
MOST_SOURCES = 16  # slots that one kernel can sum


@dataclass(frozen=True)
class Span:
    """``count`` elements of the virtual space from ``start``, a multiple of :data:`BLOCK`."""

    start: int
    count: int

    @property
    def blocks(self) -> int:
        """Blocks that it fills, the last one perhaps in part."""
        return -(-self.count // BLOCK)


@dataclass(frozen=True)
class Reduce:
    """Sum ``sources`` and, at place ``own_at`` in rank order, the rank's own elements; store, send, or both.

    Attributes:
        own_at: how many sources come before the own elements; None where the rank adds nothing.
        out_slot: where the sum is sent; ``final`` tells a finished sum from a contribution.
        own_stored: the own elements are what an earlier step of the rank stored, not what the array held before.
    """

    span: Span
    sources: tuple[int, ...] = ()
    own_at: int | None = None
    to_array: bool = False
    out_slot: int | None = None
    final: bool = False
    own_stored: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it reads."""
        return self.sources

    @property
    def finishes(self) -> bool:
        """Nothing is added any more: it is sent as a finished sum, or stored and not sent."""
        return self.final or (self.to_array and self.out_slot is None)


@dataclass(frozen=True)
class Forward:
    """Store the finished sum that ``slot`` holds and pass its bits on to ``out_slot`` unchanged."""

    span: Span
    slot: int
    out_slot: int | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """The slot that it reads."""
        return (self.slot,)


@dataclass(frozen=True)
class Meet:
    """Wait for the tokens in ``sources`` and leave one in ``out_slot``; no data moves."""

    sources: tuple[int, ...] = ()
    out_slot: int | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it waits for."""
        return self.sources


@dataclass(frozen=True)
class Copy:
    """Copy what ``slot`` holds for ``span`` to ``out_slot``: one of them is a rank's own copy of the other.

    Attributes:
        final: it is a finished sum, not a contribution; the two may be laid out differently.
        sends: the copy is sent, to the slot that ranks share; else what ranks share is fetched.
    """

    span: Span
    slot: int
    out_slot: int
    final: bool = False
    sends: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """The slot that it reads."""
        return (self.slot,)


Action = Reduce | Forward | Meet | Copy


@dataclass(frozen=True)
class Step:
    """One submission on a queue of ``rank``; its actions touch different elements and slots.

    Attributes:
        rank: whose queue it is; after :func:`vkpar.comm.schedule.slot_copies.through_copies` the number of a lane.
        phase: what the step is for, such as ``"reduce-scatter"``.
    """

    rank: int
    phase: str
    actions: tuple[Action, ...]

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that the step reads."""
        return tuple(slot for action in self.actions for slot in action.reads)

    @property
    def writes(self) -> tuple[int, ...]:
        """The slots that the step fills."""
        return tuple(action.out_slot for action in self.actions if action.out_slot is not None)


@dataclass(frozen=True)
class SlotSet:
    """The slots that a schedule may use: ``per_rank`` of each rank, of ``blocks`` blocks each.

    Attributes:
        base: the id of the first slot; rank r's slots follow those of rank r - 1.
    """

    nranks: int
    per_rank: int
    blocks: int
    base: int = 0

    def slot(self, rank: int, index: int) -> int:
        """Return the id of ``rank``'s slot ``index`` (taken in turn)."""
        return self.base + rank * self.per_rank + index % self.per_rank


@dataclass(frozen=True)
class Problem:
    """The reduction that an algorithm is to schedule: to all ranks, to ``root``, or rank r's part of it to rank r.

    Attributes:
        count: elements of the virtual space.
        contributors: the ranks that add their elements, in order; the others only receive.
        generation: 0 or 1; calls that alternate it use different slots first, so that one call need not wait until
            the slots of the one before are read.
        root: the one rank that receives (reduce).
        parts: what each rank receives (reduce_scatter); ``count`` is the end of the last.
        shares: of the whole, what each rank owns (not with ``parts``); None for equal chunks.
        order: the ranks in ring order; None for 0, 1, 2 and so on.
    """

    nranks: int
    count: int
    slots: SlotSet
    contributors: tuple[int, ...]
    generation: int = 0
    root: int | None = None
    parts: tuple[Span, ...] | None = None
    shares: tuple[float, ...] | None = None
    order: tuple[int, ...] | None = None

    @property
    def collective(self) -> str:
        """``"all_reduce"``, ``"reduce"`` or ``"reduce_scatter"``."""
        if self.parts is not None:
            return "reduce_scatter"
        return "all_reduce" if self.root is None else "reduce"

    def contributes(self, rank: int) -> bool:
        """Say whether ``rank`` adds its elements."""
        return rank in self.contributors

    def chunks(self) -> list[Span]:
        """Return what each rank owns; it may be empty."""
        return chunks(self.count, self.nranks, self.shares) if self.parts is None else list(self.parts)

    def receives(self, rank: int, chunk: int) -> bool:
        """Say whether ``rank`` is to hold the sum of ``chunk``, the one that the rank of that number owns."""
        if self.parts is not None:
            return rank == chunk
        return self.root is None or rank == self.root

    def sent(self, chunk: int) -> bool:
        """Say whether any rank but its owner receives ``chunk``."""
        return any(self.receives(rank, chunk) for rank in range(self.nranks) if rank != chunk)


@dataclass(frozen=True)
class Move:
    """Elements of rank ``source`` that ``targets``, other ranks, are to hold as well."""

    span: Span
    source: int
    targets: tuple[int, ...]


def chunks(count: int, nranks: int, shares: Sequence[float] | None = None) -> list[Span]:
    """Cut ``count`` elements into one span per rank; some may be empty.

    They have equal numbers of blocks but for one, or blocks in proportion to ``shares``.
    """
    blocks = -(-count // BLOCK)
    if shares is None:
        edges = [min(count, blocks * rank // nranks * BLOCK) for rank in range(nranks + 1)]
    else:
        ends = [min(1.0, part / sum(shares)) for part in itertools.accumulate(shares)]
        edges = [0, *(min(count, round(blocks * end) * BLOCK) for end in ends[:-1]), count]
    return [Span(start, end - start) for start, end in itertools.pairwise(edges)]


def segments(span: Span, most_blocks: int, at_least: int = 1) -> list[Span]:
    """Cut a span into the fewest equal pieces of at most ``most_blocks`` blocks; ``at_least`` where it has as many."""
    pieces = min(span.blocks, max(at_least, -(-span.blocks // most_blocks)))
    edges = [min(span.count, span.blocks * piece // pieces * BLOCK) for piece in range(pieces + 1)] if pieces else []
    return [Span(span.start + start, end - start) for start, end in itertools.pairwise(edges)]


def ramped(span: Span, most_blocks: int) -> list[Span]:
    """Cut a span as :func:`segments` does, but for shorter pieces at both ends of a long one.

    While the first segment is published nothing else can move, nor while the last one is gathered.
    """
    first, second = most_blocks // 4, most_blocks // 2
    if not first or span.blocks < 3 * most_blocks:
        return segments(span, most_blocks)
    middle = span.blocks - 2 * (first + second)
    pieces = -(-middle // most_blocks)
    between = [first + second + middle * piece // pieces for piece in range(pieces + 1)]
    edges = [0, first, *between, span.blocks - first, span.blocks]
    cuts = [min(span.count, edge * BLOCK) for edge in edges]
    return [Span(span.start + start, end - start) for start, end in itertools.pairwise(cuts)]


def require_slots(slots: SlotSet, algorithm: str, least: int) -> None:
    """Refuse a slot set with fewer than ``least`` slots a rank.

    Raises:
        InvalidUsageError
    """
    if slots.per_rank < least:
        raise InvalidUsageError(f"{algorithm} needs {least} slots a rank; there are {slots.per_rank}")


def require(
    problem: Problem,
    algorithm: str,
    least: int,
    collectives: Container[str],
    most_ranks: int | None = MOST_SOURCES,
) -> None:
    """Refuse what ``algorithm`` cannot schedule: other collectives, more ranks, or fewer slots a rank.

    Raises:
        UnsupportedError, InvalidUsageError
    """
    if problem.collective not in collectives:
        raise UnsupportedError(f"{algorithm} does no {problem.collective}")
    if most_ranks is not None and problem.nranks > most_ranks:
        raise UnsupportedError(f"{algorithm} sums at most {most_ranks} ranks; there are {problem.nranks}")
    require_slots(problem.slots, algorithm, least)


def pipelined(stages: Sequence[Sequence[Sequence[Step]]]) -> Iterator[Step]:
    """Yield the stages of consecutive segments so that the first stage of one runs beside the rest of the one before.

    Args:
        stages: per segment, its stages; per stage, the steps of all ranks.
    """
    for index, stage in enumerate(stages):
        if index == 0:
            yield from stage[0]
        if index + 1 < len(stages):
            yield from stages[index + 1][0]
        for later in stage[1:]:
            yield from later


def overlapped(stages: Sequence[Sequence[Sequence[Step]]]) -> Iterator[Step]:
    """Yield the stages of consecutive segments so that a rank does all of them at a time, each of another segment.

    What a rank has to do at one time is one step: its kernels read and write slots at the same time, so that both
    directions of its link are busy. A step reads what was written one time earlier.

    Args:
        stages: per segment, its stages; per stage, the steps of all ranks.
    """
    longest = max(map(len, stages), default=0)
    for time in range(len(stages) + longest - 1):
        due = [stages[time - at][at] for at in reversed(range(longest)) if _has(stages, time - at, at)]
        ranks: dict[int, list[Step]] = {}
        for step in itertools.chain.from_iterable(due):
            ranks.setdefault(step.rank, []).append(step)
        for rank, steps in sorted(ranks.items()):
            phase = "+".join(dict.fromkeys(step.phase for step in steps))
            yield Step(rank, phase, tuple(action for step in steps for action in step.actions))


def _has(stages: Sequence[Sequence[Sequence[Step]]], segment: int, stage: int) -> bool:
    return 0 <= segment < len(stages) and stage < len(stages[segment])


def interleaved(stages: Sequence[Sequence[Sequence[Step]]], sets: int) -> Iterator[Step]:
    """Yield the stages of consecutive segments so that ``sets`` of them are under way at a time, evenly apart.

    A segment is through before the one ``sets`` later begins, so that the two can use the same slots.

    Args:
        stages: per segment, its stages; per stage, the steps of all ranks.
        sets: how many segments may be under way.
    """
    longest = max(map(len, stages), default=0)
    apart = -(-longest // sets)
    for time in range(apart * (len(stages) - 1) + longest):
        newest = time // apart
        for index in range(max(0, newest - sets + 1), min(newest + 1, len(stages))):
            at = time - index * apart
            if at < len(stages[index]):
                yield from stages[index][at]
