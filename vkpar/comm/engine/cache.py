"""Recorded collectives, kept for the next call on the same arrays."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from vkpar.arrays.array import Array
from vkpar.comm.record.builder import Program

_MOST_ENTRIES = 1024
_MOST_BATCHES = 8192
_MOST_SCRATCH = 64 << 20  # bytes on a device


class Entry:
    """One collective on certain arrays.

    Attributes:
        programs: alternatives over different slots, used in turn; empty where there is nothing to do.
        scratch: aligned stand-ins that the programs use in place of arrays that wide accesses cannot reach.
        label: what the flight recorder says of it.
    """

    def __init__(
        self, programs: list[Program], scratch: Sequence[Array] = (), label: dict[str, Any] | None = None
    ) -> None:
        self.programs = programs
        self.scratch = tuple(scratch)
        self.label = label or {}
        self.finalizers: list[weakref.finalize[Any, Any]] = []

    @property
    def batches(self) -> int:
        """Number of command buffers."""
        return sum(program.batches for program in self.programs)

    @property
    def nbytes(self) -> int:
        """Bytes of the stand-ins, on the device that has most of them."""
        devices = [array.device for array in self.scratch]
        return max((sum(a.nbytes for a in self.scratch if a.device is device) for device in set(devices)), default=0)

    def program(self, turn: int, taken: Collection[Program | None] = ()) -> Program:
        """Return the program to run in the communicator's collective number ``turn``: neighbours use other slots."""
        return self.programs[turn % len(self.programs)]

    def used_up(self, taken: Collection[Program | None]) -> bool:
        """Say whether none is left beside those ``taken`` for the same submission: here one may run twice in it."""
        return False

    def done(self, reached: Sequence[int]) -> bool:
        """Say whether every submission is done, from the lanes' timeline values."""
        return all(now >= value for p in self.programs for now, value in zip(reached, p.pending(), strict=True))

    def close(self, late: Collection[int] = ()) -> None:
        """Free the programs, but for the command buffers of ``late`` ranks; all others must be done."""
        for finalizer in self.finalizers:
            finalizer.detach()
        for program in self.programs:
            program.close(late)
        self.programs, self.scratch = [], ()


class TimedEntry(Entry):
    """One collective under a profile: a program is free for its next run once the times of the last one were read.

    Args:
        generations: how many sets of slots the programs use in turn, the first program the first set.
    """

    def __init__(
        self, programs: list[Program], scratch: Sequence[Array], label: dict[str, Any], generations: int
    ) -> None:
        super().__init__(programs, scratch, label)
        self._waiting = [(program, number % generations) for number, program in enumerate(programs)]  # longest first
        self._generations = generations

    def program(self, turn: int, taken: Collection[Program | None] = ()) -> Program:
        """Return the one that ran longest ago, over the slots that ``turn`` is to use where one of these is left.

        Raises:
            CommunicatorError, InvalidUsageError: the communicator failed or was closed while this waited for its run.
        """
        free = [pair for pair in self._waiting if pair[0] not in taken]
        pair = next((pair for pair in free if pair[1] == turn % self._generations), free[0])
        if pair[0].watch is not None:
            pair[0].watch.clear()
        self._waiting = [other for other in self._waiting if other is not pair] + [pair]
        return pair[0]

    def used_up(self, taken: Collection[Program | None]) -> bool:
        """Say whether none is left beside those ``taken`` for the same submission: each can run in it once."""
        return all(program in taken for program in self.programs)


class ProgramCache:
    """Entries by key, the least recently used first, bounded in number, command buffers and stand-in bytes.

    An entry whose stand-ins alone are more than that is freed as soon as it is done and a sweep comes.

    Args:
        outer: the cache that this one stands before for a while: its entries are freed and waited for here, too, but
            neither found nor pushed out.
    """

    def __init__(self, outer: ProgramCache | None = None) -> None:
        self._outer = outer
        self._entries: OrderedDict[Any, Entry] = OrderedDict()
        self._dead: deque[Any] = deque()  # keys whose arrays are gone; appended by finalizers, in any thread
        self._stale: list[Entry] = []
        self._held: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries) + (0 if self._outer is None else len(self._outer))

    @property
    def batches(self) -> int:
        """Number of command buffers held."""
        return sum(entry.batches for entry in self._all())

    def _all(self) -> list[Entry]:
        return [
            *self._entries.values(),
            *self._held,
            *self._stale,
            *(() if self._outer is None else self._outer._all()),
        ]

    def get(self, key: Any) -> Entry | None:
        """Return the entry of ``key``, now the most recently used one; a key that cannot be hashed has none."""
        try:
            entry = self._entries.get(key)
        except TypeError:
            return None
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def add(self, key: Any, entry: Entry, arrays: Iterable[Array]) -> None:
        """Keep ``entry`` until one of ``arrays`` is gone or room is needed; it replaces an older one."""
        older = self._entries.pop(key, None)
        if older is not None:
            self._stale.append(older)
        if entry.nbytes > _MOST_SCRATCH:
            self._stale.append(entry)
            return
        self._entries[key] = entry
        for array in arrays:
            finalizer = weakref.finalize(array.storage.pin() or array.storage, self._dead.append, key)
            finalizer.atexit = False
            entry.finalizers.append(finalizer)
        while len(self._entries) > 1 and self._full():
            self._stale.append(self._entries.popitem(last=False)[1])

    def evict(self, spared: Collection[Entry]) -> list[Entry]:
        """Let go of what has stand-ins, but for ``spared``; return all of that which a sweep is going to free."""
        keys = [key for key, entry in self._entries.items() if entry.nbytes and entry not in spared]
        self._stale.extend(map(self._entries.pop, keys))  # an interrupt finds each in one place
        left = [] if self._outer is None else self._outer.evict(spared)
        return [*left, *(entry for entry in self._stale if entry.nbytes and entry not in spared)]

    def hold(self, entry: Entry) -> None:
        """Keep an entry that nobody can ask for until :meth:`let_go`."""
        self._held.append(entry)

    def let_go(self, entry: Entry) -> None:
        """Free a held entry when it is done; one that went with the cache is gone already."""
        if entry in self._held:
            self._held.remove(entry)
            self._stale.append(entry)
        elif self._outer is not None:
            self._outer.let_go(entry)

    def discard(self, key: Any, entry: Entry) -> None:
        """Forget an entry that was never run; it is freed with the next ones."""
        if self._entries.get(key) is entry:
            del self._entries[key]
        self._stale.append(entry)

    def _full(self) -> bool:
        entries = self._entries.values()
        return (
            len(entries) > _MOST_ENTRIES
            or sum(entry.batches for entry in entries) > _MOST_BATCHES
            or sum(entry.nbytes for entry in entries) > _MOST_SCRATCH
        )

    def sweep(self, reached: Sequence[int], confirm: Callable[[], None]) -> None:
        """Free what nobody can ask for again and is done, given the lanes' timeline values.

        ``confirm`` is called before anything is freed.
        """
        while self._dead:
            entry = self._entries.pop(self._dead.popleft(), None)
            if entry is not None:
                self._stale.append(entry)
        if self._outer is not None:
            self._outer.sweep(reached, confirm)
        finished = [entry for entry in self._stale if entry.done(reached)]
        if finished:
            confirm()
        for entry in finished:
            self._stale.remove(entry)
            entry.close()

    def pending(self, nlanes: int) -> list[int]:
        """Return the highest timeline value that any program was submitted with, by lane."""
        values = [0] * nlanes
        for entry in self._all():
            for program in entry.programs:
                values = [max(pair) for pair in zip(values, program.pending(), strict=True)]
        return values

    def scratch(self) -> list[Array]:
        """Return every entry's stand-ins."""
        return [array for entry in self._all() for array in entry.scratch]

    def fold(self) -> ProgramCache:
        """Return the outer cache; it frees the entries of this one when they are done."""
        assert self._outer is not None
        self._outer._stale += [*self._entries.values(), *self._stale]
        self._outer._held += self._held
        self._entries.clear()
        self._stale.clear()
        self._held.clear()
        return self._outer

    def close(self, late: Collection[int] = ()) -> None:
        """Free everything, but for what is on ``late`` ranks; all others must be done."""
        if self._outer is not None:
            self._outer.close(late)
        while self._entries:
            self._stale.append(self._entries.popitem()[1])
        while self._held:
            self._stale.append(self._held.pop())
        while self._stale:
            self._stale.pop().close(late)
