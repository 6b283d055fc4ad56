"""Runs schedules without a GPU: in-order queues, one to three a rank, heads taken in random order, overlapping steps.

What a step waits for is worked out exactly as the pump does when it enqueues (``collect`` and ``build_waits`` in
``vkpar/vulkan/pump/_pump_program.h``): the writers of the slots that it reads, and every reader and the writer of the
contents that it overwrites, as of the global order; a value that the queue has waited for before is left out. Where a
rank has several queues, the blocks of its arrays are waited for in the same way; with a ``QueueMap`` all kernels of a
rank run on one queue. The state of slots and arrays lives on from one program to the next, as it does on devices.

A step begins when its waits are met and it is the head of its queue; it ends some time later, while steps of other
queues begin and end. It reads at both moments and must find the generation of each slot and block that the global
order says.
"""

from __future__ import annotations

import graphlib
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from helpers.comm.running import Call, Codec, Content, Counts, Maybe, Plain, Run, ScheduleError, part

from vkpar.comm.schedule.slot_copies import QueueMap, copies
from vkpar.comm.schedule.steps import BLOCK, Action, Barrier, Forward, Problem, Reduce, SlotSet, Span, Step

__all__ = ["Call", "Counts", "Plain", "ScheduleError", "Simulator", "problem"]

Resource = tuple[str, int]  # ("slot", its id) or ("block", its address)


@dataclass
class Queued:
    """A step in its queue.

    Attributes:
        generation: its place in the global order, from 1.
        needs: by queue, how many of its steps must be done, by the rule; ``waits``: those not waited for before.
        finds: what it reads or overwrites, and whose contents must be there when it begins.
    """

    step: Step
    run: Run
    generation: int
    queue: int
    reads: list[Resource]
    writes: list[Resource]
    needs: dict[int, int] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    finds: dict[Resource, int] = field(default_factory=dict)
    running: bool = False


class Simulator:
    """Queues and slots of one communicator.

    Args:
        slots: the slots.
        seed: of the random order.
        queues: how many a rank has; each phase's steps go to one of them.
        last_reader_only: wait for the last reader of a slot instead of all of them (wrong from three ranks on).
        slots_only: do not wait for a rank's own use of its arrays (wrong from two queues on).
        queue_map: the steps went through ``through_copies``: these are the queues.
    """

    def __init__(
        self,
        slots: SlotSet,
        seed: int = 0,
        *,
        queues: int = 1,
        last_reader_only: bool = False,
        slots_only: bool = False,
        queue_map: QueueMap | None = None,
    ) -> None:
        self.nranks = slots.nranks
        self.nshared = shared_slots(slots)
        self._queue_map = queue_map
        self.slots = slots
        self._queues = queues
        self._random = random.Random(seed)
        self._last_reader_only = last_reader_only
        self._slots_only = slots_only
        number = len(queue_map.ranks) if queue_map else self.nranks * queues
        self._phases: list[dict[str, int]] = [{} for _ in range(self.nranks)]
        # As of the global order:
        self._written: dict[Resource, int] = {}
        self._writer: dict[Resource, tuple[int, int]] = {}
        self._readers: dict[Resource, dict[int, int]] = {}
        self._waited: list[dict[int, int]] = [{} for _ in range(number)]
        self._enqueued = [0] * number
        self._generations = itertools.count(1)
        # As the devices are at it:
        self._there: dict[Resource, int] = {}
        self._being_written: dict[Resource, int] = {}
        self._content: dict[int, Content] = {}
        self._done = [0] * number

    def owner_of(self, slot: int) -> int:
        """Return the rank that a slot belongs to."""
        if slot >= self.nshared:
            return slot // self.nshared - 1
        return (slot - self.slots.base) // self.slots.per_rank

    def run(
        self, steps: Iterable[Step], arrays: Sequence[Maybe], targets: Sequence[Maybe], codec: Codec | None = None
    ) -> Counts:
        """Run one collective to its end: rank r adds ``arrays[r]`` and its result goes to ``targets[r]``."""
        return self.run_all([Call(steps, arrays, targets, codec or Plain())])[0]

    def run_all(self, calls: Sequence[Call]) -> list[Counts]:
        """Enqueue several collectives back to back, then run all of them to their end."""
        queues, runs = self.enqueue(calls)
        self.drain(queues)
        return [run.counts for run in runs]

    # --- what the pump does when it enqueues ---

    def enqueue(self, calls: Sequence[Call]) -> tuple[list[list[Queued]], list[Run]]:
        """Return the queues with the steps of ``calls``, and what runs them."""
        queues: list[list[Queued]] = [[] for _ in self._enqueued]
        runs = []
        for call in calls:
            runs.append(Run(self.owner_of, self.nranks, self.slots.blocks, call))
            for step in call.steps:
                item = self._enqueue(step, runs[-1])
                queues[item.queue].append(item)
        return queues, runs

    def _enqueue(self, step: Step, run: Run) -> Queued:
        self._check(step)
        reads: list[Resource] = [("slot", slot) for slot in step.reads]
        writes: list[Resource] = [("slot", slot) for slot in step.writes]
        if not all(resource in self._written for resource in reads):
            raise ScheduleError(f"{step} reads a slot that nothing wrote")
        if self._queues > 1:
            own = (_own(action, run, step.rank) for action in step.actions)
            reads += itertools.chain.from_iterable(own)
            writes += (block for action in step.actions for block in _stored_blocks(action, run.targets[step.rank]))
        item = Queued(step, run, next(self._generations), self._queue_of(step), reads, writes)
        self._enqueued[item.queue] += 1
        item.finds = {resource: self._written.get(resource, 0) for resource in (*reads, *writes)}
        self._require(item)
        waited = self._waited[item.queue]
        item.waits = {queue: value for queue, value in item.needs.items() if value > waited.get(queue, 0)}
        waited.update(item.waits)
        return item

    def _queue_of(self, step: Step) -> int:
        """Return the queue of a step: its number; or a rank's phases take its queues in turn, from a random one on."""
        if self._queue_map:
            return step.rank
        phases = self._phases[step.rank]
        if step.phase not in phases:
            phases[step.phase] = (len(phases) + self._random.randrange(self._queues)) % self._queues
        return step.rank * self._queues + phases[step.phase]

    def _rank_of(self, step: Step) -> int:
        return self._queue_map.ranks[step.rank] if self._queue_map else step.rank

    def _require(self, item: Queued) -> None:
        value = self._enqueued[item.queue]

        def require(resource: Resource, queue: int, wanted: int) -> None:
            if queue != item.queue and not (self._slots_only and resource[0] == "block"):
                item.needs[queue] = max(item.needs.get(queue, 0), wanted)

        for resource in item.reads:
            if resource in self._writer:
                require(resource, *self._writer[resource])
            readers = self._readers.setdefault(resource, {})
            if self._last_reader_only:
                readers.clear()
            readers[item.queue] = value
        for resource in item.writes:
            if resource in self._writer:
                require(resource, *self._writer[resource])
            for reader in self._readers.pop(resource, {}).items():
                require(resource, *reader)
            self._writer[resource] = (item.queue, value)
            self._written[resource] = item.generation

    def _check(self, step: Step) -> None:
        if len(set(step.writes)) != len(step.writes) or set(step.writes) & set(step.reads):
            raise ScheduleError(f"the actions of {step} share a slot")
        rank = self._rank_of(step)
        for verb, slots in (("writes", step.writes), ("reads", [x for x in step.reads if x >= self.nshared])):
            for slot in slots:
                if self.owner_of(slot) != rank:
                    raise ScheduleError(f"{step} of rank {rank} {verb} a slot of rank {self.owner_of(slot)}")
        given = self._queue_map is None or copies(step) or all(isinstance(action, Barrier) for action in step.actions)
        for slot in (*step.reads, *step.writes):
            if not self.slots.base <= slot % self.nshared or (slot >= self.nshared and not self._queue_map):
                raise ScheduleError(f"{step} uses slots that it was not given")
            if slot < self.nshared and not given:
                raise ScheduleError(f"the kernels of {step} use a slot that ranks share")
        end = stored_end = 0
        for span, stored in sorted(_touched(step), key=lambda pair: pair[0].start):
            if span.start < stored_end or (stored and span.start < end):
                raise ScheduleError(f"the actions of {step} share elements")
            end = max(end, span.start + span.count)
            stored_end = end if stored else stored_end

    def graph(self, queues: Sequence[Sequence[Queued]]) -> dict[tuple[int, int], set[tuple[int, int]]]:
        """Return, for each step (its queue and number in it), those that it comes after.

        Edges are program order, waits for data, and waits for the reuse of slots and arrays.
        """
        after: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for queue, items in enumerate(queues):
            first = self._enqueued[queue] - len(items) + 1
            for number, item in enumerate(items, first):
                after[queue, number] = {*item.needs.items(), *([(queue, number - 1)] if number > first else [])}
        return after

    # --- what the devices do ---

    def drain(self, queues: Sequence[Sequence[Queued]]) -> None:
        """Run all steps in a random order that the queues and the waits allow."""
        heads = [0] * len(queues)
        waiting = [queue for queue, items in enumerate(queues) if items]
        while waiting:
            first = self._random.randrange(len(waiting))
            turned = (*waiting[first:], *waiting[:first])
            queue = next((queue for queue in turned if self._ready(queues[queue][heads[queue]])), None)
            if queue is None:
                stuck = (str(queues[queue][heads[queue]].step) for queue in waiting)
                raise ScheduleError("deadlock: " + "; ".join(stuck))
            item = queues[queue][heads[queue]]
            if not item.running:
                self._begin(item)
                continue
            self._end(item)
            heads[queue] += 1
            if heads[queue] == len(queues[queue]):
                waiting.remove(queue)

    def _ready(self, item: Queued) -> bool:
        return item.running or all(self._done[queue] >= value for queue, value in item.waits.items())

    def _begin(self, item: Queued) -> None:
        item.running = True
        item.run.counts.events.append(("begin", item.step))
        self._check_found(item, item.finds)
        for resource in item.writes:
            self._being_written[resource] = item.generation

    def _check_found(self, item: Queued, resources: Iterable[Resource]) -> None:
        for resource in resources:
            if self._being_written.get(resource, item.generation) != item.generation:
                raise ScheduleError(f"{item.step} uses {resource} while it is written")
            if self._there.get(resource, 0) != item.finds[resource]:
                raise ScheduleError(f"{item.step} finds the wrong contents in {resource}")

    def _end(self, item: Queued) -> None:
        self._check_found(item, item.reads)
        self._content |= item.run.execute(item.step, self._content, self._rank_of(item.step))
        for resource in item.writes:
            del self._being_written[resource]
            self._there[resource] = item.generation
        item.run.counts.events.append(("end", item.step))
        self._done[item.queue] += 1


def shared_slots(slots: SlotSet) -> int:
    """Return how many slots there are, those before the given ones counted in."""
    return slots.base + slots.nranks * slots.per_rank


def check_acyclic(simulator: Simulator, queues: Sequence[Sequence[Queued]]) -> None:
    """Check that some order satisfies program order and all waits; ``graphlib.CycleError`` where none does."""
    graphlib.TopologicalSorter(simulator.graph(queues)).prepare()


def _touched(step: Step) -> Iterable[tuple[Span, bool]]:
    """Yield the spans of a rank's arrays that a step uses, and whether it stores there."""
    for action in step.actions:
        if isinstance(action, Forward):
            yield action.span, True
        elif isinstance(action, Reduce) and (action.to_array or action.own_at is not None):
            yield action.span, action.to_array


def _own(action: Action, run: Run, rank: int) -> Iterable[Resource]:
    if not isinstance(action, Reduce) or action.own_at is None:
        return ()
    return _blocks(action, (run.targets if action.own_stored else run.arrays)[rank])


def _stored_blocks(action: Action, array: Maybe) -> Iterable[Resource]:
    stored = isinstance(action, Forward) or (isinstance(action, Reduce) and action.to_array)
    return _blocks(action, array) if stored else ()


def _blocks(action: Action, array: Maybe) -> list[Resource]:
    """Return the blocks of an array by their addresses, which are those of another where the two are in one place."""
    if array is None or isinstance(action, Barrier):
        return []
    start, nbytes = array.__array_interface__["data"][0], array.itemsize
    span = part(action.span)
    return [("block", start + element * nbytes) for element in range(span.start, span.stop, BLOCK)]


def problem(
    nranks: int,
    count: int,
    slots: SlotSet,
    silent: Iterable[int] = (),
    generation: int = 0,
    *,
    root: int | None = None,
    parts: tuple[Span, ...] | None = None,
    shares: tuple[float, ...] | None = None,
) -> Problem:
    """Return the problem in which all ranks but the ``silent`` ones contribute."""
    contributors = tuple(rank for rank in range(nranks) if rank not in set(silent))
    return Problem(nranks, count, slots, contributors, generation, root, parts, shares)
