"""Reductions through copies: a rank's own copies of the slots, and the steps that move them to and fro.

Kernels then run at the speed of the device's memory, and copy engines use the host link. The steps come from
:mod:`vkpar.comm.schedule.slot_copies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from vkpar import env
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.carried import Extent, ExtentsOf
from vkpar.comm.schedule.steps import SlotCopy, Span, Step
from vkpar.comm.wires import WirePlan
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.memory.buffer import BufferRange, SharedBuffer
from vkpar.vulkan.stamps import Marks
from vkpar.vulkan.tape import Tape

_GAP = 64 << 10  # bytes that are sooner copied by an engine than another copy is begun


class Sides(NamedTuple):
    """The memory that ranks share and a rank's own, between which slots are copied.

    Attributes:
        shared: by all ranks.
        own: the rank's.
        nslots: how many slots the own memory numbers.
        extents: the bytes of a slot that are in use, from the beginning of the own memory.
        farther: how much farther slots lie there.
    """

    shared: SharedBuffer
    own: BufferRange
    nslots: int
    extents: ExtentsOf
    farther: int = 0

    def record(self, commands: CommandBuffer, copies: Sequence[SlotCopy], times: int = 1) -> None:
        """Record copies, all of them in or all out, behind earlier work of the queue; each so many times."""
        sends = any(copy.sends for copy in copies)
        pairs = [pair for copy in copies for pair in self._pairs(copy)]
        shared = [there for there, _ in pairs]
        commands.record_acquire(self.shared, () if sends else shared)
        for there, here in pairs * times:
            commands.record_copy(here, there) if sends else commands.record_copy(there, here)
        commands.record_release(self.shared, shared if sends else ())

    def _pairs(self, copy: SlotCopy) -> list[tuple[BufferRange, BufferRange]]:
        slot = (copy.slot if copy.sends else copy.out_slot) % self.nslots
        return [
            (_part(self.shared.range, start - self.farther, nbytes), _part(self.own, start, nbytes))
            for start, nbytes in self.extents(slot, copy.span, copy.final)
        ]


def _part(whole: BufferRange, start: int, nbytes: int) -> BufferRange:
    return BufferRange(whole.buffer, whole.offset + start, nbytes)


def extents_of(slab: Slab, plan: WirePlan, gap: int = _GAP) -> ExtentsOf:
    """Return what says which bytes of a slot are in use: the blocks' payloads, and their scales if there are any.

    Args:
        slab: has the slot.
        plan: the formats of what lies there.
        gap: bytes between payloads and scales that are sooner moved along than the scales are moved by themselves.
    """

    def found(slot: int, span: Span, final: bool) -> list[Extent]:
        first, used = slab.byte_of(slot), plan.used(span.blocks, slab.slot_nbytes, final=final)
        if len(used) == 2 and used[1][0] - used[0][1] <= gap:
            used = [(0, sum(used[1]))]
        return [(first + start, nbytes) for start, nbytes in used]

    return found


class CopyRecorder:
    """Writes down one queue's copies of one program; ``timer`` has their times written, where it is given.

    Attributes:
        rank: the rank that the queue belongs to.
        tape: what was written down.
        timer: as it was given.
    """

    def __init__(self, rig: Rig, number: int, slab: Slab, plan: WirePlan, timer: Marks | None = None) -> None:
        self.rank = rig.queue_map.ranks[number]
        self.timer = timer
        device, queue = rig.devices[self.rank], rig.queues[number]
        runs_kernels = queue.family == device.compute.family
        shared = replace(rig.transports[self.rank].shared(), family=queue.family, kernels=runs_kernels)
        own = rig.own_slots[self.rank].shared().range
        self._sides = Sides(shared, own, rig.arena.nslots, extents_of(slab, plan, gap=0))
        self._times = max(1, env.get().slow_links)
        self.tape = Tape(device.handle, rig.pools[number])

    def record(self, step: Step, **_: bool) -> None:
        """Write down a command buffer that does the copies of ``step``, all of them in or all out."""
        commands = self.tape.commands()
        if self.timer:
            self.timer.record_begin(commands)
        self._sides.record(commands, [each for each in step.actions if isinstance(each, SlotCopy)], self._times)
        if self.timer:
            self.timer.record_end(commands)
