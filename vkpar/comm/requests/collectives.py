"""The collectives: each is checked here, and becomes a request that says what to move and to sum, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vkpar.arrays.array import Array, overlaps
from vkpar.comm import wires
from vkpar.comm.requests import operands as placement
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
    rank_of,
)
from vkpar.comm.requests.keys import Call
from vkpar.comm.requests.operands import Operands, Part, flat, slots_of, words
from vkpar.comm.schedule.steps import Move, Span
from vkpar.device import Device
from vkpar.dtypes import DType, float32
from vkpar.errors import InvalidUsageError

ALL_REDUCE, REDUCE, REDUCE_SCATTER = "all_reduce", "reduce", "reduce_scatter"
ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND_RECV, BARRIER = "all_gather", "broadcast", "all_to_all", "send_recv", "barrier"


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
        space: elements of the schedule's virtual space.
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
        return placement.summed(self.sources, self.targets)

    def label(self) -> dict[str, Any]:
        """Return what the flight recorder says of it."""
        root = {} if self.root is None else {"root": self.root}
        return {**super().label(), "redop": self.op, **root, "contributors": list(self.contributors)}


@dataclass(frozen=True)
class Movement(Request):
    """Pieces of arrays that are moved as they are; a piece whose source and target share a rank is copied there."""

    pieces: tuple[_Piece, ...] = ()

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
        made = placement.moved(sources, targets)
        for rank, source, target in local:
            made.copies.before.setdefault(rank, []).append((source.ranges(), target.ranges()))
        return made


@dataclass(frozen=True)
class Barrier(Request):
    """No data: every rank waits for all others."""


@dataclass(frozen=True)
class _Piece:
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
    return _reduction(ALL_REDUCE, op, wire, sources, targets, {})


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
    return _reduction(REDUCE, op, wire, sources, targets, {"root": root})


def reduce_scatter(devices: Sequence[Device], arrays: Arrays, op: str, out: Arrays | None, wire: str | None) -> Request:
    """Check a reduce_scatter.

    Raises:
        InvalidUsageError, UnsupportedError
    """
    check_list(devices, arrays, "arrays")
    sources = contributions(arrays, largest(arrays))
    check_contributors(sources)
    first = next(array for array in sources if array is not None)
    _check_op(op, first.dtype, wire)
    check_alike(first.size, first.dtype, array=sources)
    counts = _split(first.size, len(devices))
    targets = check_out(devices, out, counts, first.dtype)
    spans = slots_of(counts)
    source_parts = [[] if array is None else _cut(array, counts, spans) for array in sources]
    target_parts = [[Part(span.start, flat(array))] for span, array in zip(spans, targets, strict=True)]
    return _checked(
        Reduction(
            REDUCE_SCATTER,
            _alive(sources, targets),
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
    name: str, op: str, wire: str | None, sources: Arrays, targets: Sequence[Array | None], more: dict[str, Any]
) -> Request:
    first = next(array for array in targets if array is not None)
    count = largest([*sources, *targets])
    _check_op(op, first.dtype, wire)
    check_alike(count, first.dtype, destination=targets, array=sources)
    return _checked(
        Reduction(
            name,
            _alive(sources, targets),
            first.dtype,
            count,
            op,
            wire,
            count,
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


def _check_op(op: str, dtype: DType, wire: str | None) -> None:
    if not isinstance(op, str) or op not in wires.OPS:
        raise InvalidUsageError(f"unknown op {op!r}; there are {', '.join(wires.OPS)}")
    wires.check(dtype, "f32" if wire is None else wire)
    if op == "avg" and not dtype.is_float:
        raise InvalidUsageError(f"avg is for floats; sum {dtype} and divide, rounding as you like")
    if wire is not None and wires.is_exact(dtype, op):
        what = f"{op} of {dtype}" if dtype == float32 else str(dtype)
        raise InvalidUsageError(f"{what} travels exactly; wire= is for sums, averages and products of float32")


def _target(rank: int, array: Array | None, out: Array | None) -> Array:
    target = array if out is None else out
    if target is None:
        raise InvalidUsageError(f"rank {rank} has no destination: give out[{rank}], or an array to reduce in place")
    return target


# ---- movements ----


def all_gather(devices: Sequence[Device], arrays: Arrays, out: Arrays | None) -> Request:
    """Check an all_gather.

    Raises:
        InvalidUsageError
    """
    check_list(devices, arrays, "arrays")
    given = [array for array in arrays if array is not None]
    if not given:
        raise InvalidUsageError("all_gather needs at least one array")
    dtype = given[0].dtype
    for rank, array in enumerate(arrays):
        if array is not None and array.dtype != dtype:
            raise InvalidUsageError(f"rank {rank}'s array is {array.dtype}, another {dtype}: dtypes must agree")
    counts = [0 if array is None else array.size for array in arrays]
    targets = check_out(devices, out, [sum(counts)] * len(devices), dtype)
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    pieces = []
    for rank, array in enumerate(arrays):
        if array is not None and array.size:
            start, end = starts[rank], starts[rank] + array.size
            places = {other: flat(target)[start:end] for other, target in enumerate(targets)}
            pieces.append(_Piece(rank, flat(array), places))
    return _movement(ALL_GATHER, pieces, len(devices), _alive(arrays, targets), dtype, sum(counts))


def broadcast(devices: Sequence[Device], arrays: Arrays, root: int) -> Request:
    """Check a broadcast.

    Raises:
        InvalidUsageError
    """
    check_list(devices, arrays, "arrays")
    source = arrays[check_rank(devices, root)]
    if source is None or any(array is None for array in arrays):
        raise InvalidUsageError("broadcast needs an array on every rank: it writes into them")
    check_alike(source.size, source.dtype, array=arrays)
    places = {rank: flat(array) for rank, array in enumerate(arrays) if array is not None}
    return _movement(
        BROADCAST, [_Piece(root, flat(source), places)], len(devices), _alive(arrays), source.dtype, source.size
    )


def all_to_all(devices: Sequence[Device], arrays: Arrays, out: Arrays | None) -> Request:
    """Check an all_to_all.

    Raises:
        InvalidUsageError
    """
    check_list(devices, arrays, "arrays")
    if any(array is None for array in arrays):
        raise InvalidUsageError("all_to_all needs an array on every rank")
    given = [array for array in arrays if array is not None]
    dtype, nranks = given[0].dtype, len(devices)
    check_alike(given[0].size, dtype, array=given)
    counts = _split(given[0].size, nranks)
    targets = check_out(devices, out, [nranks * count for count in counts], dtype)
    pieces = []
    for rank, array in enumerate(given):
        for other, part in enumerate(_cut(array, counts, slots_of(counts))):
            place = flat(targets[other])[rank * counts[other] : (rank + 1) * counts[other]]
            pieces.append(_Piece(rank, part.array, {other: place}))
    return _movement(ALL_TO_ALL, pieces, nranks, _alive(arrays, targets), dtype, given[0].size)


def unzipped(pairs: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the pairs' sources and targets.

    Raises:
        InvalidUsageError: something else than pairs was given.
    """
    try:
        return tuple(source for source, _ in pairs), tuple(target for _, target in pairs)
    except (TypeError, ValueError) as error:
        raise InvalidUsageError("send_recv takes (source, target) pairs of arrays") from error


def send_recv(devices: Sequence[Device], pairs: Sequence[tuple[Array, Array]]) -> Request:
    """Check a send_recv.

    Raises:
        InvalidUsageError
    """
    pieces = []
    for index, (source, target) in enumerate(pairs):
        rank = rank_of(devices, source, f"the source of pair {index}")
        other = rank_of(devices, target, f"the target of pair {index}")
        if source.size != target.size or source.dtype != target.dtype:
            raise InvalidUsageError(
                f"pair {index}: {source.size} {source.dtype} to {target.size} {target.dtype}; they must agree"
            )
        pieces.append(_Piece(rank, flat(source), {other: flat(target)}))
    arrays = [array for pair in pairs for array in pair]
    dtype = arrays[0].dtype if arrays else None
    return _movement(SEND_RECV, pieces, len(devices), _alive(arrays), dtype, sum(piece.source.size for piece in pieces))


def barrier() -> Request:
    """Return a barrier."""
    return Barrier(BARRIER, [])


def _movement(
    name: str, pieces: Sequence[_Piece], nranks: int, arrays: list[Array], dtype: DType | None, count: int
) -> Request:
    request = Movement(name, arrays, dtype, count, tuple(pieces))
    spans = request.spans()
    for rank in range(nranks):
        pairs = list(zip(request.pieces, spans, strict=True))
        sources = [Part(span.start, piece.source) for piece, span in pairs if piece.rank == rank]
        targets = [Part(span.start, piece.targets[rank]) for piece, span in pairs if rank in piece.targets]
        check_aliasing(rank, sources, targets)
    return request


# ---- shared ----


def _split(count: int, nranks: int) -> list[int]:
    """Return the sizes of the parts into which ``numpy.array_split`` cuts."""
    return [count // nranks + (rank < count % nranks) for rank in range(nranks)]


def _cut(array: Array, counts: Sequence[int], spans: Sequence[Span]) -> list[Part]:
    parts, at, whole = [], 0, flat(array)
    for count, span in zip(counts, spans, strict=True):
        parts.append(Part(span.start, whole[at : at + count]))
        at += count
    return parts


def _alive(*named: Arrays) -> list[Array]:
    """Return every array, each once."""
    return list({id(array): array for arrays in named for array in arrays if array is not None}.values())


_CHECKS: dict[str, Callable[[Sequence[Device], Call], Request]] = {
    ALL_REDUCE: lambda devices, call: all_reduce(devices, call.arrays, call.op, call.out, call.wire),
    REDUCE: lambda devices, call: reduce(devices, call.arrays, call.root, call.op, _only(call.out), call.wire),
    REDUCE_SCATTER: lambda devices, call: reduce_scatter(devices, call.arrays, call.op, call.out, call.wire),
    ALL_GATHER: lambda devices, call: all_gather(devices, call.arrays, call.out),
    BROADCAST: lambda devices, call: broadcast(devices, call.arrays, call.root),
    ALL_TO_ALL: lambda devices, call: all_to_all(devices, call.arrays, call.out),
    SEND_RECV: lambda devices, call: send_recv(devices, list(zip(call.arrays, call.out, strict=True))),
    BARRIER: lambda _devices, _call: barrier(),
}


def check(devices: Sequence[Device], call: Call) -> Request:
    """Return the request that ``call`` makes of ``devices``.

    Raises:
        InvalidUsageError, UnsupportedError: the call is wrong; the message says how.
    """
    return _CHECKS[call.name](devices, call)


def _only(out: Sequence[Array | None] | None) -> Array | None:
    return None if out is None else out[0]
