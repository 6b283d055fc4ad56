"""Which way a reduction takes: the algorithm, the segments, the shares; a pure function of the tuning and the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vkpar.comm import weights
from vkpar.comm.algorithms import TABLE, Algorithm
from vkpar.comm.schedule import MOST_SOURCES
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan.physical import DeviceInfo

AUTO = "auto"
BUILT_IN, MEASURED = "built in", "measured"

# Measured on two H200s, see docs/performance.md: one hop beats two until its n - 1 times as many bytes take longer.
_DIRECT_BYTES = 1280 << 10
# A segment should take about as long as the gaps between batches that it costs: its bytes are the mean of these, what
# a link carries in such a gap, and the rank's chunk.
_GAP_BYTES = 1280 << 10
_LEAST_SEGMENT = 512 << 10


@dataclass(frozen=True)
class Choice:
    """What messages up to a size take.

    Attributes:
        up_to: the largest bytes on the wire; None for all.
        algorithm: its name.
        segment_nbytes: bytes of a segment on the wire, at most a slot's; 0 to go by the size.
        copies: the kernels work on copies of the slots.
        equal: chunks are equal although links differ.
    """

    up_to: int | None
    algorithm: str
    segment_nbytes: int = 0
    copies: bool = False
    equal: bool = False


@dataclass(frozen=True)
class Trial:
    """One candidate at one size.

    Attributes:
        wire_nbytes: the array's bytes on the wire.
        segment_nbytes: bytes of a segment; 0 where they go by the size.
        seconds: of one call among several that are queued.
        copies: whether the kernels worked on copies of the slots.
        equal: whether chunks were equal although links differ.
        chosen: whether the tuning takes it.
    """

    wire_nbytes: int
    algorithm: str
    segment_nbytes: int
    seconds: float
    copies: bool = False
    equal: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class Tuning:
    """What was found out about a rig, or is taken for granted.

    Attributes:
        choices: by rising size; beyond the last one the built-in choices hold.
        speeds: bytes per second that each rank's link carries each way; empty where they count as equal.
        spin_us: microseconds that a wait spins before it blocks; None for the rig's own rule.
        origin: ``"built in"`` or ``"measured"``.
        trials: what was timed, for people to read.
    """

    choices: tuple[Choice, ...] = ()
    speeds: tuple[float, ...] = ()
    spin_us: int | None = None
    origin: str = BUILT_IN
    trials: tuple[Trial, ...] = ()

    @property
    def copies(self) -> bool:
        """True where some messages go through copies of the slots."""
        return any(choice.copies for choice in self.choices)

    def choice(self, wire_nbytes: int) -> Choice | None:
        """Return what a message of that size takes; None where the built-in choice does."""
        return next((item for item in self.choices if item.up_to is None or wire_nbytes <= item.up_to), None)


@dataclass(frozen=True)
class Plan:
    """How one reduction goes.

    Attributes:
        segment_nbytes: bytes of a segment on the wire, at most a slot's; 0 to go by the size.
        order: the ranks in ring order; None for their own.
        shares: of the array, what each rank owns; None for equal chunks.
        copies: the kernels work on copies of the slots, where the rig has them.
    """

    algorithm: Algorithm
    segment_nbytes: int = 0
    order: tuple[int, ...] | None = None
    shares: tuple[float, ...] | None = None
    copies: bool = False


def check(name: str) -> str:
    """Return ``name`` if it is an algorithm or ``"auto"``.

    Raises:
        InvalidUsageError
    """
    if not isinstance(name, str) or (name != AUTO and name not in TABLE):
        raise InvalidUsageError(f"unknown algorithm {name!r}; there are auto, {', '.join(TABLE)}")
    return name


def uniform(ranks: Sequence[DeviceInfo]) -> bool:
    """Say whether all ranks run the same driver build on the same device model, so that their sums agree bitwise."""
    marks = {(info.driver_uuid, info.driver_version, info.vendor_id, info.device_id, info.name) for info in ranks}
    return len(marks) == 1


def require(name: str, ranks: Sequence[DeviceInfo]) -> None:
    """Refuse an algorithm that cannot run on the rig.

    Raises:
        InvalidUsageError: an unknown one, or ``direct`` where the ranks' sums may differ.
        UnsupportedError: more ranks than it can sum.
    """
    if len(ranks) > MOST_SOURCES and check(name) != "ring":
        raise UnsupportedError(f"{name} sums at most {MOST_SOURCES} ranks; there are {len(ranks)}")
    if TABLE[check(name)].every_rank_sums and not uniform(ranks):
        raise InvalidUsageError(
            f"{name} needs the same driver and device model on every rank, or replicas could differ; "
            "take auto, two_shot or ring"
        )


def choose(name: str, ranks: Sequence[DeviceInfo], wire_nbytes: int, tuning: Tuning | None = None) -> Plan:
    """Return how a message of ``wire_nbytes`` on the wire goes.

    Args:
        name: an algorithm, or ``"auto"``.
        ranks: the devices.
        wire_nbytes: bytes of the whole array as it travels.
        tuning: of the rig; the built-in thresholds by default.

    Raises:
        InvalidUsageError: ``direct`` where the ranks' sums may differ.
        UnsupportedError: more ranks than the named algorithm can sum.
    """
    tuning = tuning or Tuning()
    choice = tuning.choice(wire_nbytes) or Choice(None, _by_size(ranks, wire_nbytes))
    if name != AUTO:
        require(name, ranks)
        choice = choice if choice.algorithm == name else Choice(None, name)
    plan = Plan(TABLE[choice.algorithm], choice.segment_nbytes, copies=choice.copies)
    return plan if choice.equal else weighted(plan, tuning.speeds)


def _by_size(ranks: Sequence[DeviceInfo], wire_nbytes: int) -> str:
    n = len(ranks)
    if n > MOST_SOURCES:
        return "ring"
    return "direct" if wire_nbytes * max(1, n - 1) <= _DIRECT_BYTES and uniform(ranks) else "two_shot"


def weighted(plan: Plan, speeds: Sequence[float]) -> Plan:
    """Return the plan with shares, and in a ring an order, for links that are not equally fast."""
    if not weights.differ(speeds):
        return plan
    if plan.algorithm.name == "two_shot" and len(speeds) > 2:  # of two ranks, each reads one chunk whatever its size
        return replace(plan, shares=weights.two_shot(speeds))
    if plan.algorithm.name != "ring":
        return plan
    return replace(plan, order=weights.order(speeds), shares=weights.ring(speeds))


def segment_nbytes(plan: Plan, nranks: int, wire_nbytes: int) -> int:
    """Return the bytes of a segment on the wire, slots aside, for a message of ``wire_nbytes``."""
    if plan.segment_nbytes:
        return plan.segment_nbytes
    chunk = wire_nbytes if plan.algorithm.every_rank_sums else wire_nbytes // nranks
    return max(_LEAST_SEGMENT, math.isqrt(chunk * _GAP_BYTES))
