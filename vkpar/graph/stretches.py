"""How captured work is cut into stretches: what one device does in one submission, between two links.

A stretch waits for what it reads before it begins, and tells others that it has written when it ends. A step that reads
what others sent begins a stretch, so that nothing that was sent before waits for it. Everything else joins the open
stretch: operations, and steps that only send. Stretches are numbered in the order in which they begin, and each waits
only for stretches with lower numbers, so that none of them waits in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Item(NamedTuple):
    """One operation, or one step of a collective.

    Attributes:
        rank: whose it is.
        what: a word for people.
        content: what is recorded.
        reads: the slots that it reads; ``writes``: those that it fills.
    """

    rank: int
    what: str
    content: Any
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@dataclass
class Stretch:
    """What one rank does in one submission.

    Attributes:
        rank: whose it is; ``number`` counts the stretches of all ranks.
        items: in order.
        reads: the slots that it reads; ``writes``: those that it fills.
    """

    rank: int
    number: int
    items: list[Item] = field(default_factory=list)
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()

    def add(self, item: Item) -> None:
        """Take one more item."""
        self.items.append(item)
        self.reads += item.reads
        self.writes += item.writes

    @property
    def phase(self) -> str:
        """What it does, for people: ``"gather, 4 operations, publish"``."""
        parts: list[str] = []
        operations = 0
        for item in [*self.items, None]:
            if item is not None and not item.reads and not item.writes:
                operations += 1
                continue
            if operations:
                parts.append(f"{operations} operation{'s' if operations > 1 else ''}")
                operations = 0
            if item is not None:
                parts.append(item.what)
        return ", ".join(parts)


def cut(items: Iterable[Item]) -> list[Stretch]:
    """Return the stretches of ``items``, which come in one global order, in the order in which they begin."""
    made: list[Stretch] = []
    opened: dict[int, Stretch] = {}  # by rank
    touched: dict[int, dict[int, int]] = {}  # by slot, and by rank that used it: the last stretch that did
    for item in items:
        stretch = opened.get(item.rank)
        if stretch is None or item.reads or _comes_too_late(stretch, item, touched):
            stretch = opened[item.rank] = Stretch(item.rank, len(made))
            made.append(stretch)
        stretch.add(item)
        for slot in (*item.reads, *item.writes):
            touched.setdefault(slot, {})[item.rank] = stretch.number
    return made


def _comes_too_late(stretch: Stretch, item: Item, touched: dict[int, dict[int, int]]) -> bool:
    """Say whether ``item`` fills a slot that another rank used in a stretch which began after ``stretch``."""
    return any(
        number > stretch.number
        for slot in item.writes
        for rank, number in touched.get(slot, {}).items()
        if rank != stretch.rank
    )
