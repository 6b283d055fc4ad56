"""How captured work is cut into stretches: what one device does in one submission, between two links.

Where slots are carried between cards, a step waits for them itself, so that a stretch holds all steps between two that
``opens`` names. Elsewhere a stretch waits for what it reads before it begins, and tells others that it has written when
it ends. A step that reads
what others sent begins a stretch, so that nothing that was sent before waits for it; so does an operation that comes
after a step that sends, and a step that sends after many bytes that were sent. Everything else joins the open stretch.
Stretches are numbered in the order in which they begin, and each waits only for stretches with lower numbers, so that
none of them waits in a circle.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from vkpar import text
from vkpar.vulkan.pump.ports import TransferPieces

_MANY: Final = 1 << 16  # bytes, which take about as long to send as a submission more takes to begin

Memory = tuple[int, int, int]
"""Part of a VkBuffer: its number, the first byte, and the first one after them."""


class Item(NamedTuple):
    """One operation, or one step of a collective.

    Attributes:
        rank: whose it is.
        what: a word for people.
        content: what is recorded.
        reads: the slots that it reads; ``writes``: those that it fills.
        received_nbytes: bytes that it reads from slots; ``sent_nbytes``: bytes that it writes to them.
        call: the number of its collective in the graph, from 1; 0 for an operation.
        touches: where the collective's arrays lie on the rank.
        alone: it is a submission of its own.
        carried: it waits by itself for what it reads; ``transfers``: what it sends.
        opens: all ranks begin new stretches with it.
    """

    rank: int
    what: str
    content: Any
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    received_nbytes: int = 0
    sent_nbytes: int = 0
    call: int = 0
    touches: tuple[Memory, ...] = ()
    alone: bool = False
    carried: bool = False
    transfers: tuple[TransferPieces, ...] = ()
    opens: bool = False


@dataclass
class Stretch:
    """What one rank does in one submission.

    Attributes:
        rank: whose it is; ``number`` counts the stretches of all ranks.
        items: in order.
        reads: the slots that it reads; ``writes``: those that it fills.
        received_nbytes: bytes that it reads from slots; ``sent_nbytes``: bytes that it writes to them.
        opens: all ranks begin new stretches with it.
        carried: it waits by itself for what it reads.
        transfers: what all stretches send that begin together, in the global order of the steps, if it is their first.
    """

    rank: int
    number: int
    opens: bool = False
    items: list[Item] = field(default_factory=list)
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    received_nbytes: int = 0
    sent_nbytes: int = 0
    carried: bool = False
    transfers: tuple[TransferPieces, ...] = ()

    def add(self, item: Item) -> None:
        """Take one more item."""
        self.items.append(item)
        self.reads += item.reads
        self.writes += item.writes
        self.received_nbytes += item.received_nbytes
        self.sent_nbytes += item.sent_nbytes
        self.carried |= item.carried

    @property
    def phase(self) -> str:
        """What it does, for people: ``"gather, 4 operations, publish"``; ``"parameters"`` where it does nothing."""
        whats = [item.what if item.reads or item.writes else "" for item in self.items]
        parts: list[str] = []
        for what, group in itertools.groupby(whats):
            count = len(list(group))
            if what:
                parts.append(what if count == 1 else f"{count} x {what}")
            else:
                parts.append(text.number(count, "operation"))
        return ", ".join(parts) or "parameters"


def cut(items: Iterable[Item], ranks: Iterable[int] = ()) -> list[Stretch]:
    """Return the stretches of ``items``, which come in one global order, in the order in which they begin.

    Each of ``ranks`` has one, even if it has nothing to do.
    """
    made: list[Stretch] = []
    opened: dict[int, Stretch] = {}  # by rank
    touched: dict[int, dict[int, int]] = {}  # by slot, and by rank that used it: the last stretch that did
    first: Stretch | None = None
    for item in items:
        if item.opens:
            opened.clear()
            first = None
        stretch = opened.get(item.rank)
        if stretch is None or (not item.carried and _parts(stretch, item, touched)):
            stretch = opened[item.rank] = Stretch(item.rank, len(made), not opened)
            made.append(stretch)
        first = first or stretch
        stretch.add(item)
        first.transfers += item.transfers
        for slot in (*item.reads, *item.writes):
            touched.setdefault(slot, {})[item.rank] = stretch.number
    for rank in ranks:
        if rank not in opened:
            made.append(Stretch(rank, len(made)))
    return made


def _parts(stretch: Stretch, item: Item, touched: dict[int, dict[int, int]]) -> bool:
    """Say whether ``item`` begins a stretch of its own after ``stretch``."""
    return bool(item.reads) or item.alone or _delays(stretch, item) or _comes_too_late(stretch, item, touched)


def _delays(stretch: Stretch, item: Item) -> bool:
    """Say whether what ``stretch`` sends would wait for ``item``, longer than for a submission more."""
    last = stretch.items[-1]
    return bool(last.writes) and not last.carried and (not item.writes or stretch.sent_nbytes >= _MANY)


def _comes_too_late(stretch: Stretch, item: Item, touched: dict[int, dict[int, int]]) -> bool:
    """Say whether ``item`` fills a slot that another rank used in a stretch which began after ``stretch``."""
    return any(
        number > stretch.number
        for slot in item.writes
        for rank, number in touched.get(slot, {}).items()
        if rank != stretch.rank
    )
