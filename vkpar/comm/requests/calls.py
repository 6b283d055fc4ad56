"""Which check a call gets: one pass, from its arguments to a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkpar.arrays.array import Array
from vkpar.arrays.views import overlaps
from vkpar.comm.requests import collectives, movements
from vkpar.comm.requests.collectives import Request
from vkpar.comm.requests.keys import Call
from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.pump.ledger import READS, REPLACES

_CHECKS: dict[str, Callable[[Sequence[Device], Call], Request]] = {
    collectives.ALL_REDUCE: collectives.all_reduce,
    collectives.REDUCE: collectives.reduce,
    collectives.REDUCE_SCATTER: collectives.reduce_scatter,
    collectives.BARRIER: collectives.barrier,
    movements.ALL_GATHER: movements.all_gather,
    movements.BROADCAST: movements.broadcast,
    movements.SCATTER: movements.scatter,
    movements.GATHER: movements.gather,
    movements.ALL_TO_ALL: movements.all_to_all,
    movements.SEND_RECV: movements.send_recv,
}


def check(devices: Sequence[Device], call: Call) -> Request:
    """Return the request that ``call`` makes of ``devices``.

    Raises:
        InvalidUsageError: an argument is wrong; the message says which one, and how.
        UnsupportedError: the ranks' devices, or collectives at all, do not reduce the arrays' dtype.
    """
    return _CHECKS[call.name](devices, call)


def is_strided(call: Call) -> bool:
    """Say whether some array of a call, which was not checked, is a view whose elements do not lie side by side."""
    try:
        return any(getattr(array, "steps", None) is not None for array in (*call.arrays, *(call.out or ())))
    except TypeError:  # no arrays at all
        return False


def check_results(call: Call) -> None:
    """Refuse a call with such views that cannot be written; None stands for arrays of other processes.

    Raises:
        InvalidUsageError: a destination was made by broadcasting, or two of them overlap.
    """
    results = [array for array in results_of(call) if array is not None]
    for number, array in enumerate(results):
        array.check_writable(f"{call.name}: a destination")
        if any(overlaps(array, other) for other in results[:number] if array.size and other.size):
            raise InvalidUsageError(f"{call.name}: two destinations overlap")


def given_to(call: Call) -> list[Array]:
    """Return the arrays that a checked call reads."""
    arrays = (call.arrays[call.root],) if call.name == movements.BROADCAST else call.arrays
    return [array for array in arrays if array is not None]


def results_of(call: Call) -> list[Array]:
    """Return the arrays that a checked call writes."""
    name, out = call.name, call.out
    if name == movements.BROADCAST and out is None:
        return [array for rank, array in enumerate(call.arrays) if rank != call.root]
    if name == collectives.REDUCE and out[0] is None:
        return [call.arrays[call.root]]
    if name == collectives.ALL_REDUCE:
        given = call.arrays
        return [given[rank] if out is None or out[rank] is None else out[rank] for rank in range(len(given))]
    return [array for array in out or () if array is not None]


def touches_of(call: Call) -> list[tuple[int, ...]]:
    """Return what a checked call does to memory, as the ledger of failures takes it."""
    given, results = given_to(call), results_of(call)
    read = {id(array): array.touches(READS) for array in given if array.size}
    touches = [touch for array in given if array.size for touch in read[id(array)]]
    for array in results:
        if id(array) in read and array.steps is None:  # in place: the same bytes
            touches += [(*touch[:-1], REPLACES) for touch in read[id(array)]]
        elif array.size:
            touches += array.touches(REPLACES)
    return touches
