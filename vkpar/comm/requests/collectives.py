"""The collectives: each is checked here, and becomes a request that says what to move and to sum, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vkpar.arrays.array import Array, overlaps
from vkpar.comm import wires
from vkpar.comm.requests.checks import (
    Arrays,
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
from vkpar.comm.requests.operands import Operands, Part, flat, moved, slots_of, summed, words, words_of
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
        name: the collective's.
        arrays: everything that it names; what is recorded for it is dropped when one of them is gone.
        dtype: of the arrays; ``count`` of their elements describe its size.
    """

    name: str
    arrays: list[Array]
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
        root: the only rank that gets the result; ``parts``: what each rank gets; all get all where both are None.
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
    """Pieces of arrays that are moved as they are; a piece whose source and target share a rank is copied there.

    Attributes:
        root: the one rank that gives, or gets, everything.
        swaps: a piece may lie where the one that comes back for it will.
    """

    pieces: tuple[Piece, ...] = ()
    root: int | None = None
    swaps: bool = False

    def label(self) -> dict[str, Any]:
        """Return what the flight recorder says of it."""
        return super().label() | ({} if self.root is None else {"root": self.root})

    def spans(self) -> list[Span]:
        """Return where each piece lies in the virtual space, in words."""
        return slots_of([words(piece.source) for piece in self.pieces])

    def moves(self) -> list[Move]:
        """Return what crosses links."""
        pairs = zip(self.pieces, self.spans(), strict=True)
        return [
            Move(span, piece.rank, tuple(sorted(rank for rank in piece.targets if rank != piece.rank)))
            for piece, span in pairs
            if span.count and any(rank != piece.rank for rank in piece.targets)
        ]

    def operands(self, nranks: int) -> Operands:
        """Return the arrays as programs read and write them."""
        sources: list[list[Part]] = [[] for _ in range(nranks)]
        targets: list[list[Part]] = [[] for _ in range(nranks)]
        local: list[tuple[int, Array, Array]] = []
        for piece, span in zip(self.pieces, self.spans(), strict=True):
            sources[piece.rank].append(Part(span.start, piece.source))
            for rank, target in piece.targets.items():
                if rank != piece.rank:
                    targets[rank].append(Part(span.start, target))
                elif target.size and not overlaps(piece.source, target):
                    local.append((rank, piece.source, target))
        made = moved(sources, targets)
        for rank, source, target in local:
            made.copies.before.setdefault(rank, []).append((source.ranges(), target.ranges()))
        return made


@dataclass(frozen=True)
class Barrier(Request):
    """No data: every rank waits for all others."""


@dataclass(frozen=True)
class Piece:
    """``source`` on ``rank`` goes to ``targets``, by rank."""

    rank: int
    source: Array
    targets: dict[int, Array]


# ---- reductions ----


def all_reduce(devices: Sequence[Device], arrays: Arrays, op: str, out: Arrays | None, wire: str | None) -> Request:
    """Check an all_reduce.

    Raises:
        InvalidUsageError, UnsupportedError
    """
    check_list(devices, arrays, "arrays")
    if out is not None:
        check_list(devices, out, "out")
    targets = [_target(rank, array, None if out is None else out[rank]) for rank, array in enumerate(arrays)]
    sources = contributions(arrays, largest(targets))
    return _reduction(ALL_REDUCE, devices, op, wire, sources, targets, {})


def reduce(
    devices: Sequence[Device], arrays: Arrays, root: int, op: str, out: Array | None, wire: str | None
) -> Request:
    """Check a reduce.

    Raises:
        InvalidUsageError, UnsupportedError
    """
    check_list(devices, arrays, "arrays")
    check_rank(devices, root)
    if out is not None:
        check_array(devices, root, out, "out")
    targets: list[Array | None] = [None] * len(devices)
    targets[root] = _target(root, arrays[root], out)
    sources = contributions(arrays, largest([*arrays, *targets]))
    return _reduction(REDUCE, devices, op, wire, sources, targets, {"root": root})


def reduce_scatter(
    devices: Sequence[Device],
    arrays: Arrays,
    op: str,
    out: Arrays | None,
    wire: str | None,
    counts: Sequence[int] | None = None,
) -> Request:
    """Check a reduce_scatter.

    Raises:
        InvalidUsageError, UnsupportedError
    """
    check_list(devices, arrays, "arrays")
    sources = contributions(arrays, largest(arrays))
    check_contributors(sources)
    first = next(array for array in sources if array is not None)
    _check_op(devices, op, first.dtype, wire)
    check_alike(first.size, first.dtype, array=sources)
    counts = parts_of(first.size, len(devices), counts)
    targets = check_out(devices, out, counts, first.dtype)
    spans = slots_of([_units(count, first.dtype) for count in counts])
    source_parts = [[] if array is None else cut(array, counts, spans) for array in sources]
    target_parts = [[Part(span.start, flat(array))] for span, array in zip(spans, targets, strict=True)]
    return _checked(
        Reduction(
            REDUCE_SCATTER,
            alive(sources, targets),
            first.dtype,
            first.size,
            op,
            wire,
            spans[-1].start + spans[-1].count if first.size else 0,
            check_contributors(sources),
            parts=tuple(spans),
            sources=source_parts,
            targets=target_parts,
        )
    )


def _reduction(
    name: str,
    devices: Sequence[Device],
    op: str,
    wire: str | None,
    sources: Arrays,
    targets: Sequence[Array | None],
    more: dict[str, Any],
) -> Request:
    first = next(array for array in targets if array is not None)
    count = largest([*sources, *targets])
    _check_op(devices, op, first.dtype, wire)
    check_alike(count, first.dtype, destination=targets, array=sources)
    return _checked(
        Reduction(
            name,
            alive(sources, targets),
            first.dtype,
            count,
            op,
            wire,
            _units(count, first.dtype),
            check_contributors(sources),
            sources=[[] if array is None else [Part(0, flat(array))] for array in sources],
            targets=[[] if array is None else [Part(0, flat(array))] for array in targets],
            **more,
        )
    )


def _checked(request: Reduction) -> Reduction:
    for rank, (sources, targets) in enumerate(zip(request.sources, request.targets, strict=True)):
        check_aliasing(rank, sources, targets)
    return request


def _units(count: int, dtype: DType) -> int:
    """Return how many elements a schedule sees in ``count`` of ``dtype``."""
    return words_of(count * dtype.itemsize) if wires.in_words(dtype) else count


def _check_op(devices: Sequence[Device], op: str, dtype: DType, wire: str | None) -> None:
    if not isinstance(op, str) or op not in wires.OPS:
        raise InvalidUsageError(f"unknown op {op!r}; there are {', '.join(wires.OPS)}")
    wires.check(dtype, "f32" if wire is None else wire)
    wires.check_devices(dtype, [device.info for device in devices])
    if wire is not None and wires.is_exact(dtype, op):
        what = f"{op} of {dtype}" if dtype == float32 else str(dtype)
        raise InvalidUsageError(f"{what} travels exactly; wire= is for sums, averages and products of float32")


def _target(rank: int, array: Array | None, out: Array | None) -> Array:
    target = array if out is None else out
    if target is None:
        raise InvalidUsageError(f"rank {rank} has no destination: give out[{rank}], or an array to reduce in place")
    return target


def barrier() -> Request:
    """Return a barrier."""
    return Barrier(BARRIER, [])


# ---- shared ----


def split(count: int, nranks: int) -> list[int]:
    """Return the sizes of the parts into which ``numpy.array_split`` cuts."""
    return [count // nranks + (rank < count % nranks) for rank in range(nranks)]


def parts_of(count: int, nranks: int, counts: Sequence[int] | None) -> list[int]:
    """Return the sizes of the parts that ranks get: ``counts``, or as equal as can be.

    Raises:
        InvalidUsageError: they do not add up to ``count``.
    """
    if counts is not None and sum(counts) != count:
        raise InvalidUsageError(f"counts add up to {sum(counts)}; the array has {count} elements")
    return split(count, nranks) if counts is None else list(counts)


def cut(array: Array, counts: Sequence[int], spans: Sequence[Span]) -> list[Part]:
    """Return consecutive parts of the flat array, of so many elements each, to which a schedule gives those spans."""
    parts, at, whole = [], 0, flat(array)
    for count, span in zip(counts, spans, strict=True):
        parts.append(Part(span.start, whole[at : at + count]))
        at += count
    return parts


def alive(*named: Arrays) -> list[Array]:
    """Return every array, each once."""
    return list({id(array): array for arrays in named for array in arrays if array is not None}.values())
