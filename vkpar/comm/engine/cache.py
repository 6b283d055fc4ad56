"""Recorded collectives, kept for the next call over the same memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from vkpar.arrays.array import Array
from vkpar.comm.record.entry import Entry, Template
from vkpar.comm.record.program import Program
from vkpar.vulkan.pump.native import CProgram

_MOST_ENTRIES = 8192
_MOST_BATCHES = 32768
_MOST_BOUNCE_NBYTES = 64 << 20  # bytes on a device
_MOST_JOINED = 256
_NONE = object()


class Together(NamedTuple):
    """The recorded collectives of a group: their entries, and their programs, None for one that does nothing.

    Attributes:
        port: submits all of the programs; ``batches`` is the number of their command buffers.
    """

    entries: Sequence[Entry]
    programs: Sequence[Program | None]
    port: CProgram
    batches: int


class ProgramCache:
    """Entries by key, bounded in number, command buffers and bytes of bounce buffers.

    Where there is no room, an older entry is drawn by lot and goes. Calls that repeat in a cycle a little longer than
    the cache then still find most of their entries; the least recently used entry would always be the next one needed.
    An entry whose bounce buffers alone exceed the bound is freed by the first sweep after it is done.

    Attributes:
        entries: the entries that calls find, by key; not to be changed by others.
        nretired: how many entries were retired so far; an entry that a call found stays the call's while it stands.
    """

    def __init__(self) -> None:
        self.entries: dict[Any, Entry] = {}  # in the order of adding
        # Of the entries; after an interrupt these may be wrong until the next count.
        self._batches = self._bounce_nbytes = 0
        self._adds = 0  # since the last count
        self.nretired = 0
        self._lots = random.Random(0)
        self._keys: list[Any] = []  # to draw from: all of the entries', and some that are gone
        self._stale: list[Entry] = []
        self._held: list[Entry] = []
        self._joined: dict[tuple[int, ...], CProgram] = {}
        self._together: dict[tuple[int, ...], Together] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def has_stale(self) -> bool:
        """True where some entry waits to be freed by a sweep."""
        return bool(self._stale)

    @property
    def batches(self) -> int:
        """Number of command buffers held."""
        return sum(entry.batches for entry in self._all())

    def _all(self) -> Iterator[Entry]:
        return itertools.chain(list(self.entries.values()), list(self._held), list(self._stale))

    def get(self, key: Any) -> Entry | None:
        """Return the entry of ``key``; a key that cannot be hashed has none."""
        try:
            return self.entries.get(key)
        except TypeError:
            return None

    def add(self, key: Any, entry: Entry) -> None:
        """Keep ``entry`` until its memory is gone or room is needed; it replaces an older one."""
        self._retire([key])
        if entry.nbytes > _MOST_BOUNCE_NBYTES:
            self._stale.append(entry)
            return
        self.entries[key] = entry
        if entry in self._stale:  # a donor
            self._stale.remove(entry)
        self._keys.append(key)
        entry.counted = 0
        self.grew(entry)
        self._bounce_nbytes += entry.nbytes
        self._adds += 1
        if self._adds > len(self.entries):
            self._recount()
        while len(self.entries) > 1 and self._is_full():
            self._retire([self._drawn(key)])

    def donor(
        self, template: Template, spared: Collection[Entry], reached: Callable[[], Sequence[int]]
    ) -> Entry | None:
        """Return an entry of ``template`` that is done and has to go, where there is no room for one more.

        No call finds it any more, and the next sweep frees it unless it is added again before.

        Args:
            template: what the entry is to be used for.
            spared: entries that are about to be used.
            reached: returns the queues' timeline values.
        """
        if len(self.entries) < _MOST_ENTRIES and self._batches + template.batches <= _MOST_BATCHES:
            return None
        if len(self.entries) < 2:
            return None
        key = self._drawn()
        entry = self.entries[key]
        if entry.template is not template or entry in spared or not entry.done(reached()):
            self._keys.append(key)
            return None
        self._retire([key])
        return entry

    def grew(self, entry: Entry) -> None:
        """Count the programs that ``entry`` got since it was counted last."""
        batches = entry.batches
        self._batches += batches - entry.counted
        entry.counted = batches

    def _is_full(self) -> bool:
        few = len(self.entries) <= _MOST_ENTRIES and self._batches <= _MOST_BATCHES
        return not few or self._bounce_nbytes > _MOST_BOUNCE_NBYTES

    def _recount(self) -> None:
        """Count everything anew, which happens so rarely that it costs each entry little."""
        self._adds = 0
        self._batches = sum(entry.counted for entry in self.entries.values())
        self._bounce_nbytes = sum(entry.nbytes for entry in self.entries.values())

    def _drawn(self, newest: Any = _NONE) -> Any:
        """Return the key of any entry but the newest, by lot, and draw it no more."""
        if not len(self.entries) <= len(self._keys) <= 2 * len(self.entries):
            self._keys = list(self.entries)
        while True:
            keys = self._keys
            index = self._lots.randrange(len(keys))
            key, keys[index] = keys[index], keys[-1]
            keys.pop()
            if key == newest:
                keys.append(key)
            elif key in self.entries:
                return key

    def _retire(self, keys: Iterable[Any]) -> None:
        """Forget the entries of ``keys``, where there are any; a sweep frees them when they are done."""
        found = [key for key in keys if key in self.entries]
        entries = [self.entries[key] for key in found]
        self._stale.extend(map(self.entries.pop, found))  # an interrupt finds each entry in one place
        if entries:
            self.nretired += len(entries)
            self._together.clear()
        for entry in entries:
            self._batches -= entry.counted
            self._bounce_nbytes -= entry.nbytes

    def retire_all(self) -> None:
        """Forget every entry, so that every call is recorded anew."""
        self._retire(list(self.entries))

    def retire_gone(self) -> None:
        """Forget the entries whose memory went back to the driver; no call finds them any more."""
        self._retire([key for key, entry in list(self.entries.items()) if entry.is_gone()])

    def evict(self, spared: Collection[Entry]) -> list[Entry]:
        """Forget the entries with bounce buffers, except ``spared``; return those that a sweep will free."""
        self._retire([key for key, entry in self.entries.items() if entry.nbytes and entry not in spared])
        return [entry for entry in self._stale if entry.nbytes and entry not in spared]

    def hold(self, entry: Entry) -> None:
        """Keep an entry that no call finds until :meth:`let_go`."""
        self._held.append(entry)

    def let_go(self, entry: Entry) -> None:
        """Free a held entry when it is done; does nothing where :meth:`close` freed it."""
        if entry in self._held:
            self._held.remove(entry)
            self._stale.append(entry)

    def discard(self, key: Any, entry: Entry) -> None:
        """Forget an entry that was never run; the next sweep frees it."""
        if self.entries.get(key) is entry:
            self._retire([key])
        else:
            self._stale.append(entry)

    def joined(self, programs: Sequence[Program], join: Callable[[Sequence[Program]], CProgram]) -> CProgram:
        """Return the port that submits ``programs`` together; the same programs get the same port again."""
        key = tuple(map(id, programs))
        port = self._joined.get(key)
        if port is None:
            if len(self._joined) >= _MOST_JOINED:
                self._part()
            port = self._joined[key] = join(programs)
        return port

    def together(self, key: tuple[int, ...]) -> Together | None:
        """Return what was recorded for a group: ``key`` has the number of the turn, and the ids of its entries."""
        return self._together.get(key)

    def add_together(self, key: tuple[int, ...], made: Together) -> None:
        """Keep what was recorded for a group, as long as no entry at all is retired."""
        self._together[key] = made

    def _part(self) -> None:
        """Close the ports of joined programs: some of the programs are about to go."""
        self._together.clear()
        while self._joined:
            self._joined.popitem()[1].close()

    def sweep(self, reached: Sequence[int], confirm: Callable[[], None]) -> None:
        """Free the forgotten entries that are done, given the queues' timeline values.

        ``confirm`` is called before anything is freed.
        """
        finished = [entry for entry in self._stale if entry.done(reached)]
        if finished:
            self._part()
            confirm()
        for entry in finished:
            self._stale.remove(entry)
            entry.close()

    def pending(self, nqueues: int) -> list[int]:
        """Return the highest timeline value that any program was submitted with, by queue."""
        values = [0] * nqueues
        for entry in self._all():
            for program in entry.all():
                values = [max(pair) for pair in zip(values, program.pending(), strict=True)]
        return values

    def bounce_buffers(self) -> list[Array]:
        """Return every entry's bounce buffers."""
        return [array for entry in self._all() for array in entry.bounce_buffers]

    def close(self, late: Collection[int] = ()) -> None:
        """Free everything except on the ``late`` ranks; all others must be done."""
        self._part()
        while self.entries:
            self._stale.append(self.entries.popitem()[1])
        while self._held:
            self._stale.append(self._held.pop())
        while self._stale:
            self._stale.pop().close(late)
