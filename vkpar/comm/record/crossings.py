"""Writes down what crosses between processes: which bytes of which slots each errand carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkpar.comm.requests.operands import Operands
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.processes.progress import Progress, SlotBytes
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.processes import divided
from vkpar.comm.schedule.steps import Carry, Step
from vkpar.comm.wires import WirePlan
from vkpar.vulkan.memory.buffer import Buffer
from vkpar.vulkan.pump.hub import command_of

_TOKEN_NBYTES = 4


def mine(steps: Sequence[Step], rig: Rig) -> list[Step]:
    """Return what this process does of ``steps``, by queue; all of them where there is no other process."""
    return list(steps) if rig.world is None else list(divided(steps, rig.world.division))


def own(operands: Operands, rig: Rig) -> Operands:
    """Return the operands of this process' ranks, numbered as their queues are."""
    if rig.world is None:
        return operands
    ranks = rig.world.division.ranks()
    operands.sources = operands.sources[ranks.start : ranks.stop]
    operands.targets = operands.targets[ranks.start : ranks.stop]
    copies = operands.copies
    copies.before = {rank - ranks.start: items for rank, items in copies.before.items()}
    copies.after = {rank - ranks.start: items for rank, items in copies.after.items()}
    return operands


class CrossingRecorder:
    """Writes down one queue to or from another process.

    Attributes:
        rank: the queue's number; ``tape``: what was written down; ``timer``: None, as nobody times it.
    """

    timer = None

    def __init__(self, rig: Rig, number: int, slab: Slab, plan: WirePlan) -> None:
        assert rig.progress is not None, "there are other processes"
        self.rank = number
        self.tape = Errands(rig.progress)
        self._address, self._slab, self._plan = rig.arena.memory.address, slab, plan

    def record(self, step: Step, *, first: bool, last: bool) -> None:
        """Write down an errand that does ``step``."""
        carried = [action for action in step.actions if isinstance(action, Carry)]
        self.tape.listed.append([piece for action in carried for piece in self._pieces(action)])

    def _pieces(self, action: Carry) -> list[SlotBytes]:
        """Return where the blocks of a slot lie, and their scales where these lie apart."""
        start = self._address + self._slab.byte_of(action.slot)
        if action.span is None:
            return [SlotBytes(start, _TOKEN_NBYTES)]
        form, blocks = self._plan.final if action.final else self._plan.contribution, action.span.blocks
        payload = SlotBytes(start, blocks * form.payload)
        if not form.tail:
            return [payload]
        tail = self._plan.tail_at(self._slab.slot_nbytes)
        if tail == payload.nbytes:
            return [SlotBytes(start, tail + blocks * form.tail)]
        return [payload, SlotBytes(start + tail, blocks * form.tail)]


class Errands:
    """The errands of one queue, written down: in the place of a :class:`~vkpar.vulkan.tape.Tape`.

    Attributes:
        listed: by step, what is carried.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.listed: list[list[SlotBytes]] = []

    def another(self) -> Errands:
        """Return an empty list of errands of the same queue."""
        return Errands(self._progress)

    def seal(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def lay(self, memory: Sequence[Buffer]) -> ErrandTake:
        """Return the errands for one graph, as :meth:`take` does."""
        return self.take(memory)

    def take(self, _memory: Sequence[Buffer]) -> ErrandTake:
        """Return the errands for one program; they name no array, but slots alone."""
        return ErrandTake(self._progress, self.listed)


class ErrandTake:
    """The errands of one program, in the place of a :class:`~vkpar.vulkan.tape.Take`.

    Attributes:
        handles: what stands for command buffers.
    """

    def __init__(self, progress: Progress, listed: Sequence[Sequence[SlotBytes]]) -> None:
        self._progress = progress
        self._numbers = [progress.add(pieces) for pieces in listed]
        self.handles: list[Any] = [command_of(number) for number in self._numbers]

    def record_over(self, _tape: Any, _memory: Sequence[Buffer]) -> None:
        """Do nothing: the slots stay the same."""

    def close(self) -> None:
        """Forget the errands; none may be under way."""
        numbers, self._numbers = self._numbers, []
        for number in numbers:
            self._progress.remove(number)
