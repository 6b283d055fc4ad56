"""Schedules: what each rank does, in one global order, without Vulkan and without threads.

A *chunk* is the part of an array that one rank owns and sums; a *segment* is the part of a chunk that is in flight
at once; a *slot* is the staging cell that holds a segment. Each step is one submission on a queue of its rank. Because
a step reads only slots that earlier steps of the global order wrote, and every queue takes its steps in that order,
no schedule can deadlock; the tests run every algorithm through a simulator that checks both.

Elements are counted in a *virtual* space that all ranks share. A rank's operands say where a virtual element lies in
its source and target arrays, if the element lies there at all.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection
from dataclasses import dataclass, field

from vkpar.abi import formats
from vkpar.errors import InvalidUsageError

BLOCK = formats.BLOCK  # elements that share a scale on the wire; every chunk and segment starts at a multiple
MOST_SOURCES = 16  # slots that one kernel can sum


@dataclass(frozen=True)
class Span:
    """``count`` elements of the virtual space from ``start``, a multiple of :data:`BLOCK`."""

    start: int
    count: int

    @property
    def blocks(self) -> int:
        """Blocks that the span fills, the last one perhaps in part."""
        return -(-self.count // BLOCK)


@dataclass(frozen=True)
class Reduce:
    """Sum ``sources`` and, at place ``own_at`` in rank order, the rank's own elements; store, send, or both.

    Attributes:
        own_at: how many sources come before the own elements; None where the rank adds nothing.
        out_slot: the slot that the sum is sent to; ``final`` tells a finished sum from a contribution.
        own_stored: the own elements are read from the target, where an earlier step stored them, not from the source.
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
        """True where the sum is finished: it is sent as final, or stored and not sent."""
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
class Barrier:
    """Wait for the tokens in ``sources`` and leave one in ``out_slot``; no data moves."""

    sources: tuple[int, ...] = ()
    out_slot: int | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it waits for."""
        return self.sources


@dataclass(frozen=True)
class SlotCopy:
    """Copy the elements ``span`` from ``slot`` to ``out_slot``; one of the slots is a rank's own copy of the other.

    Attributes:
        final: the slot holds a finished sum, not a contribution; these may be laid out differently.
        sends: True where ``out_slot`` is the shared slot, False where ``slot`` is.
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


@dataclass(frozen=True)
class Carry:
    """Send the elements ``span`` in ``slot`` to another process, or receive them there; a token where there is no span.

    Attributes:
        final: as in :class:`SlotCopy`.
        sends: True where they are sent.
        rank: the rank of this process in whose array they lie, in place of the slot: where it gives them, or gets what
            is received; None for the slot.
        copies: they are copied from there to the slot at first, and sent from that.
    """

    span: Span | None
    slot: int
    final: bool = False
    sends: bool = False
    rank: int | None = None
    copies: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """The slot, where it is sent."""
        return (self.slot,) if self.sends and not self.copies else ()

    @property
    def out_slot(self) -> int | None:
        """The slot, where it is received, or copied to."""
        return self.slot if self.copies or not self.sends else None


Action = Reduce | Forward | Barrier | SlotCopy | Carry
_READS = operator.attrgetter("reads")


@dataclass(frozen=True)
class Step:
    """One submission on a queue of ``rank``; its actions touch different elements and slots.

    Attributes:
        rank: whose queue it is; after :func:`vkpar.comm.schedule.slot_copies.through_copies` the number of a queue.
        phase: what the step is for, such as ``"reduce-scatter"``.
        after: the ranks of which it waits for what came before the program.
    """

    rank: int
    phase: str
    actions: tuple[Action, ...]
    after: tuple[int, ...] = field(default=(), kw_only=True)

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        """The slots that the step reads."""
        return tuple(itertools.chain.from_iterable(map(_READS, self.actions)))

    @functools.cached_property
    def writes(self) -> tuple[int, ...]:
        """The slots that the step fills."""
        return tuple(action.out_slot for action in self.actions if action.out_slot is not None)

    @property
    def taken(self) -> tuple[int, ...]:
        """All slots that it reads, wherever they lie."""
        return self.reads

    @property
    def filled(self) -> tuple[int, ...]:
        """All slots that it fills, wherever they lie."""
        return self.writes


@dataclass(frozen=True)
class SlotSet:
    """The slots that a schedule may use: ``per_rank`` of each rank, of ``blocks`` blocks each.

    Attributes:
        base: the id of the first slot; the slots of rank r follow the slots of rank r - 1.
        lag: how many times after it was written a slot is best read: more than 1 where it is under way for a while.
    """

    nranks: int
    per_rank: int
    blocks: int
    base: int = 0
    lag: int = 1

    def slot(self, rank: int, index: int) -> int:
        """Return the id of ``rank``'s slot number ``index``; the numbers begin anew after the last slot."""
        return self.base + rank * self.per_rank + index % self.per_rank

    def require(self, algorithm: str, least: int) -> None:
        """Refuse fewer than ``least`` slots a rank, which ``algorithm`` needs.

        Raises:
            InvalidUsageError: there are fewer.
        """
        if self.per_rank < least:
            raise InvalidUsageError(f"{algorithm} needs {least} slots a rank; there are {self.per_rank}")


@dataclass(frozen=True)
class Problem:
    """The reduction that an algorithm is to schedule: to all ranks, to ``root``, or rank r's part of it to rank r.

    Attributes:
        count: elements of the virtual space.
        contributors: the ranks that add their elements, in order; the others only receive.
        generation: 0 or 1; calls of different generations begin with different slots, so that a call need not wait
            until the slots of the call before it are read.
        root: the one rank that receives (reduce).
        parts: the part that each rank receives (reduce_scatter); ``count`` is the end of the last one.
        shares: the share of the whole that each rank owns (not with ``parts``); None for equal chunks.
        groups: by rank the group, such as a process, within which slots cost less; None for one group.
        hands_on: a slot from outside costs each rank of a group that reads it; else the first one alone.
    """

    nranks: int
    count: int
    slots: SlotSet
    contributors: tuple[int, ...]
    generation: int = 0
    root: int | None = None
    parts: tuple[Span, ...] | None = None
    shares: tuple[float, ...] | None = None
    groups: tuple[int, ...] | None = None
    hands_on: bool = False

    @property
    def collective(self) -> str:
        """``"all_reduce"``, ``"reduce"`` or ``"reduce_scatter"``."""
        if self.parts is not None:
            return "reduce_scatter"
        return "all_reduce" if self.root is None else "reduce"

    def contributes(self, rank: int) -> bool:
        """Say whether ``rank`` adds its elements."""
        return rank in self.contributors

    def own_at(self, rank: int, senders: Collection[int]) -> int | None:
        """Return how many of ``senders`` come before ``rank`` in rank order; None where ``rank`` adds no elements."""
        return sum(other < rank for other in senders) if self.contributes(rank) else None

    def receives(self, rank: int, chunk: int) -> bool:
        """Say whether ``rank`` is to hold the sum of ``chunk``; rank r owns chunk r."""
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
