"""Recorded collectives, kept for the next call on the same arrays."""

from __future__ import annotations

import itertools
import random
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from vkpar.arrays.array import Array
from vkpar.comm.record.entry import Entry
from vkpar.comm.record.program import Program
from vkpar.vulkan.pump.ports import ProgramPort

_MOST_ENTRIES = 1024
_MOST_BATCHES = 8192
_MOST_SCRATCH = 64 << 20  # bytes on a device
_MOST_JOINED = 256


class ProgramCache:
    """Entries by key, bounded in number, command buffers and stand-in bytes.

    Where there is no room, any older entry goes, by lot: calls that go round in a cycle a little longer than the cache
    still find most of it, where the least recently used entry would always be the next one to be asked for. An entry
    whose stand-ins alone are more than that is freed as soon as it is done and a sweep comes.
    """

    def __init__(self) -> None:
        self._entries: dict[Any, Entry] = {}  # in the order of adding
        # Of the entries; after an interrupt they may be wrong until the next count.
        self._batches = self._scratch_nbytes = 0
        self._lots = random.Random(0)
        self._dead: deque[Any] = deque()  # keys whose arrays are gone; appended by finalizers, in any thread
        self._stale: list[Entry] = []
        self._held: list[Entry] = []
        self._joined: dict[tuple[int, ...], ProgramPort] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def batches(self) -> int:
        """Number of command buffers held."""
        return sum(entry.batches for entry in self._all())

    def _all(self) -> Iterator[Entry]:
        return itertools.chain(list(self._entries.values()), list(self._held), list(self._stale))

    def get(self, key: Any) -> Entry | None:
        """Return the entry of ``key``; a key that cannot be hashed has none."""
        try:
            return self._entries.get(key)
        except TypeError:
            return None

    def add(self, key: Any, entry: Entry, arrays: Iterable[Array]) -> None:
        """Keep ``entry`` until one of ``arrays`` is gone or room is needed; it replaces an older one."""
        self._retire([key])
        if entry.nbytes > _MOST_SCRATCH:
            self._stale.append(entry)
            return
        self._entries[key] = entry
        self._batches += entry.batches
        self._scratch_nbytes += entry.nbytes
        for array in arrays:
            finalizer = weakref.finalize(array.storage.pin() or array.storage, self._dead.append, key)
            finalizer.atexit = False
            entry.finalizers.append(finalizer)
        while len(self._entries) > 1 and self._is_full():
            self._retire([self._drawn()])

    def _is_full(self) -> bool:
        if self._fits():
            return False
        self._count()
        return not self._fits()

    def _fits(self) -> bool:
        few = len(self._entries) <= _MOST_ENTRIES and self._batches <= _MOST_BATCHES
        return few and self._scratch_nbytes <= _MOST_SCRATCH

    def _count(self) -> None:
        self._batches = sum(entry.batches for entry in self._entries.values())
        self._scratch_nbytes = sum(entry.nbytes for entry in self._entries.values())

    def _drawn(self) -> Any:
        """Return the key of any entry but the newest."""
        return next(itertools.islice(self._entries, self._lots.randrange(len(self._entries) - 1), None))

    def _retire(self, keys: Iterable[Any]) -> None:
        """Forget the entries of ``keys`` that there are; they are freed when they are done."""
        found = [key for key in keys if key in self._entries]
        entries = [self._entries[key] for key in found]
        self._stale.extend(map(self._entries.pop, found))  # an interrupt finds each entry in one place
        self._batches -= sum(entry.batches for entry in entries)
        self._scratch_nbytes -= sum(entry.nbytes for entry in entries)

    def retire_all(self) -> None:
        """Forget every entry: whatever is asked for next is recorded anew."""
        self._retire(list(self._entries))

    def evict(self, spared: Collection[Entry]) -> list[Entry]:
        """Let go of what has stand-ins, but for ``spared``; return all such entries that a sweep will free."""
        self._retire([key for key, entry in self._entries.items() if entry.nbytes and entry not in spared])
        return [entry for entry in self._stale if entry.nbytes and entry not in spared]

    def hold(self, entry: Entry) -> None:
        """Keep an entry that nobody can ask for until :meth:`let_go`."""
        self._held.append(entry)

    def let_go(self, entry: Entry) -> None:
        """Free a held entry when it is done; one that went with the cache is gone already."""
        if entry in self._held:
            self._held.remove(entry)
            self._stale.append(entry)

    def discard(self, key: Any, entry: Entry) -> None:
        """Forget an entry that was never run; it is freed with the next ones."""
        if self._entries.get(key) is entry:
            self._retire([key])
        else:
            self._stale.append(entry)

    def joined(self, programs: Sequence[Program], join: Callable[[Sequence[Program]], ProgramPort]) -> ProgramPort:
        """Return the port that submits ``programs`` together; the same programs get the same port again."""
        key = tuple(map(id, programs))
        port = self._joined.get(key)
        if port is None:
            if len(self._joined) >= _MOST_JOINED:
                self._part()
            port = self._joined[key] = join(programs)
        return port

    def _part(self) -> None:
        """Close the ports of joined programs: some of the programs are about to go."""
        while self._joined:
            self._joined.popitem()[1].close()

    def sweep(self, reached: Sequence[int], confirm: Callable[[], None]) -> None:
        """Free what nobody can ask for again and is done, given the lanes' timeline values.

        ``confirm`` is called before anything is freed.
        """
        while self._dead:
            self._retire([self._dead[0]])
            self._dead.popleft()
        finished = [entry for entry in self._stale if entry.done(reached)]
        if finished:
            self._part()
            confirm()
        for entry in finished:
            self._stale.remove(entry)
            entry.close()

    def pending(self, nlanes: int) -> list[int]:
        """Return the highest timeline value that any program was submitted with, by lane."""
        values = [0] * nlanes
        for entry in self._all():
            for program in list(entry.programs.values()):
                values = [max(pair) for pair in zip(values, program.pending(), strict=True)]
        return values

    def scratch(self) -> list[Array]:
        """Return every entry's stand-ins."""
        return [array for entry in self._all() for array in entry.scratch]

    def close(self, late: Collection[int] = ()) -> None:
        """Free everything, but for what is on ``late`` ranks; all others must be done."""
        self._part()
        while self._entries:
            self._stale.append(self._entries.popitem()[1])
        while self._held:
            self._stale.append(self._held.pop())
        while self._stale:
            self._stale.pop().close(late)
