"""Turns a checked request into programs: which algorithm, which wire, which slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from vkpar import env
from vkpar.comm import wires
from vkpar.comm.engine.cache import Entry, TimedEntry
from vkpar.comm.plan import choose as tuner
from vkpar.comm.plan.choose import Plan, Tuning
from vkpar.comm.record.builder import Executor, Program
from vkpar.comm.record.kernels import Arithmetic
from vkpar.comm.requests.collectives import Movement, Reduction, Request
from vkpar.comm.requests.operands import Operands
from vkpar.comm.rig.arena import Region
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.algorithms import barrier as meet
from vkpar.comm.schedule.algorithms import p2p as exchange
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import BLOCK, MOST_SOURCES, Problem, SlotSet, Step

_ALTERNATED_BATCHES = 8  # a rank; shorter programs are recorded twice, over different slots
_TIMED_PROGRAMS = 8  # alternates in a profile, where a program runs again only when its times were read
_TIMED_BATCHES = 4096  # of all alternates together, but for the least that keeps the queues busy

Steps = Callable[[SlotSet, int], Iterator[Step]]  # of a set of slots and a generation


class Recording:
    """Records the requests of one communicator.

    Args:
        rig: what the communicator owns on its devices.
        algorithm: the one to take, or ``"auto"``.
        wire: how float32 crosses links where a request does not say.

    Attributes:
        tuning: what is known of the rig; not to be changed once anything was recorded for the caller.
        through_copies: whether every reduction goes through copies of the slots, where the rig has them.
    """

    def __init__(self, rig: Rig, algorithm: str, wire: str, tuning: Tuning | None = None) -> None:
        self._rig = rig
        self._infos = [device.info for device in rig.devices]
        self._algorithm = algorithm
        self._wire = wire
        self.tuning = tuning or Tuning()
        self.through_copies = env.get().path == "copies"
        self.executor = Executor(rig)

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self._infos)

    def entry(self, request: Request, wanted: Plan | None = None) -> Entry:
        """Record ``request``; a reduction goes as ``wanted`` says, or as the tuning does.

        Raises:
            InvalidUsageError: the algorithm cannot run on this rig.
            OutOfMemoryError: no room for stand-ins of arrays that are not aligned.
        """
        if isinstance(request, Reduction):
            return self._reduction(request, wanted)
        if isinstance(request, Movement):
            return self._movement(request)
        return self._programs(request.label(), Operands([], []), wires.moved(), self._rig.arena.small, meet.steps)

    def _reduction(self, request: Reduction, wanted: Plan | None) -> Entry:
        wire = wires.chosen(request.op, self._wire) if request.wire is None else request.wire
        assert request.dtype is not None
        message = wires.message_nbytes(request.dtype, wire, request.count, request.op)
        # Refuses what cannot run on this rig, whatever the count.
        plan = self._choose(request, message, wire) if wanted is None else wanted
        if request.count == 0:
            return Entry([], label=request.label())
        if self.nranks == 1:
            return self._programs(request.label(), _alone(request), wires.moved(), self._rig.arena.small, _no_steps)
        formats = wires.plan(request.dtype, wire, plan.algorithm, request.op)
        exact = wires.is_exact(request.dtype, request.op)
        label = {**request.label(), "algorithm": plan.algorithm.name, "wire": "exact" if exact else wire}

        def steps(slots: SlotSet, generation: int) -> Iterator[Step]:
            problem = Problem(
                self.nranks,
                request.space,
                slots,
                request.contributors,
                generation,
                root=request.root,
                parts=request.parts,
                shares=plan.shares,
                order=plan.order,
            )
            return plan.algorithm.steps(problem)

        arithmetic = Arithmetic(formats, request.op, wires.order(request.dtype), len(request.contributors))
        region = self._region(request.space, formats)
        segment = tuner.segment_nbytes(plan, self.nranks, message)
        copies = plan.copies or self.through_copies
        return self._programs(label, request.operands(), formats, region, steps, arithmetic, segment, copies=copies)

    def _choose(self, request: Reduction, message: int, wire: str) -> Plan:
        """Return how it goes: by the wanted algorithm where that does this collective."""
        assert request.dtype is not None
        timed = wires.timed_as(request.dtype, wire, request.op)
        plan = tuner.choose(self._algorithm, self._infos, message, self.tuning, timed)
        if request.name in plan.algorithm.collectives:
            return plan
        other = TABLE["two_shot" if self.nranks <= MOST_SOURCES else "ring"]
        return tuner.weighted(Plan(other), self.tuning.costs_of(timed))

    def _movement(self, request: Movement) -> Entry:
        moves, plan = request.moves(), wires.moved()
        operands = request.operands(self.nranks)
        if not moves and not operands.copies.ranks:
            return Entry([], label=request.label())

        def steps(slots: SlotSet, generation: int) -> Iterator[Step]:
            return exchange.steps(moves, slots, generation, swaps=request.swaps)

        largest = max((move.span.count for move in moves), default=0)
        return self._programs(request.label(), operands, plan, self._region(largest, plan), steps)

    def _region(self, count: int, plan: wires.WirePlan) -> Region:
        small, large = self._rig.arena.small, self._rig.arena.large
        return small if -(-count // BLOCK) <= plan.blocks(small.slot_nbytes) else large

    def _programs(
        self,
        label: dict[str, Any],
        operands: Operands,
        plan: wires.WirePlan,
        region: Region,
        steps: Steps,
        arithmetic: Arithmetic | None = None,
        segment_nbytes: int | None = None,
        *,
        copies: bool = False,
    ) -> Entry:
        most = region.slot_nbytes if segment_nbytes is None else min(segment_nbytes, region.slot_nbytes)
        slots = region.slot_set(max(1, plan.blocks(most)))
        doing = Arithmetic(plan) if arithmetic is None else arithmetic
        copies = copies and self._rig.copies
        label = {**label, "path": "copies"} if copies else label

        def record(generation: int) -> Program:
            return self.executor.record(steps(slots, generation), doing, region, operands, copies=copies)

        with ExitStack() as undo:
            programs = [record(0)]
            undo.callback(programs[0].close)
            if not programs[0].batches:
                return Entry([], label=label)
            generations = 2 if self._is_short(programs[0], slots) else 1
            for number in range(1, self._alternates(programs[0].batches, generations)):
                programs.append(record(number % generations))
                undo.callback(programs[-1].close)
            undo.pop_all()
        if self.executor.collector is not None:
            return TimedEntry(programs, operands.scratch, label, generations)
        return Entry(programs, operands.scratch, label)

    def _alternates(self, batches: int, generations: int) -> int:
        """Return how often a program of so many batches is recorded."""
        if self.executor.collector is None or self.executor.checks is not None:
            return generations
        return max(2, min(_TIMED_PROGRAMS, _TIMED_BATCHES // batches))

    def _is_short(self, program: Program, slots: SlotSet) -> bool:
        few = program.batches <= _ALTERNATED_BATCHES * self.nranks
        return few and slots.per_rank > 1 and any(program.uses_slots)


def _alone(request: Reduction) -> Operands:
    """Return what a single rank does: a copy to its destination, nothing in place."""
    made = Operands([], [])
    for source, target in zip(request.sources[0], request.targets[0], strict=True):
        if source.array.size and source.array.key[:2] != target.array.key[:2]:
            made.copies.before.setdefault(0, []).append((source.array.ranges(), target.array.ranges()))
    return made


def _no_steps(_slots: SlotSet, _generation: int) -> Iterator[Step]:
    return iter(())
