"""The collectives that move data and compute nothing: each is checked here, and becomes a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkpar.arrays.array import Array, overlaps
from vkpar.comm.requests.checks import (
    Arrays,
    check_aliasing,
    check_alike,
    check_array,
    check_list,
    check_out,
    check_rank,
    contributions,
    rank_of,
)
from vkpar.comm.requests.collectives import Movement, Piece, Request, alive, cut, parts_of, split
from vkpar.comm.requests.operands import Part, flat, slots_of
from vkpar.comm.schedule.steps import Span
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError

ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND_RECV = "all_gather", "broadcast", "all_to_all", "send_recv"
SCATTER, GATHER = "scatter", "gather"


def all_gather(devices: Sequence[Device], arrays: Arrays, out: Arrays | None) -> Request:
    """Check an all_gather.

    Raises:
        InvalidUsageError
    """
    check_list(devices, arrays, "arrays")
    dtype, counts = _common(ALL_GATHER, arrays)
    targets = check_out(devices, out, [sum(counts)] * len(devices), dtype)
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    pieces = []
    for rank, array in enumerate(arrays):
        if array is not None and array.size:
            start, end = starts[rank], starts[rank] + array.size
            places = {other: flat(target)[start:end] for other, target in enumerate(targets)}
            pieces.append(Piece(rank, flat(array), places))
    return _moved(Movement(ALL_GATHER, alive(arrays, targets), dtype, sum(counts), tuple(pieces)), len(devices))


def broadcast(devices: Sequence[Device], arrays: Arrays, root: int, out: Arrays | None = None) -> Request:
    """Check a broadcast.

    Raises:
        InvalidUsageError
    """
    check_list(devices, arrays, "arrays")
    source = arrays[check_rank(devices, root)]
    if source is None:
        raise InvalidUsageError(f"broadcast needs an array on every rank, or on rank {root}, its root, alone with out=")
    if out is None and any(array is None for array in arrays):
        raise InvalidUsageError("broadcast needs an array on every rank: it writes into them, or into out=")
    given = arrays if out is None else contributions(arrays, source.size)
    check_alike(source.size, source.dtype, array=given)
    counts = [source.size] * len(devices)
    targets = arrays if out is None else check_out(devices, out, counts, source.dtype)
    places = {rank: flat(array) for rank, array in enumerate(targets) if array is not None}
    pieces = [Piece(root, flat(source), places)]
    request = Movement(BROADCAST, alive(arrays, targets), source.dtype, source.size, tuple(pieces), root)
    return _moved(request, len(devices))


def scatter(
    devices: Sequence[Device], array: Array, root: int, out: Arrays | None, counts: Sequence[int] | None = None
) -> Request:
    """Check a scatter.

    Raises:
        InvalidUsageError
    """
    check_array(devices, check_rank(devices, root), array, "array")
    counts = parts_of(array.size, len(devices), counts)
    targets = check_out(devices, out, counts, array.dtype)
    parts = cut(array, counts, slots_of(counts))
    pieces = [Piece(root, part.array, {rank: flat(targets[rank])}) for rank, part in enumerate(parts)]
    request = Movement(SCATTER, alive([array], targets), array.dtype, array.size, tuple(pieces), root)
    return _moved(request, len(devices))


def gather(devices: Sequence[Device], arrays: Arrays, root: int, out: Array | None) -> Request:
    """Check a gather.

    Raises:
        InvalidUsageError
    """
    check_list(devices, arrays, "arrays")
    check_rank(devices, root)
    dtype, counts = _common(GATHER, arrays)
    if out is None:
        raise InvalidUsageError(f"out is needed: an array of {sum(counts)} elements on rank {root}, the root")
    check_array(devices, root, out, "out")
    if out.size != sum(counts) or out.dtype != dtype:
        raise InvalidUsageError(f"out is {out.size} {out.dtype}; this needs {sum(counts)} {dtype}")
    places = cut(out, counts, slots_of(counts))
    pieces = [
        Piece(rank, flat(array), {root: place.array})
        for rank, (array, place) in enumerate(zip(arrays, places, strict=True))
        if array is not None and array.size
    ]
    request = Movement(GATHER, alive(arrays, [out]), dtype, out.size, tuple(pieces), root)
    return _moved(request, len(devices))


def all_to_all(
    devices: Sequence[Device],
    arrays: Arrays,
    out: Arrays | None,
    counts: Sequence[Sequence[int]] | None = None,
) -> Request:
    """Check an all_to_all; ``counts[r][q]`` elements go from rank r to rank q.

    Raises:
        InvalidUsageError
    """
    check_list(devices, arrays, "arrays")
    nranks = len(devices)
    dtype, sizes = _common(ALL_TO_ALL, arrays)
    if counts is None:
        if any(array is None for array in arrays):
            raise InvalidUsageError("all_to_all needs an array on every rank, or counts=")
        check_alike(sizes[0], dtype, array=arrays)
        counts = [split(sizes[0], nranks)] * nranks
    for rank, (size, row) in enumerate(zip(sizes, counts, strict=True)):
        if size != sum(row):
            raise InvalidUsageError(f"rank {rank}'s array has {size} elements; its counts add up to {sum(row)}")
    received = [[row[rank] for row in counts] for rank in range(nranks)]
    targets = check_out(devices, out, [sum(column) for column in received], dtype)
    places = [cut(target, column, slots_of(column)) for target, column in zip(targets, received, strict=True)]
    pieces = [
        Piece(rank, part.array, {other: places[other][rank].array})
        for rank, (array, row) in enumerate(zip(arrays, counts, strict=True))
        if array is not None
        for other, part in enumerate(cut(array, row, slots_of(row)))
    ]
    swaps = any(array is not None and overlaps(array, target) for array, target in zip(arrays, targets, strict=True))
    request = Movement(ALL_TO_ALL, alive(arrays, targets), dtype, max(sizes), tuple(pieces), swaps=swaps)
    return _moved(request, nranks)


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
        pieces.append(Piece(rank, flat(source), {other: flat(target)}))
    arrays = [array for pair in pairs for array in pair]
    dtype = arrays[0].dtype if arrays else None
    count = sum(piece.source.size for piece in pieces)
    return _moved(Movement(SEND_RECV, alive(arrays), dtype, count, tuple(pieces)), len(devices))


def _moved(request: Movement, nranks: int) -> Request:
    """Return the movement, whose destinations were checked."""
    pairs = list(zip(request.pieces, request.spans(), strict=True))
    partners = _partners(pairs) if request.swaps else {}
    for rank in range(nranks):
        sources = [Part(span.start, piece.source) for piece, span in pairs if piece.rank == rank]
        targets = [Part(span.start, piece.targets[rank]) for piece, span in pairs if rank in piece.targets]
        check_aliasing(rank, sources, targets, partners)
    return request


def _partners(pairs: Sequence[tuple[Piece, Span]]) -> dict[int, int]:
    """Return, by the start of each piece, that of the one that comes back for it: from its target to its source."""
    starts = {(piece.rank, target): span.start for piece, span in pairs for target in piece.targets}
    return {start: starts.get((target, source), start) for (source, target), start in starts.items()}


def _common(name: str, arrays: Arrays) -> tuple[DType, list[int]]:
    """Return the dtype of arrays of which some may be None, and their counts.

    Raises:
        InvalidUsageError
    """
    given = [array for array in arrays if array is not None]
    if not given:
        raise InvalidUsageError(f"{name} needs at least one array")
    dtype = given[0].dtype
    for rank, array in enumerate(arrays):
        if array is not None and array.dtype != dtype:
            raise InvalidUsageError(f"rank {rank}'s array is {array.dtype}, another {dtype}: dtypes must agree")
    return dtype, [0 if array is None else array.size for array in arrays]
