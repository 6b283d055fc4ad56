"""Which devices the demo runs on, how they are linked, and whether their AllReduce sums."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

import vkpar
from vkpar import env
from vkpar.demo.bounds import all_reduce_bound, relative, wire_of
from vkpar.vulkan.selector import without_duplicates

if TYPE_CHECKING:
    from vkpar import Communicator, Device, DeviceInfo

# A small message, and one that no block, chunk or group size divides.
COUNTS: Final = (2_048, 1_000_003)


@dataclass(frozen=True)
class RankInfo:
    """One rank's device; ``memory_bytes`` is its largest local heap."""

    rank: int
    name: str
    vendor: str
    driver: str
    type: str
    memory_bytes: int
    transport: str


@dataclass(frozen=True)
class LinkGroup:
    """Ordered pairs of ranks that are linked in the same way for the same reason."""

    kind: str
    pairs: list[tuple[int, int]]
    reason: str


@dataclass(frozen=True)
class AllReduceCheck:
    """What one all_reduce of ``count`` float32 gave; ``error`` and ``bound`` are relative, in the Frobenius norm."""

    count: int
    wrong: int
    error: float
    bound: float
    differing: int
    microseconds: float

    @property
    def ok(self) -> bool:
        """True where the integers are exact, the error is within its bound and all ranks hold the same bits."""
        return self.wrong == 0 and self.differing == 0 and self.error <= self.bound


def choose(selector: str | None) -> str | None:
    """Return the selector of the rig to open, None for what ``open_devices`` takes by itself.

    Without a selector and without ``VKPAR_DEVICES``: every GPU where there are two or more, else every device there
    is, CPU drivers too, else two virtual ranks of the only one.
    """
    if selector is not None or env.get().devices:
        return selector
    devices = without_duplicates(vkpar.enumerate_devices())
    if sum(not device.is_cpu for device in devices) > 1:
        return "gpu"
    return "all" if len(devices) > 1 else "all*2"


def describe_rank(rank: int, device: DeviceInfo, transport: str) -> RankInfo:
    """Return what the device table says of one rank."""
    driver = f"{device.driver_name} {device.driver_info}".strip()
    return RankInfo(rank, device.name, device.vendor, driver, device.type, device.memory_bytes, transport)


def describe_links(communicator: Communicator) -> list[LinkGroup]:
    """Return the communicator's links, grouped by kind and reason."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for link in communicator.links():
        groups.setdefault((link.kind, link.reason), []).append((link.src, link.dst))
    return [LinkGroup(kind, pairs, reason) for (kind, reason), pairs in groups.items()]


def explain(devices: Sequence[Device]) -> str:
    """Return a sentence on how many real devices stand behind the ranks."""
    ranks = len(devices)
    real = without_duplicates([device.info for device in devices])
    vendors = sorted({info.vendor for info in real})
    if ranks == 1:
        return "One rank: nothing is summed across devices (--devices opens more, such as --devices 'all*2')."
    if len(real) == 1:
        return f"One physical device: its {ranks} ranks are virtual, so links and times are those of one device."
    text = f"{ranks} ranks on {len(real)} physical devices of {len(vendors)} vendor(s): {', '.join(vendors)}."
    return text if ranks == len(real) else f"{text} Ranks on the same device are virtual."


def check_all_reduce(
    devices: Sequence[Device], communicator: Communicator, wire: str, count: int, repeats: int
) -> AllReduceCheck:
    """Sum exact integers, then random numbers, over the rig; time the second sum.

    Args:
        devices: the rig, in rank order.
        communicator: over those devices, with ``wire``.
        wire: how float32 crosses a link.
        count: elements a rank.
        repeats: timed calls.
    """
    nranks = len(devices)
    largest = min(1000, wire_of(wire).exact // nranks)
    generator = np.random.default_rng(count)
    integers = [generator.integers(-largest, largest + 1, count).astype(np.float32) for _ in devices]
    sources = [device.array(data) for device, data in zip(devices, integers, strict=True)]
    results = [device.empty((count,), np.float32) for device in devices]
    communicator.all_reduce(sources, out=results).wait()
    exact = np.sum(integers, axis=0, dtype=np.float64)
    wrong = sum(int(np.count_nonzero(result.numpy() != exact)) for result in results)

    randoms = [generator.standard_normal(count, np.float32) for _ in devices]
    for source, data in zip(sources, randoms, strict=True):
        source.write(data)
    communicator.all_reduce(sources, out=results).wait()
    sums = [result.numpy() for result in results]
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        communicator.all_reduce(sources, out=results).wait()
        times.append(time.perf_counter() - start)

    contributions = [data.astype(np.float64) for data in randoms]
    expected = np.sum(contributions, axis=0)
    differing = np.any([other.view(np.uint32) != sums[0].view(np.uint32) for other in sums], axis=0)
    return AllReduceCheck(
        count=count,
        wrong=wrong,
        error=max(relative(result - expected, expected) for result in sums),
        bound=relative(all_reduce_bound(contributions, wire), expected),
        differing=int(np.count_nonzero(differing)),
        microseconds=1e6 * median(times),
    )
