"""Which way a reduction takes: the algorithm, the segments, the shares; a pure function of the tuning and the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from vkpar import env, text
from vkpar.comm import wires
from vkpar.comm.plan import shares as weights
from vkpar.comm.plan.shares import ROLES, Costs
from vkpar.comm.schedule.algorithms.table import TABLE, Algorithm
from vkpar.comm.schedule.steps import MOST_SOURCES
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan.physical import DeviceInfo

AUTO = "auto"
BUILT_IN, MEASURED = "built in", "measured"
env.register("algorithm", (AUTO, *TABLE))

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
        wire: the wire that it was measured with.
    """

    up_to: int | None
    algorithm: str
    segment_nbytes: int = 0
    copies: bool = False
    equal: bool = False
    wire: str = wires.CODED


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
        wire: the wire of the messages.
    """

    wire_nbytes: int
    algorithm: str
    segment_nbytes: int
    seconds: float
    copies: bool = False
    equal: bool = False
    chosen: bool = False
    wire: str = wires.CODED


@dataclass(frozen=True)
class Tuning:
    """What was found out about a rig, or is taken for granted.

    Attributes:
        choices: by wire and rising size; beyond a wire's last one the built-in choices hold. What was not measured
            with the f32 wire takes the choices, and the costs, of the f16 wire.
        costs: what the roles of an exchange cost, by wire and rank; empty where ranks count as equally fast.
        spin_us: microseconds that a wait spins before it blocks; None for the rig's own rule.
        origin: ``"built in"`` or ``"measured"``.
        trials: what was timed, for people to read.
    """

    choices: tuple[Choice, ...] = ()
    costs: tuple[Costs, ...] = ()
    spin_us: int | None = None
    origin: str = BUILT_IN
    trials: tuple[Trial, ...] = ()

    @property
    def copies(self) -> bool:
        """True where some messages go through copies of the slots."""
        return any(choice.copies for choice in self.choices)

    @property
    def speeds(self) -> tuple[float, ...]:
        """Bytes per second that each rank publishes and gathers again with the f16 wire; empty if not measured."""
        return tuple(1 / each.seconds(("publish", "gather")) for each in self.costs_of(wires.CODED))

    def costs_of(self, wire: str) -> tuple[Costs, ...]:
        """Return the ranks' costs with a wire that is measured, see :func:`vkpar.comm.wires.timed_as`."""
        return _of(self.costs, wire)

    def choice(self, wire_nbytes: int, wire: str = wires.CODED) -> Choice | None:
        """Return what a message of that size takes; None where the built-in choice does."""
        choices = _of(self.choices, wire)
        return next((item for item in choices if item.up_to is None or wire_nbytes <= item.up_to), None)

    def __str__(self) -> str:
        """Return a table for each measured wire, of times by size and algorithm, and one of what each role costs."""
        if not self.trials and not self.costs:
            return "built-in thresholds: nothing was measured on this rig"
        tables = [trial_table(wire, rows) for wire, rows in self.by_wire().items()]
        tables += [cost_table(self.costs)] if self.costs else []
        lines = [line for rows in tables for line in (*text.columns(rows), "")]
        notes = ["times in microseconds, each algorithm's best; *: taken at that size"] if self.trials else []
        return "\n".join([f"{self.origin} on this rig", "", *lines, *notes]).rstrip()

    def by_wire(self) -> dict[str, list[Trial]]:
        """Return the trials of each wire that was measured."""
        found = {wire: [trial for trial in self.trials if trial.wire == wire] for wire in wires.TIMED}
        return {wire: trials for wire, trials in found.items() if trials}


Measured = TypeVar("Measured", Choice, Costs)


def _of(items: tuple[Measured, ...], wire: str) -> tuple[Measured, ...]:
    """Return the items of ``wire``; where there are none, those of the f16 wire."""
    return tuple(item for item in items if item.wire == wire) or tuple(
        item for item in items if item.wire == wires.CODED
    )


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


def choose(
    name: str,
    ranks: Sequence[DeviceInfo],
    wire_nbytes: int,
    tuning: Tuning | None = None,
    wire: str = wires.CODED,
) -> Plan:
    """Return how a message of ``wire_nbytes`` on the wire goes.

    Args:
        name: an algorithm, or ``"auto"``.
        ranks: the devices.
        wire_nbytes: bytes of the whole array as it travels.
        tuning: of the rig; the built-in thresholds by default.
        wire: the measured wire whose choices and costs apply, see :func:`vkpar.comm.wires.timed_as`.

    Raises:
        InvalidUsageError: ``direct`` where the ranks' sums may differ.
        UnsupportedError: more ranks than the named algorithm can sum.
    """
    tuning = tuning or Tuning()
    choice = tuning.choice(wire_nbytes, wire) or Choice(None, _by_size(ranks, wire_nbytes))
    if name != AUTO:
        require(name, ranks)
        choice = choice if choice.algorithm == name else Choice(None, name)
    plan = Plan(TABLE[choice.algorithm], choice.segment_nbytes, copies=choice.copies)
    return plan if choice.equal else weighted(plan, tuning.costs_of(wire))


def _by_size(ranks: Sequence[DeviceInfo], wire_nbytes: int) -> str:
    n = len(ranks)
    if n > MOST_SOURCES:
        return "ring"
    return "direct" if wire_nbytes * max(1, n - 1) <= _DIRECT_BYTES and uniform(ranks) else "two_shot"


def weighted(plan: Plan, costs: tuple[Costs, ...]) -> Plan:
    """Return the plan with shares, and in a ring an order, where ranks are not equally fast and that gains.

    Args:
        plan: with equal chunks.
        costs: the ranks' with the wire.
    """
    if plan.algorithm.name == "two_shot":
        return replace(plan, shares=weights.two_shot(costs))
    if plan.algorithm.name == "ring" and (found := weights.ring(costs)):
        return replace(plan, order=found[0], shares=found[1])
    return plan


def segment_nbytes(plan: Plan, nranks: int, wire_nbytes: int) -> int:
    """Return the bytes of a segment on the wire, slots aside, for a message of ``wire_nbytes``."""
    if plan.segment_nbytes:
        return plan.segment_nbytes
    chunk = wire_nbytes if plan.algorithm.every_rank_sums else wire_nbytes // nranks
    return max(_LEAST_SEGMENT, math.isqrt(chunk * _GAP_BYTES))


# ---- tables for people ----

_COPIES = "copies"  # two_shot around copies of the slots
EQUAL_MARK = "="  # chunks, although ranks differ
_WAYS = [way for name in TABLE for way in (name, f"{name}{EQUAL_MARK}")]


def trial_table(wire: str, trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """Return titles, then a row per size on the wire: each algorithm's best time, the chosen one marked."""
    names = [name for name in [*_WAYS, _COPIES] if any(_way(trial) == name for trial in trials)]
    narrow = any(trial.equal for trial in trials)  # the columns would not fit
    rows = [(wire, *names, "segment", *(() if narrow else ("float32", "vs naive")))]
    for wire_nbytes in dict.fromkeys(trial.wire_nbytes for trial in trials):
        here = [trial for trial in trials if trial.wire_nbytes == wire_nbytes]
        best = {name: min((t.seconds for t in here if _way(t) == name), default=None) for name in names}
        chosen = next(trial for trial in here if trial.chosen)
        times = [_time(best[name], marked=name == _way(chosen)) for name in names]
        naive = best.get("naive")
        gain = "-" if naive is None else f"{naive / chosen.seconds:.1f}x"
        segment = text.units(chosen.segment_nbytes) if chosen.segment_nbytes else "by size"
        more = () if narrow else (text.units(4 * wire_nbytes // wires.TIMED_NBYTES[wire]), gain)
        rows.append((text.units(wire_nbytes), *times, segment, *more))
    return rows


def _way(trial: Trial) -> str:
    if trial.copies:
        return _COPIES
    return f"{trial.algorithm}{EQUAL_MARK}" if trial.equal else trial.algorithm


def _time(seconds: float | None, *, marked: bool) -> str:
    return "-" if seconds is None else f"{'* ' if marked else ''}{1e6 * seconds:.0f}"


def cost_table(costs: Sequence[Costs]) -> list[tuple[str, ...]]:
    """Return titles, then a row per wire and rank: at how many GB/s it does what."""
    rows = [("GB/s", "rank", *ROLES)]
    for wire in wires.TIMED:
        for rank, each in enumerate(cost for cost in costs if cost.wire == wire):
            rows.append((wire, str(rank), *(f"{1e-9 / getattr(each, role):.3g}" for role in ROLES)))
    return rows
