"""Writes down what crosses between processes: which bytes of which slots each errand carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vkpar.comm.requests.operands import Operands, Placement
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.processes.progress import Progress, SlotBytes
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.processes import divided
from vkpar.comm.schedule.steps import BLOCK, Carry, Span, Step
from vkpar.comm.schedule.straight import ByteSpan, straight
from vkpar.comm.wires import WirePlan
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.buffer import Buffer, BufferRange
from vkpar.vulkan.pump.hub import command_of
from vkpar.vulkan.tape import Places

_TOKEN_NBYTES = 4


def mine(steps: Sequence[Step], rig: Rig, arrays: HostArrays | None = None) -> list[Step]:
    """Return what this process does of ``steps``, by queue; all of them where there is no other process.

    Crossings go straight to and from ``arrays`` where they can, if these are given.
    """
    if rig.world is None:
        return list(steps)
    own = list(divided(steps, rig.world.division))
    return own if arrays is None else straight(own, len(rig.devices), arrays)


class HostArrays:
    """The operands of this process' ranks, as :class:`vkpar.comm.schedule.straight.Arrays`; the host sees some of them.

    That is where a CPU driver runs the rank: its memory is the host's, and one queue does all of its work.
    """

    def __init__(self, rig: Rig, operands: Operands, plan: WirePlan) -> None:
        self._operands = operands
        self.sends, self.stores = plan.is_verbatim(plan.contribution), plan.is_verbatim(plan.final)
        self.moves = plan.moves
        # Bounce buffers do not come back as arrays do, see vkpar.vulkan.device.LogicalDevice.lend.
        alone = not operands.bounce_buffers
        ranks = zip(rig.devices, rig.transports, operands.sources, operands.targets, strict=False)  # barriers have none
        self._reached = [
            alone and given.is_mapped and got.is_mapped and _is_host(device) and not transport.mirror
            for device, transport, given, got in ranks
        ]
        copies = operands.copies.before
        self._copied = {
            rank: tuple(_place(item) for pair in listed for ranges in pair for item in ranges)
            for rank, listed in copies.items()
        }

    def reached(self, rank: int) -> bool:
        """Say whether the host sees the arrays of a rank."""
        return self._reached[rank]

    def copied(self, rank: int) -> tuple[ByteSpan, ...]:
        """Return what the rank's own copies before its first step read and write."""
        return self._copied.get(rank, ())

    def places(self, rank: int, span: Span, *, stored: bool) -> tuple[ByteSpan, ...]:
        """Return where the elements of ``span`` lie: those that the rank gives, or, ``stored``, those that it gets."""
        operands = self._operands.targets if stored else self._operands.sources
        return tuple(map(_place, operands[rank].ranges(span)))


def _is_host(device: LogicalDevice) -> bool:
    return device.info.is_cpu and device.transfer is device.compute


def _place(item: BufferRange) -> ByteSpan:
    return ByteSpan(item.buffer, item.offset, item.offset + item.nbytes)


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

    def __init__(self, rig: Rig, number: int, slab: Slab, plan: WirePlan, operands: Operands, places: Places) -> None:
        assert rig.progress is not None, "there are other processes"
        self.rank = number
        self.tape = Errands(rig.progress)
        self._address, self._slab, self._plan = rig.arena.memory.address, slab, plan
        self._operands, self._places = operands, places

    def record(self, step: Step, *, first: bool, last: bool) -> None:
        """Write down an errand that does ``step``."""
        carried = [action for action in step.actions if isinstance(action, Carry)]
        self.tape.listed.append([piece for action in carried for piece in self._pieces(action)])

    def _pieces(self, action: Carry) -> list[SlotBytes | _ArrayBytes]:
        """Return where the blocks of a slot lie, and their scales where these lie apart; or where an array has them."""
        start = self._address + self._slab.byte_of(action.slot)
        if action.span is None:
            return [SlotBytes(start, _TOKEN_NBYTES)]
        if action.rank is not None:
            places = self._operands.sources if action.sends else self._operands.targets
            return [self._in_array(places[action.rank], action.span, start if action.copies else 0)]
        form, blocks = self._plan.final if action.final else self._plan.contribution, action.span.blocks
        if self._plan.is_verbatim(form):  # one end may use an array, which ends with the last element
            return [SlotBytes(start, action.span.count * form.payload // BLOCK)]
        payload = SlotBytes(start, blocks * form.payload)
        if not form.tail:
            return [payload]
        tail = self._plan.tail_at(self._slab.slot_nbytes)
        if tail == payload.nbytes:
            return [SlotBytes(start, tail + blocks * form.tail)]
        return [payload, SlotBytes(start + tail, blocks * form.tail)]

    def _in_array(self, placement: Placement, span: Span, slot: int) -> _ArrayBytes:
        (item,) = placement.ranges(span)
        number, start, _ = self._places.find(item)
        return _ArrayBytes(number, start, item.mapped, item.nbytes, slot)


class _ArrayBytes(NamedTuple):
    """Bytes of memory that has a ``number``, from byte ``start`` on; or of other memory, at an ``address``.

    Where a ``slot`` is given, that is the address to which they are copied at first.
    """

    number: int
    start: int
    address: int
    nbytes: int
    slot: int

    def among(self, memory: Sequence[Buffer]) -> SlotBytes:
        """Return the bytes, ``memory`` being what the numbers stand for."""
        address = self.address if self.number < 0 else memory[self.number].mapped + self.start
        return SlotBytes(self.slot, self.nbytes, address) if self.slot else SlotBytes(address, self.nbytes)


class Errands:
    """The errands of one queue, written down: in the place of a :class:`~vkpar.vulkan.tape.Tape`.

    Attributes:
        listed: by step, what is carried.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.listed: list[list[SlotBytes | _ArrayBytes]] = []

    def another(self) -> Errands:
        """Return an empty list of errands of the same queue."""
        return Errands(self._progress)

    def seal(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def lay(self, memory: Sequence[Buffer]) -> ErrandTake:
        """Return the errands for one graph, as :meth:`take` does."""
        return self.take(memory)

    def take(self, memory: Sequence[Buffer]) -> ErrandTake:
        """Return the errands for one program, whose arrays lie in ``memory``."""
        return ErrandTake(self._progress, self.over(memory))

    def over(self, memory: Sequence[Buffer]) -> list[tuple[list[SlotBytes], bool]]:
        """Return by step what is carried, the arrays lying in ``memory``, and whether any of it lies in arrays."""
        found = []
        for pieces in self.listed:
            placed = [piece if isinstance(piece, SlotBytes) else piece.among(memory) for piece in pieces]
            found.append((placed, any(isinstance(piece, _ArrayBytes) and not piece.slot for piece in pieces)))
        return found


class ErrandTake:
    """The errands of one program, in the place of a :class:`~vkpar.vulkan.tape.Take`.

    Attributes:
        handles: what stands for command buffers.
    """

    def __init__(self, progress: Progress, listed: Sequence[tuple[Sequence[SlotBytes], bool]]) -> None:
        self._progress = progress
        self._numbers = [progress.add(pieces, arrays=arrays) for pieces, arrays in listed]
        self.handles: list[Any] = [command_of(number) for number in self._numbers]

    def record_over(self, tape: Errands, memory: Sequence[Buffer]) -> None:
        """Carry what lies in other memory from now on; no errand is under way."""
        for number, (pieces, arrays) in zip(self._numbers, tape.over(memory), strict=True):
            self._progress.replace(number, pieces, arrays=arrays)

    def close(self) -> None:
        """Forget the errands; none may be under way."""
        numbers, self._numbers = self._numbers, []
        for number in numbers:
            self._progress.remove(number)
