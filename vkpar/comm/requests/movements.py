"""The collectives that move data and compute nothing: a call is checked here and becomes a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkpar.comm.requests.checks import (
    Given,
    check_aliasing,
    check_alike,
    check_anywhere,
    check_array,
    check_list,
    check_out,
    check_rank,
    contributions,
)
from vkpar.comm.requests.collectives import Movement, Request, Send, cut, parts_of, split
from vkpar.comm.requests.keys import Call
from vkpar.comm.requests.operands import Part, slots_of
from vkpar.comm.schedule.steps import Span
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError

ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND_RECV = "all_gather", "broadcast", "all_to_all", "send_recv"
SCATTER, GATHER = "scatter", "gather"


def all_gather(devices: Sequence[Device], call: Call) -> Request:
    """Check an all_gather; raises as :func:`vkpar.comm.requests.calls.check` does."""
    given = check_list(devices, call.arrays, "arrays")
    dtype, counts = _common(call.name, given)
    targets = check_out(devices, call.out, [sum(counts)] * len(devices), dtype)
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    sends = []
    for rank, source in enumerate(given):
        if source is not None and source.size:
            places = {other: target.cut(starts[rank], source.size) for other, target in enumerate(targets)}
            sends.append(Send(rank, source, places))
    return _moved(devices, call, dtype, sum(counts), sends)


def broadcast(devices: Sequence[Device], call: Call) -> Request:
    """Check a broadcast; raises as :func:`vkpar.comm.requests.calls.check` does."""
    given, out = check_list(devices, call.arrays, "arrays"), call.out
    root = check_rank(devices, call.root)
    source = given[root]
    if source is None:
        raise InvalidUsageError(f"broadcast needs an array on every rank, or on rank {root}, its root, alone with out=")
    if out is None and None in given:
        raise InvalidUsageError("broadcast needs an array on every rank: it writes into them, or into out=")
    check_alike(source.size, source.dtype, array=given if out is None else contributions(given, source.size))
    counts = [source.size] * len(devices)
    targets: Given = given if out is None else check_out(devices, out, counts, source.dtype)
    places = {rank: target for rank, target in enumerate(targets) if target is not None}
    return _moved(devices, call, source.dtype, source.size, [Send(root, source, places)])


def scatter(devices: Sequence[Device], call: Call) -> Request:
    """Check a scatter; raises as :func:`vkpar.comm.requests.calls.check` does."""
    (array,), root = call.arrays, check_rank(devices, call.root)
    source = check_array(devices, root, array, "array")
    counts = parts_of(source.size, len(devices), call.counts)
    targets = check_out(devices, call.out, counts, source.dtype)
    parts = cut(source, counts, slots_of(counts))
    sends = [Send(root, part.elements, {rank: targets[rank]}) for rank, part in enumerate(parts)]
    return _moved(devices, call, source.dtype, source.size, sends)


def gather(devices: Sequence[Device], call: Call) -> Request:
    """Check a gather; raises as :func:`vkpar.comm.requests.calls.check` does."""
    given = check_list(devices, call.arrays, "arrays")
    root, (out,) = check_rank(devices, call.root), call.out
    dtype, counts = _common(call.name, given)
    if out is None:
        raise InvalidUsageError(f"out is needed: an array of {sum(counts)} elements on rank {root}, the root")
    whole = check_array(devices, root, out, "out")
    if (whole.size, whole.dtype) != (sum(counts), dtype):
        raise InvalidUsageError(f"out is {whole.size} {whole.dtype}; this needs {sum(counts)} {dtype}")
    places = cut(whole, counts, slots_of(counts))
    sends = [
        Send(rank, source, {root: place.elements})
        for rank, (source, place) in enumerate(zip(given, places, strict=True))
        if source is not None and source.size
    ]
    return _moved(devices, call, dtype, whole.size, sends)


def all_to_all(devices: Sequence[Device], call: Call) -> Request:
    """Check an all_to_all; raises as :func:`vkpar.comm.requests.calls.check` does."""
    counts, nranks = call.counts, len(devices)
    given = check_list(devices, call.arrays, "arrays")
    dtype, sizes = _common(call.name, given)
    if counts is None:
        if None in given:
            raise InvalidUsageError("all_to_all needs an array on every rank, or counts=")
        check_alike(sizes[0], dtype, array=given)
        counts = [split(sizes[0], nranks)] * nranks
    for rank, (size, row) in enumerate(zip(sizes, counts, strict=True)):
        if size != sum(row):
            raise InvalidUsageError(f"rank {rank}'s array has {size} elements; its counts add up to {sum(row)}")
    received = [[row[rank] for row in counts] for rank in range(nranks)]
    targets = check_out(devices, call.out, [sum(column) for column in received], dtype)
    places = [cut(target, column, slots_of(column)) for target, column in zip(targets, received, strict=True)]
    sends = [
        Send(rank, part.elements, {other: places[other][rank].elements})
        for rank, (source, row) in enumerate(zip(given, counts, strict=True))
        if source is not None
        for other, part in enumerate(cut(source, row, slots_of(row)))
    ]
    swaps = any(source is not None and source.overlaps(target) for source, target in zip(given, targets, strict=True))
    return _moved(devices, call, dtype, max(sizes), sends, swaps=swaps)


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
    for index, pair in enumerate(zip(call.arrays, call.out, strict=True)):
        rank, source = check_anywhere(devices, pair[0], f"the source of pair {index}")
        other, target = check_anywhere(devices, pair[1], f"the target of pair {index}")
        if (source.size, source.dtype) != (target.size, target.dtype):
            raise InvalidUsageError(
                f"pair {index}: {source.size} {source.dtype} to {target.size} {target.dtype}; they must agree"
            )
        sends.append(Send(rank, source, {other: target}))
    dtype = sends[0].source.dtype if sends else None
    return _moved(devices, call, dtype, sum(send.source.size for send in sends), sends)


def _moved(
    devices: Sequence[Device],
    call: Call,
    dtype: DType | None,
    count: int,
    sends: Sequence[Send],
    *,
    swaps: bool = False,
) -> Request:
    """Return the movement once its destinations are checked."""
    request = Movement(call.name, dtype, count, tuple(sends), call.root, swaps)
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


def _common(name: str, given: Given) -> tuple[DType, list[int]]:
    """Return the dtype of what is given and its counts; None has the count 0."""
    first = next((each for each in given if each is not None), None)
    if first is None:
        raise InvalidUsageError(f"{name} needs at least one array")
    for rank, each in enumerate(given):
        if each is not None and each.dtype != first.dtype:
            raise InvalidUsageError(f"rank {rank}'s array is {each.dtype}, another {first.dtype}: dtypes must agree")
    return first.dtype, [0 if each is None else each.size for each in given]
