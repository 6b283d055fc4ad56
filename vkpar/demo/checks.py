"""Whether a rig's AllReduce sums: exact integers, then random numbers against their error bound."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from vkpar.testing import all_reduce_bound, relative, wire_of

if TYPE_CHECKING:
    from vkpar import Communicator, Device

# A small message, and one that no block, chunk or group size divides.
COUNTS: Final = (2_048, 1_000_003)


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


def check_all_reduce(
    devices: Sequence[Device], communicator: Communicator, wire: str, count: int, repeats: int
) -> AllReduceCheck:
    """Sum exact integers, then random numbers, over the rig; time the second sum."""
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
