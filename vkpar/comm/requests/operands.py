"""The operands of a program: each rank's arrays, laid out in the virtual space that a schedule counts in."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.comm.schedule.steps import BLOCK, Span
from vkpar.vulkan.memory.accounting import BOUNCE_BUFFERS
from vkpar.vulkan.memory.buffer import BufferRange

WORD = 4  # bytes; movements, and reduced elements of other than 32 bits, travel as words

RangeCopy = tuple[list[BufferRange], list[BufferRange]]  # of as many bytes


@dataclass(frozen=True)
class Part:
    """A flat array whose elements a schedule calls ``start`` and after."""

    start: int
    array: Array


class Placement:
    """One rank's parts; they do not overlap."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = sorted((part for part in parts if part.array.size), key=lambda part: part.start)
        self._starts = [part.start for part in self.parts]

    def find(self, start: int) -> tuple[Array, int]:
        """Return the array that holds virtual element ``start``, and the element's index in it."""
        part = self.parts[bisect.bisect_right(self._starts, start) - 1]
        return part.array, start - part.start


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


def flat(array: Array) -> Array:
    """Return the array as one dimension."""
    return array.reshape(-1)


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
        bounces: dict[tuple[int, object], Array] = {}
        found = [_source(made, rank, part, bounces, unit=unit) for part in given]
        filled = [_target(made, rank, part, bounces, unit=unit) for part in wanted]
        made.sources.append(Placement(map(_in_words, found) if in_words else found))
        made.targets.append(Placement(map(_in_words, filled) if in_words else filled))
    return made


def moved(sources: Sequence[Sequence[Part]], targets: Sequence[Sequence[Part]]) -> Operands:
    """Return operands for a movement: every part as 32-bit words, bounce buffers where kernels cannot reach these.

    The parts' starts count words (see :func:`words`). Allocations are padded, so that a source's last word may be read
    whole; a target's is written whole, which takes a bounce buffer.
    """
    made = Operands([], [])
    for rank, (given, wanted) in enumerate(zip(sources, targets, strict=True)):
        made.sources.append(Placement(_in_words(_source(made, rank, part, {}, unit=WORD)) for part in given))
        made.targets.append(Placement(_in_words(_target(made, rank, part, {}, unit=WORD)) for part in wanted))
    return made


def words(array: Array) -> int:
    """Return how many 32-bit words hold the array's bytes."""
    return words_of(array.nbytes)


def words_of(nbytes: int) -> int:
    """Return how many 32-bit words hold so many bytes."""
    return -(-nbytes // WORD)


def _source(made: Operands, rank: int, part: Part, bounces: dict[tuple[int, object], Array], *, unit: int = 0) -> Part:
    if part.array.size == 0 or _is_reached(part.array, unit):
        return part
    bounce = bounces[part.start, part.array.key] = _bounce_buffer(made, part.array)
    made.copies.before.setdefault(rank, []).append((part.array.ranges(), bounce.ranges()))
    return Part(part.start, bounce)


def _target(made: Operands, rank: int, part: Part, bounces: dict[tuple[int, object], Array], *, unit: int = 0) -> Part:
    """Return the part, or a bounce buffer where kernels cannot reach it or it is no multiple of ``unit`` bytes."""
    whole = not unit or part.array.nbytes % unit == 0
    if part.array.size == 0 or (whole and _is_reached(part.array, unit)):
        return part
    bounce = bounces.get((part.start, part.array.key))
    if bounce is None:
        bounce = _bounce_buffer(made, part.array)
    made.copies.after.setdefault(rank, []).append((bounce.ranges(), part.array.ranges()))
    return Part(part.start, bounce)


def _is_reached(array: Array, unit: int) -> bool:
    """Say whether wide accesses reach the array, and each of its blocks lies in one sub-buffer.

    Args:
        array: with elements.
        unit: bytes of what blocks consist of; 0 for the array's elements.
    """
    return array.is_aligned() and array.has_borders_at(BLOCK * (unit or array.dtype.itemsize))


def _in_words(part: Part) -> Part:
    array = part.array
    return Part(part.start, Array(array.storage, array.byte_offset, (words(array),), dtypes.uint32))


def _bounce_buffer(made: Operands, array: Array) -> Array:
    made.bounce_buffers.append(Array.allocate(array.device, array.shape, array.dtype, BOUNCE_BUFFERS))
    return made.bounce_buffers[-1]
