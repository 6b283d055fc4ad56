"""Measures what each role of an exchange costs each rank, see :mod:`vkpar.comm.plan.shares`."""

from __future__ import annotations

import time
from collections.abc import Callable

from vkpar import dtypes
from vkpar.comm import wires
from vkpar.comm.engine.engine import Engine
from vkpar.comm.engine.work import Work
from vkpar.comm.plan.shares import ROLES, Costs
from vkpar.comm.record.kernels import ReduceSpec
from vkpar.comm.requests.operands import Elements, Operands, Part, Placement
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.primitives import recv_copy, recv_reduce_copy_send, send
from vkpar.comm.schedule.steps import BLOCK, MOST_SOURCES, Action, SlotSet, Span, Step
from vkpar.comm.tune.rehearsal import steps_alone
from vkpar.comm.wires import WirePlan

# Bytes of a step, and how many steps follow each other; the first pair that takes long enough is measured.
Tries = tuple[tuple[int, int], ...]
_TRIES: Tries = ((64 << 10, 1), (256 << 10, 1), (1 << 20, 4))
_ENOUGH = 0.0003  # seconds
_ROUNDS = 3
_DIGITS = 4


def measured(engine: Engine) -> tuple[Costs, ...]:
    """Return the ranks' costs, by measured wire and rank; one rank works at a time.

    Each cost is measured twice, some time apart, and the lower one counts, since something may hold a rank up once.
    """
    runners = [_Runner(engine, wire) for wire in wires.TIMED]
    first, second = ([runner.costs(rank) for runner in runners for rank in range(engine.rig.nranks)] for _ in range(2))
    return tuple(_least(*pair) for pair in zip(first, second, strict=True))


def _least(first: Costs, second: Costs) -> Costs:
    return Costs(first.wire, **{role: min(getattr(first, role), getattr(second, role)) for role in ROLES})


def seconds_of(launch: Callable[[], Work], calls: int) -> float:
    """Return the time of one of several calls that are queued back to back."""
    start = time.perf_counter()
    for _ in range(calls):
        work = launch()
    work.wait()
    return (time.perf_counter() - start) / calls


class _Runner:
    """Runs single roles with one wire, over arrays of zeros and a rank's own slots."""

    def __init__(self, engine: Engine, wire: str) -> None:
        self._engine = engine
        self._wire = wire
        self._slab = engine.rig.arena.large
        self._formats: WirePlan = wires.plan(dtypes.float32, wire, TABLE["two_shot"])
        most = self._formats.blocks(min(self._slab.slot_nbytes, _TRIES[-1][0])) * BLOCK
        self._arrays = [device.zeros(2 * most, dtypes.float32) for device in engine.devices]
        self._places = [Placement([Part(0, Elements.of(array))]) for array in self._arrays]
        self._tries: dict[tuple[int, str], Tries] = {
            (rank, role): _TRIES for rank in range(engine.rig.nranks) for role in ROLES
        }

    def costs(self, rank: int) -> Costs:
        """Return what the roles cost ``rank``."""
        return Costs(self._wire, **{role: self._cost(rank, role) for role in ROLES})

    def _cost(self, rank: int, role: str) -> float:
        for nbytes, turns in self._tries[rank, role]:
            blocks = self._formats.blocks(min(self._slab.slot_nbytes, nbytes))
            steps = [self._step(rank, role, self._slab.slot_set(blocks))] * turns
            least = self._seconds(steps)
            if least > _ENOUGH:
                break
        self._tries[rank, role] = ((nbytes, turns),)  # the next time
        per_byte = least / (turns * blocks * self._formats.nbytes_per_block)
        return float(f"{per_byte:.{_DIGITS}g}")

    def _step(self, rank: int, role: str, slots: SlotSet) -> Step:
        span = Span(0, slots.blocks * BLOCK)
        beside = Span(span.count, span.count)
        to, other = slots.slot(rank, 0), slots.slot(rank, 1)
        most = min(self._engine.rig.nranks, MOST_SOURCES) - 1
        others = tuple(slots.slot(rank, at) for at in range(1, most + 1))
        actions: dict[str, tuple[Action, ...]] = {
            "exchange": (send(span, to), recv_copy(beside, other)),
            "reduce": (recv_reduce_copy_send(span, others, rank, to),),
        }
        return Step(rank, role, actions[role])

    def _seconds(self, steps: list[Step]) -> float:
        operands = Operands(self._places, self._places)
        spec = ReduceSpec(self._formats)
        with steps_alone(self._engine, steps, spec, self._slab, operands, self._arrays) as rehearsal:
            rehearsal.launch().wait()  # the pipelines are made
            return min(seconds_of(rehearsal.launch, 1) for _ in range(_ROUNDS))
