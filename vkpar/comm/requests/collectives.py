"""The collectives that reduce, and the barrier: a call is checked here and becomes a request.

A request says what to sum and what to move, and where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vkpar.comm import wires
from vkpar.comm.requests.checks import (
    Given,
    check_aliasing,
    check_alike,
    check_array,
    check_contributors,
    check_list,
    check_out,
    check_rank,
    contributions,
    largest,
)
from vkpar.comm.requests.keys import Call
from vkpar.comm.requests.operands import Elements, Operands, Part, moved, slots_of, summed, words_of
from vkpar.comm.schedule.steps import Move, Span
from vkpar.device import Device
from vkpar.dtypes import DType, float32
from vkpar.errors import InvalidUsageError

ALL_REDUCE, REDUCE, REDUCE_SCATTER = "all_reduce", "reduce", "reduce_scatter"
BARRIER = "barrier"


@dataclass(frozen=True)
class Request:
    """A checked collective.

    Attributes:
        name: the collective's name.
        dtype: the arrays' dtype; ``count`` of their elements describe the collective's size.
    """

    name: str
    dtype: DType | None = None
    count: int = 0

    def label(self) -> dict[str, Any]:
        """Return what the flight recorder says of it."""
        return {"dtype": str(self.dtype), "count": self.count} if self.dtype else {}


@dataclass(frozen=True)
class Reduction(Request):
    """Arrays that are summed (or multiplied, compared) element by element.

    Attributes:
        space: elements of the schedule's virtual space, or words: see :func:`vkpar.comm.wires.in_words`.
        root: the only rank that gets the result; ``parts``: the part that each rank gets. Where both are None, every
            rank gets the whole result.
    """

    op: str = "sum"
    wire: str | None = None
    space: int = 0
    contributors: tuple[int, ...] = ()
    root: int | None = None
    parts: tuple[Span, ...] | None = None
    sources: list[list[Part]] = field(default_factory=list)
    targets: list[list[Part]] = field(default_factory=list)

    def operands(self) -> Operands:
        """Return the arrays as programs read and write them."""
        assert self.dtype is not None
        return summed(self.sources, self.targets, in_words=wires.in_words(self.dtype))

    def label(self) -> dict[str, Any]:
        """Return what the flight recorder says of it."""
        root = {} if self.root is None else {"root": self.root}
        return {**super().label(), "redop": self.op, **root, "contributors": list(self.contributors)}


@dataclass(frozen=True)
class Movement(Request):
    """Arrays that are moved as they are; a send to the sender's own rank is a copy there.

    Attributes:
        root: the one rank that gives, or gets, everything.
        swaps: a rank may receive an array where the one that it sends to the same partner lies.
    """

    sends: tuple[Send, ...] = ()
    root: int | None = None
    swaps: bool = False

    def label(self) -> dict[str, Any]:
        """Return what the flight recorder says of it."""
        return super().label() | ({} if self.root is None else {"root": self.root})

    def spans(self) -> list[Span]:
        """Return where each send's elements lie in the virtual space, in words."""
        return slots_of([send.source.words().size for send in self.sends])

    def moves(self) -> list[Move]:
        """Return what crosses links."""
        return [
            Move(span, send.rank, tuple(sorted(rank for rank in send.targets if rank != send.rank)))
            for send, span in zip(self.sends, self.spans(), strict=True)
            if span.count and any(rank != send.rank for rank in send.targets)
        ]

    def operands(self, nranks: int) -> Operands:
        """Return the arrays as programs read and write them."""
        sources: list[list[Part]] = [[] for _ in range(nranks)]
        targets: list[list[Part]] = [[] for _ in range(nranks)]
        local: list[tuple[int, Elements, Elements]] = []
        for send, span in zip(self.sends, self.spans(), strict=True):
            sources[send.rank].append(Part(span.start, send.source))
            for rank, target in send.targets.items():
                if rank != send.rank:
                    targets[rank].append(Part(span.start, target))
                elif target.size and target.is_here and not target.overlaps(send.source):
                    local.append((rank, send.source, target))
        made = moved(sources, targets)
        for rank, source, target in local:
            made.copies.before.setdefault(rank, []).append((source.ranges(), target.ranges()))
        return made


@dataclass(frozen=True)
class Barrier(Request):
    """No data: every rank waits for all others."""


@dataclass(frozen=True)
class Send:
    """Rank ``rank`` sends ``source`` to ``targets``, by rank."""

    rank: int
    source: Elements
    targets: dict[int, Elements]


# ---- reductions ----


def all_reduce(devices: Sequence[Device], call: Call) -> Request:
    """Check an all_reduce; raises as :func:`vkpar.comm.requests.calls.check` does."""
    given = check_list(devices, call.arrays, "arrays")
    out = [None] * len(devices) if call.out is None else check_list(devices, call.out, "out")
    targets = [_target(rank, *pair) for rank, pair in enumerate(zip(given, out, strict=True))]
    return _reduction(devices, call, contributions(given, largest(targets)), targets)


def reduce(devices: Sequence[Device], call: Call) -> Request:
    """Check a reduce; raises as :func:`vkpar.comm.requests.calls.check` does."""
    given = check_list(devices, call.arrays, "arrays")
    root, (out,) = check_rank(devices, call.root), call.out
    targets: list[Elements | None] = [None] * len(devices)
    targets[root] = _target(root, given[root], None if out is None else check_array(devices, root, out, "out"))
    return _reduction(devices, call, contributions(given, largest(given, targets)), targets)


def reduce_scatter(devices: Sequence[Device], call: Call) -> Request:
    """Check a reduce_scatter; raises as :func:`vkpar.comm.requests.calls.check` does."""
    given = check_list(devices, call.arrays, "arrays")
    sources = contributions(given, largest(given))
    contributors = check_contributors(sources)
    first = next(each for each in sources if each is not None)
    _check_op(devices, call.op, first.dtype, call.wire)
    check_alike(first.size, first.dtype, array=sources)
    counts = parts_of(first.size, len(devices), call.counts)
    targets = check_out(devices, call.out, counts, first.dtype)
    spans = slots_of([_units(count, first.dtype) for count in counts])
    source_parts = [[] if each is None else cut(each, counts, spans) for each in sources]
    target_parts = [[Part(span.start, each)] for span, each in zip(spans, targets, strict=True)]
    return _checked(
        Reduction(
            call.name,
            first.dtype,
            first.size,
            call.op,
            call.wire,
            spans[-1].start + spans[-1].count if first.size else 0,
            contributors,
            parts=tuple(spans),
            sources=source_parts,
            targets=target_parts,
        )
    )


def _reduction(devices: Sequence[Device], call: Call, sources: Given, targets: Given) -> Request:
    first = next(each for each in targets if each is not None)
    count = largest(sources, targets)
    _check_op(devices, call.op, first.dtype, call.wire)
    check_alike(count, first.dtype, destination=targets, array=sources)
    return _checked(
        Reduction(
            call.name,
            first.dtype,
            count,
            call.op,
            call.wire,
            _units(count, first.dtype),
            check_contributors(sources),
            call.root,
            sources=[[] if each is None else [Part(0, each)] for each in sources],
            targets=[[] if each is None else [Part(0, each)] for each in targets],
        )
    )


def _checked(request: Reduction) -> Reduction:
    for rank, (sources, targets) in enumerate(zip(request.sources, request.targets, strict=True)):
        check_aliasing(rank, sources, targets)
    return request


def _units(count: int, dtype: DType) -> int:
    """Return how many elements of its virtual space a schedule counts for ``count`` elements of ``dtype``."""
    return words_of(count * dtype.itemsize) if wires.in_words(dtype) else count


def _check_op(devices: Sequence[Device], op: str, dtype: DType, wire: str | None) -> None:
    if not isinstance(op, str) or op not in wires.OPS:
        raise InvalidUsageError(f"unknown op {op!r}; there are {', '.join(wires.OPS)}")
    wires.check(dtype, "f32" if wire is None else wire)
    wires.check_devices(dtype, [device.info for device in devices])
    if wire is not None and wires.is_exact(dtype, op):
        what = f"{op} of {dtype}" if dtype == float32 else str(dtype)
        raise InvalidUsageError(f"{what} travels exactly; wire= is for sums, averages and products of float32")


def _target(rank: int, given: Elements | None, out: Elements | None) -> Elements:
    target = given if out is None else out
    if target is None:
        raise InvalidUsageError(f"rank {rank} has no destination: give out[{rank}], or an array to reduce in place")
    return target


def barrier(_devices: Sequence[Device], call: Call) -> Request:
    """Return a barrier."""
    return Barrier(call.name)


# ---- shared ----


def split(count: int, nranks: int) -> list[int]:
    """Return the sizes of the parts into which ``numpy.array_split`` cuts."""
    return [count // nranks + (rank < count % nranks) for rank in range(nranks)]


def parts_of(count: int, nranks: int, counts: Sequence[int] | None) -> list[int]:
    """Return the sizes of the parts that ranks get: ``counts``, or the most equal ones.

    Raises:
        InvalidUsageError: ``counts`` do not add up to ``count``.
    """
    if counts is not None and sum(counts) != count:
        raise InvalidUsageError(f"counts add up to {sum(counts)}; the array has {count} elements")
    return split(count, nranks) if counts is None else list(counts)


def cut(whole: Elements, counts: Sequence[int], spans: Sequence[Span]) -> list[Part]:
    """Return consecutive parts of ``whole``: part i, of ``counts[i]`` elements, begins at ``spans[i]``."""
    parts, at = [], 0
    for count, span in zip(counts, spans, strict=True):
        parts.append(Part(span.start, whole.cut(at, count)))
        at += count
    return parts
