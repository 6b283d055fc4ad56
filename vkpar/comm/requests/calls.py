"""Which check a call gets: one pass, from its arguments to a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkpar.comm.requests import collectives, movements
from vkpar.comm.requests.collectives import Request
from vkpar.comm.requests.keys import Call
from vkpar.device import Device

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
