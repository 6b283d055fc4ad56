"""Turns a checked request into programs: which algorithm, which wire, which slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from vkpar import env
from vkpar.arrays.array import Array
from vkpar.comm import wires
from vkpar.comm.plan import choose
from vkpar.comm.plan.choose import Plan, Tuning
from vkpar.comm.record import crossings
from vkpar.comm.record.entry import Draft, Entry, Template, TimedEntry
from vkpar.comm.record.kernels import ReduceSpec
from vkpar.comm.record.program import Program
from vkpar.comm.record.recorder import StepRecorder
from vkpar.comm.record.score import Score
from vkpar.comm.requests.collectives import Movement, Reduction, Request
from vkpar.comm.requests.operands import Operands
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.algorithms import barrier, p2p
from vkpar.comm.schedule.steps import BLOCK, Problem, SlotSet, Step
from vkpar.vulkan.memory.buffer import Buffer
from vkpar.vulkan.tape import Places

_ALTERNATED_BATCHES = 8  # a rank; shorter programs are recorded twice, over different slots
_MOST_WRITTEN = 512  # batches of a program that is kept written down for calls over other memory
GENERATIONS = 2  # sets of slots that short programs use in turn
_TIMED_PROGRAMS = 8  # alternates in a profile, where a program runs again only when its times were read
_TIMED_BATCHES = 4096  # of all alternates together, but for the least that keeps the queues busy

Steps = Callable[[SlotSet, int], Iterator[Step]]  # of a set of slots and a generation


@dataclass(frozen=True)
class _Recipe:
    """All that a request's programs are recorded from.

    Attributes:
        label: the collective's entry in the flight recorder.
        operands: the arrays, or their bounce buffers.
        slab: where the slots lie, and ``slots`` which ones are used.
        spec: what the reduction does.
        steps: the schedule, by slots and generation.
        copies: copy queues move the slots around the kernels.
        near: the same slots in the memory of cards, where they are carried within groups of ranks.
    """

    label: dict[str, Any]
    operands: Operands
    slab: Slab
    slots: SlotSet
    spec: ReduceSpec
    steps: Steps
    copies: bool = False
    near: Slab | None = None


class Written(NamedTuple):
    """A score, and how the elements that it moves are written into slots."""

    score: Score
    plan: wires.WirePlan


class ProgramBuilder:
    """Records the requests of one communicator.

    Args:
        rig: the communicator's rig.
        algorithm: the algorithm to take, or ``"auto"``.
        wire: how float32 crosses links where a request does not say.

    Attributes:
        tuning: the rig's tuning; not to be changed once a call of the user's was recorded.
        through_copies: whether every reduction goes through copies of the slots, where the rig has them.
        through_arena: whether nothing is carried within groups, as in graphs.
        recorder: records the steps.
    """

    def __init__(self, rig: Rig, algorithm: str, wire: str) -> None:
        self._rig = rig
        self._infos = [device.info for device in rig.devices] if rig.world is None else rig.world.infos
        self._groups = tuple(rig.world.division.processes) if rig.world is not None else rig.groups
        self._algorithm = algorithm
        self._wire = wire
        self.tuning = Tuning()
        self.through_copies = env.get().path == "copies"
        self.through_arena = False
        self.recorder = StepRecorder(rig)

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self._infos)

    def entry(
        self, request: Request, wanted: Plan | None = None, turn: int | None = None, memory: Sequence[Buffer] = ()
    ) -> Entry:
        """Record ``request``; a reduction goes by the plan ``wanted``, or by the tuning.

        An entry holds none of the request's arrays: programs of other turns are recorded by :meth:`program` when they
        are needed, from the call that needs them. Where bounce buffers take the place of arrays, the programs of all
        turns are recorded now, and the entry has no template.

        Args:
            request: a checked call.
            wanted: the plan of a reduction; None for the tuning's.
            turn: the number of the communicator's collective that it is recorded for; None to record all turns.
            memory: the buffers of the request's arrays, by which the template of the entry knows them.

        Raises:
            InvalidUsageError: the algorithm cannot run on this rig.
            OutOfMemoryError: no room for bounce buffers of arrays that are not aligned.
        """
        recipe = self._recipe(request, wanted)
        if recipe is None:
            return Entry({}, label=request.label())
        if self.recorder.collector is not None:
            return self._timed(recipe)
        number, draft = (turn or 0) % GENERATIONS, self._draft(recipe, memory)
        scores = {number: draft(number)}
        first = scores[number]
        if not first.batches:
            return Entry({}, label=recipe.label)
        bounce_buffers, alternates = recipe.operands.bounce_buffers, GENERATIONS
        if not self._is_short(first, recipe.slots):
            number, alternates, scores = 0, 1, {0: first}
        elif turn is None or bounce_buffers:
            scores[1 - number] = draft(1 - number)
        template = Template(recipe.label, alternates, scores, None if recipe.operands.pins else draft)
        programs: dict[int, Program] = {}
        with ExitStack() as undo:
            for index, score in scores.items():
                programs[index] = score.program(memory)
                undo.callback(programs[index].close)
            undo.pop_all()
        reusable = bool(memory) and not bounce_buffers and self.recorder.is_plain and first.batches <= _MOST_WRITTEN
        return Entry(programs, bounce_buffers, recipe.label, alternates, template if reusable else None)

    def program(self, request: Request, turn: int) -> Program:
        """Record ``request`` once more, for another turn, over the slots of that turn's generation.

        Raises:
            OutOfMemoryError: no room for command buffers.
        """
        return self.draft(request, ())(turn % GENERATIONS).program(())

    def draft(self, request: Request, memory: Sequence[Buffer]) -> Draft:
        """Return what writes ``request`` down as :meth:`entry` did, for any generation."""
        recipe = self._recipe(request, None)
        assert recipe is not None
        return self._draft(recipe, memory)

    def plain_score(
        self, request: Request, turn: int, memory: Sequence[Buffer]
    ) -> tuple[Sequence[Array], Written | None]:
        """Write ``request`` down for a graph: kernels on the ranks' compute queues alone, without timestamps or checks.

        Returns:
            the bounce buffers that its kernels use, and the score; None where there is nothing to do.
        """
        recipe = self._recipe(request, None)
        if recipe is None:
            return (), None
        steps = recipe.steps(recipe.slots, turn % GENERATIONS)
        kept = StepRecorder(self._rig).kept
        plain = kept(recipe.spec, recipe.slab, recipe.operands, Places(memory), flags=False, straight=False)
        score = plain.write(steps)
        return recipe.operands.bounce_buffers, Written(score, recipe.spec.plan) if score.batches else None

    def _draft(self, recipe: _Recipe, memory: Sequence[Buffer]) -> Draft:
        places = Places(memory)
        kept = self.recorder.kept(
            recipe.spec, recipe.slab, recipe.operands, places, copies=recipe.copies, near=recipe.near
        )
        steps, slots = recipe.steps, recipe.slots
        return lambda generation: kept.write(steps(slots, generation))

    def _timed(self, recipe: _Recipe) -> Entry:
        """Return an entry of many programs, since a timed program is free again only once its times were read."""
        draft = self._draft(recipe, ())
        with ExitStack() as undo:
            programs = [draft(0).program(())]
            undo.callback(programs[0].close)
            if not programs[0].batches:
                return Entry({}, label=recipe.label)
            generations = GENERATIONS if self._is_short(programs[0], recipe.slots) else 1
            most = max(2, min(_TIMED_PROGRAMS, _TIMED_BATCHES // programs[0].batches))
            while len(programs) < (generations if self.recorder.checks is not None else most):
                programs.append(draft(len(programs) % generations).program(()))
                undo.callback(programs[-1].close)
            collector = self.recorder.collector
            assert collector is not None, "times are asked for"
            if collector.allowance is not None:
                with self.recorder.untimed():
                    for generation in range(generations):
                        programs.append(draft(generation).program(()))
                        undo.callback(programs[-1].close)
            undo.pop_all()
        return TimedEntry(programs, recipe.operands.bounce_buffers, recipe.label, generations, collector.allowance)

    # ---- plans ----

    def check(self, request: Request) -> None:
        """Refuse a request that the communicator's algorithm cannot do, as recording it does.

        Raises:
            InvalidUsageError, UnsupportedError: see :func:`vkpar.comm.plan.choose.require`.
        """
        if isinstance(request, Reduction) and request.dtype is not None:
            wire = wires.chosen(request.op, self._wire) if request.wire is None else request.wire
            self._choose(request, wires.message_nbytes(request.dtype, wire, request.count, request.op), wire)

    def _recipe(self, request: Request, wanted: Plan | None) -> _Recipe | None:
        """Return how ``request`` is recorded; None where there is nothing to do."""
        if isinstance(request, Reduction):
            return self._reduction(request, wanted)
        if isinstance(request, Movement):
            return self._movement(request)
        return self._recipe_of(request, Operands([], []), wires.moved(), self._rig.arena.small, barrier.steps)

    def _reduction(self, request: Reduction, wanted: Plan | None) -> _Recipe | None:
        wire = wires.chosen(request.op, self._wire) if request.wire is None else request.wire
        assert request.dtype is not None
        message = wires.message_nbytes(request.dtype, wire, request.count, request.op)
        # An algorithm that cannot run on this rig is refused whatever the count.
        plan = self._choose(request, message, wire) if wanted is None else wanted
        if request.count == 0:
            return None
        if self.nranks == 1:
            return self._recipe_of(request, _alone(request), wires.moved(), self._rig.arena.small, _no_steps)
        formats = wires.plan(request.dtype, wire, plan.algorithm, request.op)
        exact = wires.is_exact(request.dtype, request.op)
        slab = self._slab(request.space, formats)
        apart = self._rig.world is not None and self._rig.world.is_apart
        segment = min(choose.segment_nbytes(plan, self.nranks, message, apart=apart), slab.slot_nbytes)
        slots = slab.slot_set(max(1, formats.blocks(segment)))
        posed = Problem(
            self.nranks,
            request.space,
            slots,
            request.contributors,
            root=request.root,
            parts=request.parts,
            shares=plan.shares,
            groups=self._groups,
            hands_on=self._rig.groups is not None,
        )

        def steps(slots: SlotSet, generation: int) -> Iterator[Step]:  # what they hold outlives the request
            return plan.algorithm.steps(replace(posed, slots=slots, generation=generation))

        copies = (plan.copies or self.through_copies) and self._rig.copies
        label = {**request.label(), "algorithm": plan.algorithm.name, "wire": "exact" if exact else wire}
        return _Recipe(
            {**label, "path": "copies"} if copies else label,
            crossings.own(request.operands(), self._rig),
            slab,
            slots,
            ReduceSpec(formats, request.op, wires.order(request.dtype), len(request.contributors)),
            steps,
            copies,
            self._near(slab),
        )

    def _choose(self, request: Reduction, message: int, wire: str) -> Plan:
        """Return the plan, by the communicator's algorithm where that does this collective."""
        assert request.dtype is not None
        timed = wires.timed_as(request.dtype, wire, request.op)
        return choose.choose(self._algorithm, self._infos, message, self.tuning, timed, request.name)

    def _movement(self, request: Movement) -> _Recipe | None:
        moves, plan = request.moves(), wires.moved()
        operands = crossings.own(request.operands(self.nranks), self._rig)
        if not moves and not operands.copies.ranks:
            return None

        swaps = request.swaps

        def steps(slots: SlotSet, generation: int) -> Iterator[Step]:  # what they hold outlives the request
            return p2p.steps(moves, slots, generation, swaps=swaps)

        largest = max((move.span.count for move in moves), default=0)
        slab = self._slab(largest, plan)
        return replace(self._recipe_of(request, operands, plan, slab, steps), near=self._near(slab))

    @staticmethod
    def _recipe_of(request: Request, operands: Operands, plan: wires.WirePlan, slab: Slab, steps: Steps) -> _Recipe:
        slots = slab.slot_set(max(1, plan.blocks(slab.slot_nbytes)))
        return _Recipe(request.label(), operands, slab, slots, ReduceSpec(plan), steps)

    def _slab(self, count: int, plan: wires.WirePlan) -> Slab:
        slots = self._rig.slots
        small, large = slots.small, slots.large
        return small if -(-count // BLOCK) <= plan.blocks(small.slot_nbytes) else large

    def _near(self, slab: Slab) -> Slab | None:
        """Return where cards have the slots of ``slab`` in their own memory, if that serves groups of ranks."""
        carriers = self._rig.carriers
        if carriers is None or self._rig.groups is None or self.through_arena:
            return None
        return carriers.small if slab is self._rig.arena.small else carriers.large

    def _is_short(self, program: Score | Program, slots: SlotSet) -> bool:
        few = program.batches <= _ALTERNATED_BATCHES * self.nranks
        return few and slots.per_rank > 1 and any(program.uses_slots)


def _alone(request: Reduction) -> Operands:
    """Return the operands of a single rank: a copy to its destination, or nothing in place."""
    made = Operands([], [])
    for source, target in zip(request.sources[0], request.targets[0], strict=True):
        if source.elements.size and source.elements != target.elements:
            made.copies.before.setdefault(0, []).append((source.elements.ranges(), target.elements.ranges()))
    return made


def _no_steps(_slots: SlotSet, _generation: int) -> Iterator[Step]:
    return iter(())
