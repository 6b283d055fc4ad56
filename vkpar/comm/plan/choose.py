"""The plan of a reduction: its algorithm, segments and shares, a pure function of the tuning and the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from vkpar import env, text
from vkpar.comm import wires
from vkpar.comm.plan.shares import ROLES, Costs, unequal
from vkpar.comm.schedule.algorithms.table import BASELINE, TABLE, Algorithm
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.machine.physical import DeviceInfo

AUTO = "auto"
BUILT_IN, MEASURED = "built in", "measured"
env.register("algorithm", (AUTO, *TABLE))

# Where ranks are processors, whose kernels take longer than a further hop, an array counts for so many times its bytes.
_CPU_WEIGHT = 4
# A segment should take about as long as the gaps between batches that it costs. Its bytes are the geometric mean of
# the bytes that a link carries in such a gap and the bytes of the rank's chunk.
_GAP_BYTES = 1280 << 10
LEAST_SEGMENT = 512 << 10
_OVER_A_NETWORK = 16  # times less is carried in such a gap where ranks live on several hosts


@dataclass(frozen=True)
class Choice:
    """How messages up to a size go.

    Attributes:
        up_to: the most bytes on the wire of such a message; None for messages of any size.
        algorithm: the algorithm's name.
        segment_nbytes: bytes of a segment on the wire, at most a slot's; 0 where they follow from the size.
        copies: whether the kernels work on copies of the slots.
        equal: whether chunks are equal although ranks differ.
        wire: the wire of the measured messages.
    """

    up_to: int | None
    algorithm: str
    segment_nbytes: int = 0
    copies: bool = False
    equal: bool = False
    wire: str = wires.CODED


@dataclass(frozen=True)
class Trial:
    """One candidate, timed at one size.

    Attributes:
        wire_nbytes: the array's bytes on the wire.
        segment_nbytes: bytes of a segment; 0 where they follow from the size.
        seconds: the time of one call among several that are queued.
        copies: whether the kernels worked on copies of the slots.
        equal: whether chunks were equal although ranks differ.
        chosen: whether the tuning chooses the candidate at this size.
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
    """The choices of a rig, measured or built in.

    Attributes:
        choices: by wire and rising size; for sizes beyond a wire's last choice the built-in choices hold. Where the
            f32 wire was not measured, the choices and the costs of the f16 wire hold for it too.
        costs: the costs of both roles of a rank, by wire and rank; empty where ranks count as equally fast.
        spin_us: microseconds that a wait spins before it blocks; None for the rig's own rule.
        origin: ``"built in"`` or ``"measured"``.
        trials: the timed candidates, for people to read.
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
        """Bytes per second that each rank sends while it receives as many, on the f16 wire; empty if not measured."""
        return tuple(1 / each.exchange for each in self.costs_of(wires.CODED))

    def costs_of(self, wire: str) -> tuple[Costs, ...]:
        """Return the ranks' costs with a wire that is measured, see :func:`vkpar.comm.wires.timed_as`."""
        return _of(self.costs, wire)

    def choice(self, wire_nbytes: int, wire: str = wires.CODED) -> Choice | None:
        """Return the choice for a message of that size; None where the built-in choice holds."""
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
    """Return the items of ``wire``; where there are none, the items of the f16 wire."""
    return tuple(item for item in items if item.wire == wire) or tuple(
        item for item in items if item.wire == wires.CODED
    )


@dataclass(frozen=True)
class Plan:
    """How one reduction goes.

    Attributes:
        segment_nbytes: bytes of a segment on the wire, at most a slot's; 0 where they follow from the size.
        shares: the share of the array that each rank owns; None for equal chunks.
        copies: whether the kernels work on copies of the slots, where the rig has copies.
    """

    algorithm: Algorithm
    segment_nbytes: int = 0
    shares: tuple[float, ...] | None = None
    copies: bool = False


def check(name: str) -> str:
    """Return ``name`` if it is an algorithm or ``"auto"``.

    Raises:
        InvalidUsageError: there is no algorithm of that name.
    """
    if not isinstance(name, str) or (name != AUTO and name not in TABLE):
        raise InvalidUsageError(f"unknown algorithm {name!r}; there are auto, {', '.join(TABLE)}")
    return name


def uniform(ranks: Sequence[DeviceInfo]) -> bool:
    """Say whether all ranks run the same driver build on the same device model, so that their sums agree bitwise."""
    marks = {(info.driver_uuid, info.driver_version, info.vendor_id, info.device_id, info.name) for info in ranks}
    return len(marks) == 1


def agrees(algorithm: Algorithm, ranks: Sequence[DeviceInfo]) -> bool:
    """Say whether all ranks get the same bits from the algorithm."""
    return not algorithm.every_rank_sums or uniform(ranks)


def require(name: str, ranks: Sequence[DeviceInfo]) -> Algorithm:
    """Return the algorithm of that name if it can run on the rig.

    Raises:
        InvalidUsageError: no algorithm has that name, or its sums may differ from rank to rank (``direct``).
        UnsupportedError: there are more ranks than the algorithm can sum.
    """
    algorithm = TABLE[check(name)]
    algorithm.check_ranks(len(ranks))
    if not agrees(algorithm, ranks):
        others = " or ".join(other.name for other in candidates(ranks) if other.built_in_nbytes)
        raise InvalidUsageError(
            f"{name} needs the same driver and device model on every rank, or replicas could differ; "
            f"take auto, {others}"
        )
    return algorithm


def candidates(ranks: Sequence[DeviceInfo], collective: str = "all_reduce") -> list[Algorithm]:
    """Return the algorithms that do ``collective`` on the rig, in the table's order."""
    return [
        algorithm
        for algorithm in TABLE.values()
        if collective in algorithm.collectives and len(ranks) <= algorithm.most_ranks and agrees(algorithm, ranks)
    ]


def built_in(ranks: Sequence[DeviceInfo], wire_nbytes: int, collective: str = "all_reduce") -> Algorithm:
    """Return the algorithm that ``collective`` takes by default on a rig that was not measured."""
    crossing = wire_nbytes * max(1, len(ranks) - 1) * (_CPU_WEIGHT if any(info.is_cpu for info in ranks) else 1)
    return next(each for each in candidates(ranks, collective) if crossing <= each.built_in_nbytes)


def choose(
    name: str,
    ranks: Sequence[DeviceInfo],
    wire_nbytes: int,
    tuning: Tuning | None = None,
    wire: str = wires.CODED,
    collective: str = "all_reduce",
) -> Plan:
    """Return the plan of a message of ``wire_nbytes`` on the wire.

    Args:
        name: an algorithm, or ``"auto"``.
        ranks: the devices.
        wire_nbytes: bytes of the whole array as it travels.
        tuning: the rig's tuning; the built-in thresholds by default.
        wire: the measured wire whose choices and costs apply, see :func:`vkpar.comm.wires.timed_as`.
        collective: the collective; where the chosen algorithm does not do it, the built-in choice is taken.

    Raises:
        InvalidUsageError: ``direct`` where the ranks' sums may differ.
        UnsupportedError: more ranks than the named algorithm can sum.
    """
    tuning = tuning or Tuning()
    choice = tuning.choice(wire_nbytes, wire) or Choice(None, built_in(ranks, wire_nbytes).name)
    if name != AUTO:
        require(name, ranks)
        choice = choice if choice.algorithm == name else Choice(None, name)
    if collective not in TABLE[choice.algorithm].collectives:
        choice = Choice(None, built_in(ranks, wire_nbytes, collective).name)
    plan = Plan(TABLE[choice.algorithm], choice.segment_nbytes, copies=choice.copies)
    return plan if choice.equal else weighted(plan, tuning.costs_of(wire))


def weighted(plan: Plan, costs: tuple[Costs, ...]) -> Plan:
    """Return the plan with shares, where its algorithm takes shares and the ranks are not equally fast."""
    return replace(plan, shares=unequal(costs)) if plan.algorithm.takes_shares else plan


def segment_nbytes(plan: Plan, nranks: int, wire_nbytes: int, *, apart: bool = False) -> int:
    """Return the bytes of a segment on the wire for a message of ``wire_nbytes``, whatever a slot holds.

    Args:
        plan: of the message.
        nranks: the number of ranks.
        wire_nbytes: bytes of the whole array as it travels.
        apart: the ranks live on several hosts.
    """
    if plan.segment_nbytes:
        return plan.segment_nbytes
    shorter = _OVER_A_NETWORK if apart else 1
    usual = math.isqrt(chunk_nbytes(plan.algorithm, nranks, wire_nbytes) * (_GAP_BYTES // shorter))
    return max(LEAST_SEGMENT // math.isqrt(shorter), usual)


def chunk_nbytes(algorithm: Algorithm, nranks: int, wire_nbytes: int) -> int:
    """Return the bytes on the wire that one rank sums of a message of ``wire_nbytes``, with equal chunks."""
    return wire_nbytes if algorithm.every_rank_sums else wire_nbytes // nranks


# ---- tables for people ----

COPIES = "copies"  # two_shot around copies of the slots
EQUAL_MARK = "="  # after the name of an algorithm with equal chunks, where ranks differ


def trial_table(wire: str, trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """Return titles, then a row per size on the wire: each algorithm's best time, the chosen one marked."""
    ways = [way for name in TABLE for way in (name, f"{name}{EQUAL_MARK}")]
    names = [name for name in [*ways, COPIES] if any(_way(trial) == name for trial in trials)]
    narrow = any(trial.equal for trial in trials)  # the columns would not fit
    rows = [(wire, *names, "segment", *(() if narrow else ("float32", f"vs {BASELINE.name}")))]
    for wire_nbytes in dict.fromkeys(trial.wire_nbytes for trial in trials):
        here = [trial for trial in trials if trial.wire_nbytes == wire_nbytes]
        best = {name: min((t.seconds for t in here if _way(t) == name), default=None) for name in names}
        chosen = next(trial for trial in here if trial.chosen)
        times = [_time(best[name], marked=name == _way(chosen)) for name in names]
        baseline = best.get(BASELINE.name)
        gain = "-" if baseline is None else f"{baseline / chosen.seconds:.1f}x"
        segment = text.units(chosen.segment_nbytes) if chosen.segment_nbytes else "by size"
        more = () if narrow else (text.units(4 * wire_nbytes // wires.TIMED_NBYTES[wire]), gain)
        rows.append((text.units(wire_nbytes), *times, segment, *more))
    return rows


def _way(trial: Trial) -> str:
    if trial.copies:
        return COPIES
    return f"{trial.algorithm}{EQUAL_MARK}" if trial.equal else trial.algorithm


def _time(seconds: float | None, *, marked: bool) -> str:
    return "-" if seconds is None else f"{'* ' if marked else ''}{1e6 * seconds:.0f}"


def cost_table(costs: Sequence[Costs]) -> list[tuple[str, ...]]:
    """Return titles, then a row per wire and rank: its GB/s in each role."""
    rows = [("GB/s", "rank", *ROLES)]
    for wire in wires.TIMED:
        for rank, each in enumerate(cost for cost in costs if cost.wire == wire):
            rows.append((wire, str(rank), *(f"{1e-9 / getattr(each, role):.3g}" for role in ROLES)))
    return rows
