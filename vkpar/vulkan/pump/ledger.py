"""What failures have spoiled: the C helper's ledger of the bytes that work reads and writes, as one device sees it."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vkpar.errors import CommunicatorError
from vkpar.vulkan import api
from vkpar.vulkan.pump import native

Span = tuple[int, int, int]  # a VkBuffer, the first byte in it, and the one after the last

# What is done to bytes, as _pump_record.h has it: read; some written, perhaps read; all written; some written, none
# read; bound alone.
READS, UPDATES, REPLACES, PLACES, BOUND = range(5)

_causes: dict[int, Callable[[], CommunicatorError]] = {}


class Ledger:
    """The ledger, for the memory of one device.

    Attributes:
        clock: its ``seq`` counts what is done to memory, ``active`` the groups whose programs may be pending, and
            ``lost`` the ranges that are lost; looked at in place, as it is by calls that are made often.
    """

    def __init__(self, device: Any) -> None:
        self._device = api.load().address(device)
        self._c = native.helper()
        self.clock = self._c.lib.vkp_ledger_clock()

    def touches(self, spans: Iterable[Span], kind: int) -> list[tuple[int, ...]]:
        """Return what is done to ``spans``, as programs take it."""
        return [(self._device, *span, kind) for span in spans]

    def refusal(self, touches: Sequence[tuple[int, ...]]) -> CommunicatorError | None:
        """Return the error for reading some bytes of ``touches`` that are lost; None where none is."""
        if not self.clock.lost or not touches:
            return None
        cause = int(self._c.lib.vkp_ledger_lost(len(touches), self._c.ffi.new("vkp_touch[]", touches)))
        return error_of(cause) if cause else None

    def note(self, touches: Sequence[tuple[int, ...]]) -> None:
        """Write down what others than the device's stream did."""
        api.load().check(self._c.lib.vkp_ledger_note(len(touches), self._c.ffi.new("vkp_touch[]", touches)), "note")

    def mend(self, spans: Iterable[Span], seq: int) -> None:
        """Take ``spans`` for unharmed by what was done up to ``seq``: the memory belongs to somebody new since."""
        touches = self.touches(spans, READS)
        self._c.lib.vkp_ledger_mend(len(touches), self._c.ffi.new("vkp_touch[]", touches), seq)

    def forget(self) -> None:
        """Forget what was lost: the device is gone."""
        self._c.lib.vkp_ledger_forget(self._device)


def together(touches: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return what a graph does to memory: what it reads before it replaces that, then all that it writes."""
    replaced: dict[tuple[int, int], list[list[int]]] = {}
    reads: dict[tuple[int, ...], None] = {}
    writes: dict[tuple[int, ...], None] = {}
    for touch in touches:
        device, buffer, start, end, kind = touch
        known = replaced.setdefault((device, buffer), [])
        if kind in (READS, UPDATES) and not _covers(known, start, end):
            reads[device, buffer, start, end, READS] = None
        if kind in (UPDATES, REPLACES, PLACES):
            writes[device, buffer, start, end, REPLACES if kind == REPLACES else PLACES] = None
        if kind == REPLACES:
            _cover(known, start, end)
    return [*reads, *writes]


def _covers(known: list[list[int]], start: int, end: int) -> bool:
    """Say whether one of the ranges, which are in order and do not meet, holds all of another."""
    place = bisect.bisect_right(known, [start, 1 << 64]) - 1
    return place >= 0 and known[place][1] >= end


def _cover(known: list[list[int]], start: int, end: int) -> None:
    first = bisect.bisect_left(known, start, key=lambda item: item[1])
    last = bisect.bisect_right(known, end, key=lambda item: item[0])
    met = known[first:last]
    known[first:last] = [[min([start, *(item[0] for item in met)]), max([end, *(item[1] for item in met)])]]


def explain(group: int, error: Callable[[], CommunicatorError]) -> None:
    """Have ``error`` made for whoever uses what a group's failure has spoiled."""
    if not native.helper().lib.vkp_ledger_clock().lost:
        _causes.clear()
    _causes[group] = error


def error_of(cause: int | None = None) -> CommunicatorError:
    """Return the error for a loss; for that of the last refusal by default."""
    made = _causes.get(int(native.helper().lib.vkp_ledger_cause()) if cause is None else cause)
    return made() if made is not None else CommunicatorError("a collective that was to write this has failed")
