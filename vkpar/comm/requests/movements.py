"""The collectives that move data and compute nothing: a call is checked here and becomes a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkpar.arrays.array import Array
from vkpar.arrays.views import overlaps
from vkpar.comm.requests.checks import (
    check_aliasing,
    check_alike,
    check_array,
    check_list,
    check_out,
    check_rank,
    contributions,
    rank_of,
)
from vkpar.comm.requests.collectives import Movement, Request, Send, alive, cut, parts_of, split
from vkpar.comm.requests.keys import Call
from vkpar.comm.requests.operands import Part, flat, slots_of
from vkpar.comm.schedule.steps import Span
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError

ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND_RECV = "all_gather", "broadcast", "all_to_all", "send_recv"
SCATTER, GATHER = "scatter", "gather"


def all_gather(devices: Sequence[Device], call: Call) -> Request:
    """Check an all_gather; raises as :func:`vkpar.comm.requests.calls.check` does."""
    check_list(devices, call.arrays, "arrays")
    dtype, counts = _common(call)
    targets = check_out(devices, call.out, [sum(counts)] * len(devices), dtype)
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    sends = []
    for rank, array in enumerate(call.arrays):
        if array is not None and array.size:
            start, end = starts[rank], starts[rank] + array.size
            places = {other: flat(target)[start:end] for other, target in enumerate(targets)}
            sends.append(Send(rank, flat(array), places))
    return _moved(devices, call, alive(call.arrays, targets), dtype, sum(counts), sends)


def broadcast(devices: Sequence[Device], call: Call) -> Request:
    """Check a broadcast; raises as :func:`vkpar.comm.requests.calls.check` does."""
    arrays, out = call.arrays, call.out
    check_list(devices, arrays, "arrays")
    root = check_rank(devices, call.root)
    source = arrays[root]
    if source is None:
        raise InvalidUsageError(f"broadcast needs an array on every rank, or on rank {root}, its root, alone with out=")
    if out is None and any(array is None for array in arrays):
        raise InvalidUsageError("broadcast needs an array on every rank: it writes into them, or into out=")
    given = arrays if out is None else contributions(arrays, source.size)
    check_alike(source.size, source.dtype, array=given)
    counts = [source.size] * len(devices)
    targets = arrays if out is None else check_out(devices, out, counts, source.dtype)
    places = {rank: flat(array) for rank, array in enumerate(targets) if array is not None}
    return _moved(devices, call, alive(arrays, targets), source.dtype, source.size, [Send(root, flat(source), places)])


def scatter(devices: Sequence[Device], call: Call) -> Request:
    """Check a scatter; raises as :func:`vkpar.comm.requests.calls.check` does."""
    (array,), root = call.arrays, check_rank(devices, call.root)
    check_array(devices, root, array, "array")
    counts = parts_of(array.size, len(devices), call.counts)
    targets = check_out(devices, call.out, counts, array.dtype)
    parts = cut(array, counts, slots_of(counts))
    sends = [Send(root, part.array, {rank: flat(targets[rank])}) for rank, part in enumerate(parts)]
    return _moved(devices, call, alive([array], targets), array.dtype, array.size, sends)


def gather(devices: Sequence[Device], call: Call) -> Request:
    """Check a gather; raises as :func:`vkpar.comm.requests.calls.check` does."""
    check_list(devices, call.arrays, "arrays")
    root, (out,) = check_rank(devices, call.root), call.out
    dtype, counts = _common(call)
    if out is None:
        raise InvalidUsageError(f"out is needed: an array of {sum(counts)} elements on rank {root}, the root")
    check_array(devices, root, out, "out")
    if out.size != sum(counts) or out.dtype != dtype:
        raise InvalidUsageError(f"out is {out.size} {out.dtype}; this needs {sum(counts)} {dtype}")
    places = cut(out, counts, slots_of(counts))
    sends = [
        Send(rank, flat(array), {root: place.array})
        for rank, (array, place) in enumerate(zip(call.arrays, places, strict=True))
        if array is not None and array.size
    ]
    return _moved(devices, call, alive(call.arrays, [out]), dtype, out.size, sends)


def all_to_all(devices: Sequence[Device], call: Call) -> Request:
    """Check an all_to_all; raises as :func:`vkpar.comm.requests.calls.check` does."""
    arrays, counts, nranks = call.arrays, call.counts, len(devices)
    check_list(devices, arrays, "arrays")
    dtype, sizes = _common(call)
    if counts is None:
        if any(array is None for array in arrays):
            raise InvalidUsageError("all_to_all needs an array on every rank, or counts=")
        check_alike(sizes[0], dtype, array=arrays)
        counts = [split(sizes[0], nranks)] * nranks
    for rank, (size, row) in enumerate(zip(sizes, counts, strict=True)):
        if size != sum(row):
            raise InvalidUsageError(f"rank {rank}'s array has {size} elements; its counts add up to {sum(row)}")
    received = [[row[rank] for row in counts] for rank in range(nranks)]
    targets = check_out(devices, call.out, [sum(column) for column in received], dtype)
    places = [cut(target, column, slots_of(column)) for target, column in zip(targets, received, strict=True)]
    sends = [
        Send(rank, part.array, {other: places[other][rank].array})
        for rank, (array, row) in enumerate(zip(arrays, counts, strict=True))
        if array is not None
        for other, part in enumerate(cut(array, row, slots_of(row)))
    ]
    swaps = any(array is not None and overlaps(array, target) for array, target in zip(arrays, targets, strict=True))
    return _moved(devices, call, alive(arrays, targets), dtype, max(sizes), sends, swaps=swaps)


def unzipped(pairs: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the pairs' sources and targets.

    Raises:
        InvalidUsageError: ``pairs`` is no sequence of pairs.
    """
    try:
        return tuple(source for source, _ in pairs), tuple(target for _, target in pairs)
    except (TypeError, ValueError) as error:
        raise InvalidUsageError("send_recv takes (source, target) pairs of arrays") from error


def send_recv(devices: Sequence[Device], call: Call) -> Request:
    """Check a send_recv; raises as :func:`vkpar.comm.requests.calls.check` does."""
    sends = []
    for index, (source, target) in enumerate(zip(call.arrays, call.out, strict=True)):
        rank = rank_of(devices, source, f"the source of pair {index}")
        other = rank_of(devices, target, f"the target of pair {index}")
        if source.size != target.size or source.dtype != target.dtype:
            raise InvalidUsageError(
                f"pair {index}: {source.size} {source.dtype} to {target.size} {target.dtype}; they must agree"
            )
        sends.append(Send(rank, flat(source), {other: flat(target)}))
    dtype = call.arrays[0].dtype if call.arrays else None
    return _moved(devices, call, alive(call.arrays, call.out), dtype, sum(send.source.size for send in sends), sends)


def _moved(
    devices: Sequence[Device],
    call: Call,
    arrays: list[Array],
    dtype: DType | None,
    count: int,
    sends: Sequence[Send],
    *,
    swaps: bool = False,
) -> Request:
    """Return the movement once its destinations are checked."""
    request = Movement(call.name, arrays, dtype, count, tuple(sends), call.root, swaps)
    pairs = list(zip(sends, request.spans(), strict=True))
    partners = _partners(pairs) if swaps else {}
    for rank in range(len(devices)):
        sources = [Part(span.start, send.source) for send, span in pairs if send.rank == rank]
        targets = [Part(span.start, send.targets[rank]) for send, span in pairs if rank in send.targets]
        check_aliasing(rank, sources, targets, partners)
    return request


def _partners(pairs: Sequence[tuple[Send, Span]]) -> dict[int, int]:
    """Return the start of the send from a target back to its source, by the start of the send to that target."""
    starts = {(send.rank, target): span.start for send, span in pairs for target in send.targets}
    return {start: starts.get((target, source), start) for (source, target), start in starts.items()}


def _common(call: Call) -> tuple[DType, list[int]]:
    """Return the dtype of a call's arrays and their counts; an array that is None has the count 0."""
    given = [array for array in call.arrays if array is not None]
    if not given:
        raise InvalidUsageError(f"{call.name} needs at least one array")
    dtype = given[0].dtype
    for rank, array in enumerate(call.arrays):
        if array is not None and array.dtype != dtype:
            raise InvalidUsageError(f"rank {rank}'s array is {array.dtype}, another {dtype}: dtypes must agree")
    return dtype, [0 if array is None else array.size for array in call.arrays]
