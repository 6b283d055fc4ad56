"""Reductions through copies: a rank's own copies of the slots, and the steps that move them to and fro.

Kernels then run at the speed of the device's memory, and copy engines use the host link. The steps come from
:mod:`vkpar.comm.schedule.slot_copies`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vkpar import env
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.steps import SlotCopy, Step
from vkpar.comm.wires import WirePlan
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.stamps import Marks
from vkpar.vulkan.tape import Tape

_RangePair = tuple[BufferRange, BufferRange]  # in the memory that ranks share, and in the rank's own


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
        shared = rig.transports[self.rank].shared()
        self._shared = replace(shared, family=queue.family, kernels=runs_kernels)
        self._own = rig.own_slots[self.rank].shared().range
        self._nslots = rig.arena.nslots
        self._slab = slab
        self._plan = plan
        self._times = max(1, env.get().slow_links)
        self.tape = Tape(device.handle, rig.pools[number])

    def record(self, step: Step, **_: bool) -> None:
        """Write down a command buffer that does the copies of ``step``, all of them in or all out."""
        actions = [action for action in step.actions if isinstance(action, SlotCopy)]
        sends = any(action.sends for action in actions)
        pairs = [pair for action in actions for pair in self._pairs(action)]
        shared = [there for there, _ in pairs]
        commands = self.tape.commands()
        if self.timer:
            self.timer.record_begin(commands)
        commands.record_acquire(self._shared, () if sends else shared)
        for there, here in pairs * self._times:
            commands.record_copy(here, there) if sends else commands.record_copy(there, here)
        commands.record_release(self._shared, shared if sends else ())
        if self.timer:
            self.timer.record_end(commands)

    def _pairs(self, action: SlotCopy) -> Iterator[_RangePair]:
        """Yield what of the slot is in use: the payloads of the blocks, and their scales where there are any."""
        first = self._slab.byte_of(action.slot % self._nslots)
        for start, nbytes in self._plan.used(action.span.blocks, self._slab.slot_nbytes, final=action.final):
            yield self._pair(first + start, nbytes)

    def _pair(self, start: int, nbytes: int) -> _RangePair:
        there, here = self._shared.range, self._own
        return (
            BufferRange(there.buffer, there.offset + start, nbytes),
            BufferRange(here.buffer, here.offset + start, nbytes),
        )
