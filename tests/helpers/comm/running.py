"""What the steps of a schedule do to slots and arrays; see ``simulator``, which decides when they do it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vkpar.comm.schedule.steps import BLOCK, Barrier, Forward, Reduce, SlotCopy, Span, Step

Numbers = npt.NDArray[Any]
Maybe = Numbers | None


class ScheduleError(AssertionError):
    """The schedule, or the rule of what waits for what, is wrong."""


class Codec(Protocol):
    """How values are written into slots and read back.

    Two more methods may be there: ``combine(a, b)`` in place of ``a + b``, and ``finish(total)``, which makes the
    result of a finished reduction before it is encoded and stored. A codec that has ``finish`` is for reductions.
    """

    def encode(self, values: Numbers, *, final: bool) -> Any:
        """Return what a slot holds for ``values``."""

    def decode(self, raw: Any) -> Numbers:
        """Return the values that a slot stands for."""


class Plain:
    """Slots hold the numbers as they are."""

    def encode(self, values: Numbers, *, final: bool) -> Any:
        return values.copy()

    def decode(self, raw: Any) -> Numbers:
        return raw


@dataclass
class Call:
    """One collective over arrays in its virtual space; None where a rank adds or receives nothing."""

    steps: Iterable[Step]
    arrays: Sequence[Maybe]
    targets: Sequence[Maybe]
    codec: Codec = field(default_factory=Plain)


@dataclass
class Content:
    """What a slot holds.

    Attributes:
        span: whose values; None for a token.
        owner: the rank that finished the sum; None for contributions and unfinished sums.
        hops: how many links its data crossed, on the longest way, before it was written.
    """

    span: Span | None
    owner: int | None
    hops: int
    raw: Any


@dataclass
class Counts:
    """What a schedule did.

    Attributes:
        steps: by rank; so are ``sent_blocks`` and ``read_blocks``, which count what goes into and comes from slots.
        hops: the longest chain of links that any data crossed.
        talked: (reader, writer) of all slots.
        finished: by rank, how often it finished each element.
        events: when steps began and ended.
    """

    steps: list[int]
    sent_blocks: list[int]
    read_blocks: list[int]
    finished: list[Numbers]
    hops: int = 0
    talked: set[tuple[int, int]] = field(default_factory=set)
    events: list[tuple[str, Step]] = field(default_factory=list)


class Run:
    """The arrays of one collective, and what its steps do to them.

    Args:
        owner_of: tells whose a slot is.
        nranks: number of ranks.
        slot_blocks: how many blocks a slot holds.
        call: the collective.
    """

    def __init__(self, owner_of: Callable[[int], int], nranks: int, slot_blocks: int, call: Call) -> None:
        self.arrays = call.arrays
        self.targets = call.targets
        self._owner_of = owner_of
        self._slot_blocks = slot_blocks
        self._codec = call.codec
        self._combine = getattr(call.codec, "combine", operator.add)
        self._finish = getattr(call.codec, "finish", None)
        size = max((array.size for array in (*call.arrays, *call.targets) if array is not None), default=0)
        finished = [np.zeros(size, np.int64) for _ in range(nranks)]
        self.counts = Counts([0] * nranks, [0] * nranks, [0] * nranks, finished)

    def execute(self, step: Step, content: dict[int, Content], rank: int) -> dict[int, Content]:
        """Do what ``step`` does on a queue of ``rank``; return what it writes into slots."""
        counts, written = self.counts, {}
        counts.steps[rank] += 1
        hops = max((content[slot].hops + 1 for slot in step.reads), default=0)
        counts.hops = max(counts.hops, hops)
        counts.talked |= {(rank, self._owner_of(slot)) for slot in step.reads}
        for action in step.actions:
            if isinstance(action, SlotCopy):
                made = self._copy(action, content)
            elif isinstance(action, Barrier):
                self._barrier(action, content)
                made = Content(None, None, hops, None)
            else:
                do = self._reduce if isinstance(action, Reduce) else self._forward
                raw, owner = do(rank, action, content)  # type: ignore[arg-type]
                made = Content(action.span, owner, hops, raw)
                counts.read_blocks[rank] += action.span.blocks * len(action.reads)
                counts.sent_blocks[rank] += action.span.blocks * (action.out_slot is not None)
            if action.out_slot is not None:
                if made.span and made.span.blocks > self._slot_blocks:
                    raise ScheduleError(f"{action} does not fit a slot")
                written[action.out_slot] = made
        return written

    def _copy(self, action: SlotCopy, content: dict[int, Content]) -> Content:
        held = content[action.slot]
        if held.span != action.span or action.final != (held.owner is not None):
            raise ScheduleError(f"{action} copies {held}")
        return held

    def _barrier(self, action: Barrier, content: dict[int, Content]) -> None:
        for slot in action.sources:
            if content[slot].span is not None:
                raise ScheduleError(f"{action} finds {content[slot]} instead of a token")

    def _reduce(self, rank: int, action: Reduce, content: dict[int, Content]) -> tuple[Any, int | None]:
        for slot in action.sources:
            if content[slot].span != action.span or content[slot].owner is not None:
                raise ScheduleError(f"{action} sums {content[slot]}")
        terms = [self._codec.decode(content[slot].raw) for slot in action.sources]
        if action.own_at is not None:
            own = self.targets if action.own_stored else self.arrays
            terms.insert(action.own_at, _elements(own[rank], rank, action.span))
        if not terms:
            raise ScheduleError(f"{action} sums nothing")
        total = terms[0].copy()
        for term in terms[1:]:
            total = self._combine(total, term)
        if self._finish and action.finishes:
            total = self._finish(total)
        raw = None
        if action.out_slot is not None:
            raw = self._codec.encode(total, final=action.final)
            total = self._codec.decode(raw)
        if action.to_array:
            _elements(self.targets[rank], rank, action.span)[:] = total
        if action.final:
            self.counts.finished[rank][part(action.span)] += 1
        return raw, rank if action.final else None

    def _forward(self, rank: int, action: Forward, content: dict[int, Content]) -> tuple[Any, int | None]:
        held = content[action.slot]
        if held.span != action.span or held.owner is None or held.owner == rank:
            raise ScheduleError(f"rank {rank} forwards {held}")
        _elements(self.targets[rank], rank, action.span)[:] = self._codec.decode(held.raw)
        return held.raw, held.owner


def part(span: Span) -> slice:
    """Return where a span lies in an array of the virtual space."""
    if span.start % BLOCK:
        raise ScheduleError(f"{span} does not start at a block")
    return slice(span.start, span.start + span.count)


def _elements(array: Maybe, rank: int, span: Span) -> Numbers:
    where = part(span)
    if array is None or array.size < where.stop:
        raise ScheduleError(f"rank {rank} has no elements {span}")
    return array[where]
