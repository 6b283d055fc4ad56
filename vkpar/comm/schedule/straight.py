"""Crossings between processes past the slots: out of arrays, and into them, where MPI reaches these itself.

A rank that publishes its elements as they are copies them to a slot, from which MPI sends them; a rank that gathers a
finished sum copies it from the slot into which MPI has received it. Where the host sees the arrays, MPI sends from
them, and receives into them. Messages, their order and their bytes stay those of the other end, which may use slots.

A slot stays what tells who waits for whom. What is received fills it still, and the step that would have copied reads
it. What is sent reads it still; whatever writes to the same elements later, and a rank's last step, fill it in turn,
and so wait until it was sent. All of these wait for what comes earlier in the one global order, as all steps do.

What a kernel of the program writes to is not sent from there: its stores, lane by lane on some drivers, take twice as
long where another core has read the elements. The thread that makes MPI's calls copies these to the slot.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from vkpar.comm.schedule.processes import SEND
from vkpar.comm.schedule.steps import Action, Barrier, Carry, Forward, Reduce, Span, Step

_At = tuple[int, int]  # the numbers of a step and of its action


class ByteSpan(NamedTuple):
    """Bytes of some memory, up to ``end``."""

    memory: Hashable
    first: int
    end: int

    def meets(self, other: ByteSpan) -> bool:
        """Say whether the two share a byte."""
        return self.first < other.end and other.first < self.end and self.memory == other.memory


_NOWHERE = ByteSpan(None, 0, 0)


class Arrays(Protocol):
    """What is known of the arrays of this process' ranks.

    Attributes:
        sends: slots hold contributions as arrays do; ``stores``: the same of finished sums.
        moves: elements are moved alone, so that what is published is finished.
    """

    sends: bool
    stores: bool
    moves: bool

    def reached(self, rank: int) -> bool:
        """Say whether the host sees the arrays of a rank."""

    def copied(self, rank: int) -> tuple[ByteSpan, ...]:
        """Return what the rank's own copies before its first step read and write."""

    def places(self, rank: int, span: Span, *, stored: bool) -> tuple[ByteSpan, ...]:
        """Return where the elements of ``span`` lie: those that the rank gives, or, ``stored``, those that it gets."""


def straight(steps: Sequence[Step], nranks: int, arrays: Arrays) -> list[Step]:
    """Return the steps of one process, of ``nranks`` ranks and of the queues behind them, with straight crossings."""
    return _Roads(steps, nranks, arrays).steps()


@dataclass(eq=False)
class _Content:
    """What fills a slot, and who reads it.

    Attributes:
        until: the step that fills the slot again; None for none.
        rank: whose array holds it, where it goes straight, at ``place``.
        copied: a kernel writes there later.
    """

    at: _At
    slot: int
    readers: list[_At] = field(default_factory=list)
    until: int | None = None
    rank: int = -1
    place: ByteSpan = _NOWHERE
    copied: bool = False

    def is_over(self, step: int) -> bool:
        """Say whether ``step`` can wait by the slot until this was sent."""
        return self.readers[-1][0] < step and (self.until is None or self.until > step)


class _Touch(NamedTuple):
    """A step's kernel reads or writes elements of its rank's array."""

    step: int
    place: ByteSpan
    writes: bool


def _contents(steps: Sequence[Step]) -> list[_Content]:
    """Return what fills slots, in order."""
    made: list[_Content] = []
    now: dict[int, _Content] = {}
    for number, step in enumerate(steps):
        for index, action in enumerate(step.actions):
            for slot in action.reads:
                if slot in now:
                    now[slot].readers.append((number, index))
        for index, action in enumerate(step.actions):
            filled = action.out_slot
            if filled is not None:
                if filled in now:
                    now[filled].until = number
                now[filled] = _Content((number, index), filled)
                made.append(now[filled])
    return made


class _Roads:
    def __init__(self, steps: Sequence[Step], nranks: int, arrays: Arrays) -> None:
        self._steps, self._nranks, self._arrays = steps, nranks, arrays
        contents = _contents(steps)
        self._sent = {content.at: content for content in contents if self._is_sent(content)}
        self._got = {content.readers[0]: content for content in contents if self._is_received(content)}
        while self._drop_clashes():
            pass
        self._sending = {reader: content for content in self._sent.values() for reader in content.readers}
        self._receiving = {content.at: content for content in self._got.values()}

    def _action(self, at: _At) -> Action:
        return self._steps[at[0]].actions[at[1]]

    # ---- what may go straight ----

    def _is_sent(self, content: _Content) -> bool:
        """Say whether other processes alone read what a rank publishes, and its array has the same bytes."""
        step, action = self._steps[content.at[0]], self._action(content.at)
        if not content.readers or any(self._steps[reader].phase != SEND for reader, _ in content.readers):
            return False
        if not isinstance(action, Reduce) or step.rank >= self._nranks:
            return False
        publishes = action.own_at is not None and not action.sources and not action.own_stored
        fits = self._arrays.sends and (self._arrays.moves or not action.final)
        return publishes and fits and self._finds(content, step.rank, action.span, stored=False)

    def _is_received(self, content: _Content) -> bool:
        """Say whether one rank takes what is received, and stores it as it comes."""
        if not isinstance(self._action(content.at), Carry) or len(content.readers) != 1 or not self._arrays.stores:
            return False
        (reader,) = content.readers
        taker, rank = self._action(reader), self._steps[reader[0]].rank
        if not isinstance(taker, Forward) or taker.out_slot is not None:
            return False
        return self._finds(content, rank, taker.span, stored=True)

    def _finds(self, content: _Content, rank: int, span: Span, *, stored: bool) -> bool:
        places = self._arrays.places(rank, span, stored=stored) if self._arrays.reached(rank) else ()
        if len(places) != 1 or any(place.meets(places[0]) for place in self._arrays.copied(rank)):
            return False
        content.rank, content.place = rank, places[0]
        return True

    # ---- what would be read too late, or written too early ----

    def _drop_clashes(self) -> bool:
        """Leave to slots what kernels touch meanwhile; say whether there was any."""
        touched: list[list[_Touch]] = [[] for _ in range(self._nranks)]
        for number, step in enumerate(self._steps):
            if step.rank < self._nranks:
                touched[step.rank] += self._touches(number)
        late = [at for at, content in self._sent.items() if self._is_late(content, touched[content.rank])]
        early = [at for at, content in self._got.items() if self._is_early(content, touched[content.rank])]
        for at in late:
            del self._sent[at]
        for at in early:
            del self._got[at]
        return bool(late or early)

    def _touches(self, number: int) -> Iterator[_Touch]:
        """Yield what the kernels of a rank's step read and write of its arrays."""
        rank = self._steps[number].rank
        for action in self._left(number):
            if isinstance(action, Reduce) and action.own_at is not None:
                places = self._arrays.places(rank, action.span, stored=action.own_stored)
                yield from (_Touch(number, place, writes=False) for place in places)
            if isinstance(action, Forward) or (isinstance(action, Reduce) and action.to_array):
                places = self._arrays.places(rank, action.span, stored=True)
                yield from (_Touch(number, place, writes=True) for place in places)

    @staticmethod
    def _is_late(sent: _Content, touched: Sequence[_Touch]) -> bool:
        """Say whether a kernel writes to what is sent, and cannot wait for that."""
        later = (touch for touch in touched if touch.writes and touch.step > sent.at[0])
        writing = [touch.step for touch in later if touch.place.meets(sent.place)]
        sent.copied = bool(writing)
        return sent.copied and (len(sent.readers) > 1 or not all(map(sent.is_over, writing)))

    def _is_early(self, got: _Content, touched: Sequence[_Touch]) -> bool:
        """Say whether something touches what is received, before it would have been stored."""
        end = got.readers[0][0]
        if any(touch.step <= end and touch.place.meets(got.place) for touch in touched):
            return True
        return any(not sent.is_over(got.at[0]) for sent in self._met(got.rank, got.place, end))

    def _met(self, rank: int, place: ByteSpan, end: int) -> list[_Content]:
        """Return what a rank sends, up to the step ``end``, out of bytes of ``place``."""
        sent = (content for content in self._sent.values() if content.rank == rank and content.at[0] <= end)
        return [content for content in sent if content.place.meets(place)]

    # ---- the steps ----

    def _left(self, number: int) -> Iterator[Action]:
        """Yield what a rank's step does yet: kernels, and what they wait for."""
        step = self._steps[number]
        for index, action in enumerate(step.actions):
            if (number, index) in self._got:
                yield Barrier(action.reads)
            elif isinstance(action, Reduce) and action.own_stored and self._keeps(step.rank, action.span):
                yield replace(action, own_stored=False)
            elif (number, index) not in self._sent:
                yield action

    def _keeps(self, rank: int, span: Span) -> bool:
        """Say whether a rank would have stored the elements of ``span`` as it has given them, but did not."""
        own = (content.at for content in self._sent.values() if content.rank == rank)
        return any(self._action(at).span == span for at in own)  # type: ignore[union-attr]

    def _crossed(self, number: int) -> tuple[list[Action], tuple[int, ...]]:
        """Return what a step to or from another process does, and the ranks whose earlier work it waits for."""
        actions: list[Action] = []
        ranks: dict[int, None] = {}
        for index, action in enumerate(self._steps[number].actions):
            at = number, index
            content = self._sending.get(at) or self._receiving.get(at)
            if content is None or not isinstance(action, Carry):
                actions.append(action)
                continue
            actions.append(replace(action, rank=content.rank, copies=content.copied))
            ranks[content.rank] = None
            if not action.sends:
                actions += self._ends(content.rank, content.place, number)
        return actions, tuple(ranks)

    def _ends(self, rank: int, place: ByteSpan, number: int) -> Iterator[Barrier]:
        """Yield what makes a step that writes to ``place`` wait for what was sent from there."""
        yield from (Barrier(out_slot=sent.slot) for sent in self._met(rank, place, number - 1))

    def _kept(self, number: int) -> tuple[list[Action], tuple[int, ...]]:
        """Return what a rank's step does, and waits for; and nothing before the program, which comes before it."""
        rank, actions = self._steps[number].rank, list(self._left(number))
        writing = [touch.place for touch in self._touches(number) if touch.writes]
        actions += [end for place in writing for end in self._ends(rank, place, number)]
        return actions, ()

    def steps(self) -> list[Step]:
        """Return the steps with straight crossings; of each rank the last one ends after these."""
        made: list[Step] = []
        last: dict[int, tuple[int, int]] = {}  # by queue, its last step in the new list and in the old one
        for number, step in enumerate(self._steps):
            actions, after = (self._kept if step.rank < self._nranks else self._crossed)(number)
            if actions:
                last[step.rank] = len(made), number
                made.append(replace(step, actions=tuple(actions), after=after))
        for rank in sorted({content.rank for content in self._sent.values()}):
            mine = [content for content in self._sent.values() if content.rank == rank]
            at, number = last.get(rank, (-1, -1))
            if number < max(content.readers[-1][0] for content in mine):
                at = len(made)
                made.append(Step(rank, "settle", ()))
            filled = made[at].writes
            ends = (Barrier(out_slot=sent.slot) for sent in mine if sent.until is None and sent.slot not in filled)
            made[at] = replace(made[at], actions=(*made[at].actions, *ends))
        return made
