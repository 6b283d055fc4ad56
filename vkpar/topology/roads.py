"""The roads between the ranks of a rig: of which kind each pair's is, how long a word takes, how much goes over it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import vkpar
from vkpar import Communicator, Device, env
from vkpar.comm.rig.transports import mapped
from vkpar.topology.hosts import least

SIZE: Final = 64 << 20  # bytes of what goes over a road
SIZE_CPU: Final = 4 << 20
_HOPS: Final = 40
_CALLS: Final = 4


@dataclass(frozen=True)
class Road:
    """How one rank's data reaches another rank.

    Attributes:
        kind: ``native`` or ``bridged`` by the link, ``mapped`` where the host copies; ``reason`` says why.
        latency_us: of a word, from the end of the work before it to the begin of the work after it.
        gbps: GB/s of 10^9 bytes; ``both_gbps`` the same while as much goes the other way.
    """

    src: int
    dst: int
    kind: str
    reason: str
    latency_us: float
    gbps: float
    both_gbps: float


def measured(devices: Sequence[Device]) -> Iterator[Road]:
    """Measure each pair of ranks by itself, and yield both its roads; nothing else should run on the devices.

    Raises:
        VkparError: what opening a communicator of two ranks raises.
    """
    for first, second in itertools.combinations(range(len(devices)), 2):
        with env.override(tuning="off"), Communicator([devices[first], devices[second]]) as comm:
            yield from _pair(comm, (first, second))


def _pair(comm: Communicator, ranks: tuple[int, int]) -> Iterator[Road]:
    size = SIZE_CPU if any(device.info.is_cpu for device in comm.devices) else SIZE
    arrays = [[device.empty(size // 4) for device in comm.devices] for _ in range(2)]
    copied = mapped.NAME in comm.transports()
    latency = _latency(comm)
    both = _rate(comm, [(arrays[0][0], arrays[1][1]), (arrays[0][1], arrays[1][0])])
    for link in comm.links():
        kind = mapped.NAME if copied else link.kind
        rate = _rate(comm, [(arrays[0][link.src], arrays[1][link.dst])])
        yield Road(ranks[link.src], ranks[link.dst], kind, link.reason, latency, rate, both)


def _latency(comm: Communicator) -> float:
    """Return the microseconds of a hop, to and fro in turns."""
    first, second = (device.zeros(1) for device in comm.devices)

    def hops() -> vkpar.Work:
        for _ in range(_HOPS // 2):
            comm.send_recv([(first, second)])
            work = comm.send_recv([(second, first)])
        return work

    return 1e6 * least(comm.devices, lambda: hops().wait()) / _HOPS


def _rate(comm: Communicator, pairs: Sequence[tuple[vkpar.Array, vkpar.Array]]) -> float:
    def calls() -> vkpar.Work:
        for _ in range(_CALLS):
            work = comm.send_recv(pairs)
        return work

    return _CALLS * pairs[0][0].nbytes / least(comm.devices, lambda: calls().wait()) / 1e9
