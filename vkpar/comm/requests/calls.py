"""Which check a call gets: one pass, from its arguments to a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkpar.arrays.array import Array
from vkpar.comm.requests import collectives, movements
from vkpar.comm.requests.collectives import Request
from vkpar.comm.requests.keys import Call
from vkpar.device import Device

_CHECKS: dict[str, Callable[[Sequence[Device], Call], Request]] = {
    collectives.ALL_REDUCE: lambda devices, call: collectives.all_reduce(
        devices, call.arrays, call.op, call.out, call.wire
    ),
    collectives.REDUCE: lambda devices, call: collectives.reduce(
        devices, call.arrays, call.root, call.op, _only(call.out), call.wire
    ),
    collectives.REDUCE_SCATTER: lambda devices, call: collectives.reduce_scatter(
        devices, call.arrays, call.op, call.out, call.wire, call.counts
    ),
    collectives.BARRIER: lambda _devices, _call: collectives.barrier(),
    movements.ALL_GATHER: lambda devices, call: movements.all_gather(devices, call.arrays, call.out),
    movements.BROADCAST: lambda devices, call: movements.broadcast(devices, call.arrays, call.root, call.out),
    movements.SCATTER: lambda devices, call: movements.scatter(
        devices, call.arrays[0], call.root, call.out, call.counts
    ),
    movements.GATHER: lambda devices, call: movements.gather(devices, call.arrays, call.root, _only(call.out)),
    movements.ALL_TO_ALL: lambda devices, call: movements.all_to_all(devices, call.arrays, call.out, call.counts),
    movements.SEND_RECV: lambda devices, call: movements.send_recv(
        devices, list(zip(call.arrays, call.out, strict=True))
    ),
}


def check(devices: Sequence[Device], call: Call) -> Request:
    """Return the request that ``call`` makes of ``devices``.

    Raises:
        InvalidUsageError, UnsupportedError: the call is wrong; the message says how.
    """
    return _CHECKS[call.name](devices, call)


def _only(out: Sequence[Array | None]) -> Array | None:
    return out[0]
