"""The operands of a program: each rank's elements, laid out in the virtual space that a schedule counts in."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vkpar.arrays.array import Array
from vkpar.arrays.layout import WIDE
from vkpar.comm.schedule.steps import BLOCK, Span
from vkpar.device import Device
from vkpar.dtypes import DType, uint32
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.accounting import BOUNCE_BUFFERS
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.subbuffers import SubBuffers

WORD = 4  # bytes; movements, and reduced elements of other than 32 bits, travel as words

RangeCopy = tuple[list[BufferRange], list[BufferRange]]  # of as many bytes
Window = tuple[BufferRange, int]  # a range that a kernel can bind, and the index of some element in it


class ThereMemory:
    """Stands for memory of another process: it is the same memory or another one, no more is known of it here."""

    buffers = ()


class Elements(NamedTuple):
    """Elements of an array side by side, in memory that is held: nothing that is made of them asks the array again.

    Attributes:
        device: where they are.
        memory: the array's; None where it has no elements.
        first: the byte of the memory at which they begin.
        size: how many they are, of ``dtype``.
    """

    device: Device
    memory: SubBuffers | ThereMemory | None
    first: int
    size: int
    dtype: DType

    @classmethod
    def of(cls, array: Array) -> Elements:
        """Return all elements of an array.

        Raises:
            InvalidUsageError: the array was closed.
        """
        return cls(array.device, array.storage.pin(), array.byte_offset, array.size, array.dtype)

    @property
    def is_here(self) -> bool:
        """Say whether this process has them."""
        return not isinstance(self.memory, ThereMemory)

    @property
    def end(self) -> int:
        """The byte of the memory after the last of them."""
        return self.first + self.size * self.dtype.itemsize

    def cut(self, at: int, count: int) -> Elements:
        """Return ``count`` of them from number ``at`` on."""
        return self._replace(first=self.first + at * self.dtype.itemsize, size=count)

    def words(self) -> Elements:
        """Return them as 32-bit words, the last one perhaps in part."""
        return self._replace(size=words_of(self.end - self.first), dtype=uint32)

    def overlaps(self, other: Elements) -> bool:
        """Say whether they share any byte with ``other``."""
        return self.memory is other.memory and self.first < other.end and other.first < self.end

    def ranges(self) -> list[BufferRange]:
        """Return exactly their bytes, a range for each buffer that holds some of them; the ranges do not hold these."""
        assert isinstance(self.memory, SubBuffers), "no elements, or those of another process"
        return list(map(_bare, self.memory.ranges(self.first, self.end - self.first)))

    def is_reached(self, unit: int) -> bool:
        """Say whether wide accesses reach them, and each of their blocks lies in one buffer.

        Args:
            unit: bytes of what blocks consist of; 0 for the elements.
        """
        assert isinstance(self.memory, SubBuffers), "no elements, or those of another process"
        block, inside = BLOCK * (unit or self.dtype.itemsize), range(self.first + 1, self.end)
        return self.first % WIDE == 0 and not any(
            (border - self.first) % block for border in self.memory.borders if border in inside
        )

    def reach(self, start: int = 0) -> int:
        """Return how many of them, from number ``start`` on, one binding of a kernel covers; none at the end."""
        if start == self.size:
            return 0
        assert isinstance(self.memory, SubBuffers), "no elements, or those of another process"
        first = self.first + start * self.dtype.itemsize
        most = self.device.info.limits.max_storage_buffer_range // WIDE * WIDE - first % ALIGNMENT
        return min(self.size - start, min(most, self.memory.reach(first)) // self.dtype.itemsize)

    def window(self, start: int, count: int) -> Window:
        """Return a bindable range over ``count`` of them from number ``start`` on, and that one's index in the range.

        The range does not hold the memory: a call does, and what is written down of it outlives the call.

        Raises:
            InvalidUsageError: they lie in more than one buffer.
        """
        assert isinstance(self.memory, SubBuffers), "no elements, or those of another process"
        itemsize = self.dtype.itemsize
        whole, skipped = self.memory.window(self.first + start * itemsize, count * itemsize)
        return _bare(whole), skipped // itemsize


def _bare(item: BufferRange) -> BufferRange:
    return BufferRange(item.buffer, item.offset, item.nbytes, item.mapped)  # here, since every new call comes by


class Part(NamedTuple):
    """Elements that a schedule calls ``start`` and after."""

    start: int
    elements: Elements


class Placement:
    """One rank's parts; they do not overlap.

    Attributes:
        pins: it holds memory of some part, of which no single binding covers all; of all others it has numbers alone.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        given = sorted((part for part in parts if part.elements.size), key=operator.itemgetter(0))
        self._starts = [part.start for part in given]
        self._sizes = [(each.size, each.dtype.itemsize) for _, each in given]
        # Of a part that one binding covers, the range that all of its kernels bind.
        self._windows = [each.window(0, each.size) if each.reach() == each.size else None for _, each in given]
        self._parts = [None if window else part.elements for part, window in zip(given, self._windows, strict=True)]
        self.pins = None in self._windows

    @property
    def is_mapped(self) -> bool:
        """Whether the host sees all of them."""
        windows = [window[0] for window in self._windows if window is not None]
        rest = [item for elements in self._parts if elements is not None for item in elements.ranges()]
        return all(item.mapped for item in (*windows, *rest))

    def _find(self, start: int) -> tuple[int, int]:
        """Return the number of the part that holds virtual element ``start``, and the element's number in the part."""
        number = bisect.bisect_right(self._starts, start) - 1
        return number, start - self._starts[number]

    def ranges(self, span: Span) -> list[BufferRange]:
        """Return the bytes of the elements of ``span``."""
        number, at = self._find(span.start)
        elements, window = self._parts[number], self._windows[number]
        if elements is not None or window is None:
            assert elements is not None, "a part has a window or elements"
            return elements.cut(at, span.count).ranges()
        (whole, first), item = window, self._sizes[number][1]
        start = (first + at) * item
        return [
            BufferRange(whole.buffer, whole.offset + start, span.count * item, whole.mapped and whole.mapped + start)
        ]

    def reach(self, start: int) -> int:
        """Return how many elements from virtual element ``start`` on one binding of a kernel covers."""
        number, at = self._find(start)
        elements = self._parts[number]
        return self._sizes[number][0] - at if elements is None else elements.reach(at)

    def window(self, start: int, count: int) -> Window:
        """Return a bindable range that holds ``count`` elements, the part's own where that can be bound."""
        number, at = self._find(start)
        elements, window = self._parts[number], self._windows[number]
        if window is not None:
            return window[0], window[1] + at
        assert elements is not None, "a part has a window or elements"
        return elements.window(at, count)


@dataclass
class LocalCopies:
    """Copies on the ranks' devices that belong to a collective: by rank, before its first step and after its last."""

    before: dict[int, list[RangeCopy]] = field(default_factory=dict)
    after: dict[int, list[RangeCopy]] = field(default_factory=dict)

    @property
    def ranks(self) -> set[int]:
        """The ranks that copy anything."""
        return {*self.before, *self.after}


@dataclass
class Operands:
    """The arrays that a program reads and writes, by rank.

    Attributes:
        bounce_buffers: aligned bounce buffers in place of arrays that wide accesses cannot reach.
    """

    sources: list[Placement]
    targets: list[Placement]
    copies: LocalCopies = field(default_factory=LocalCopies)
    bounce_buffers: list[Array] = field(default_factory=list)

    @property
    def pins(self) -> bool:
        """Whether it holds memory, or knows it by more than numbers."""
        return bool(self.bounce_buffers) or any(place.pins for place in (*self.sources, *self.targets))


def slots_of(counts: Sequence[int]) -> list[Span]:
    """Lay pieces of ``counts`` elements one after the other, each from a multiple of :data:`BLOCK`."""
    spans, start = [], 0
    for count in counts:
        spans.append(Span(start, count))
        start += -(-count // BLOCK) * BLOCK
    return spans


def summed(sources: Sequence[Sequence[Part]], targets: Sequence[Sequence[Part]], *, in_words: bool = False) -> Operands:
    """Return operands for a reduction: elements as they are, bounce buffers where kernels cannot reach them.

    Each rank's parts are given; a target part may be a source part of the same rank. ``in_words`` takes them as
    :func:`moved` does.
    """
    made, unit = Operands([], []), WORD if in_words else 0
    for rank, (given, wanted) in enumerate(zip(sources, targets, strict=True)):
        bounces: dict[Part, Elements] = {}
        found = [_source(made, rank, part, bounces, unit) for part in _here(given)]
        filled = [_target(made, rank, part, bounces, unit) for part in _here(wanted)]
        made.sources.append(Placement(found))
        made.targets.append(made.sources[-1] if filled == found else Placement(filled))
    return made


def moved(sources: Sequence[Sequence[Part]], targets: Sequence[Sequence[Part]]) -> Operands:
    """Return operands for a movement: every part as 32-bit words, bounce buffers where kernels cannot reach these.

    The parts' starts count words (see :func:`words_of`). Allocations are padded, so that a source's last word may be
    read whole; a target's is written whole, which takes a bounce buffer.
    """
    made = Operands([], [])
    for rank, (given, wanted) in enumerate(zip(sources, targets, strict=True)):
        made.sources.append(Placement(_source(made, rank, part, {}, WORD) for part in _here(given)))
        made.targets.append(Placement(_target(made, rank, part, {}, WORD) for part in _here(wanted)))
    return made


def _here(parts: Sequence[Part]) -> list[Part]:
    """Return the parts that this process has."""
    return [part for part in parts if part.elements.is_here]


def words_of(nbytes: int) -> int:
    """Return how many 32-bit words hold so many bytes."""
    return -(-nbytes // WORD)


def _source(made: Operands, rank: int, part: Part, bounces: dict[Part, Elements], unit: int) -> Part:
    """Return the part, or a bounce buffer where kernels cannot reach it; in words where ``unit`` is not 0."""
    elements = part.elements
    if elements.size and not elements.is_reached(unit):
        bounce = bounces[part] = _bounce_buffer(made, elements)
        made.copies.before.setdefault(rank, []).append((elements.ranges(), bounce.ranges()))
        elements = bounce
    return Part(part.start, elements.words() if unit else elements)


def _target(made: Operands, rank: int, part: Part, bounces: dict[Part, Elements], unit: int) -> Part:
    """Return the part as :func:`_source` does; it takes a bounce buffer, too, where it is no whole number of units."""
    elements = part.elements
    whole = not unit or (elements.end - elements.first) % unit == 0
    if elements.size and not (whole and elements.is_reached(unit)):
        bounce = bounces.get(part) or _bounce_buffer(made, elements)
        made.copies.after.setdefault(rank, []).append((bounce.ranges(), elements.ranges()))
        elements = bounce
    return Part(part.start, elements.words() if unit else elements)


def _bounce_buffer(made: Operands, elements: Elements) -> Elements:
    made.bounce_buffers.append(Array.allocate(elements.device, elements.size, elements.dtype, BOUNCE_BUFFERS))
    return Elements.of(made.bounce_buffers[-1])
