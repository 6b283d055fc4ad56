"""Slow links, played by a fast rig: steps move what they read and write of the staging memory again and again."""

from __future__ import annotations

from collections.abc import Iterator

from vkpar import env
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.steps import Forward, Reduce, Span, Step
from vkpar.comm.wires import WirePlan
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.memory.buffer import BufferRange

_Extent = tuple[int, int, bool]  # where it begins in the arena, its bytes, and whether the step fills it


class SlowRoad:
    """What one rank's steps do more than their work, so that they take as long as over slower links.

    Args:
        times: how often a step moves its slots, its own work included.
        slots: the staging memory as the rank has it; ``aside`` is memory of its device, as large.
    """

    def __init__(self, times: int, slab: Slab, plan: WirePlan, slots: BufferRange, aside: BufferRange) -> None:
        self._more = times - 1
        self._slab, self._plan = slab, plan
        self._slots, self._aside = slots, aside

    @classmethod
    def of(cls, rig: Rig, rank: int, slab: Slab, plan: WirePlan, slots: BufferRange) -> SlowRoad | None:
        """Return that of a rank; None where links are as fast as they are."""
        if not rig.aside:
            return None
        return cls(env.get().slow_links, slab, plan, slots, rig.aside[rank].shared().range)

    def record(self, commands: CommandBuffer, step: Step) -> None:
        """Record it before the step's work, which fills slots after that with what belongs there."""
        extents = list(self._extents(step))
        for _ in range(self._more if extents else 0):
            for start, nbytes, fills in extents:
                there = BufferRange(self._slots.buffer, self._slots.offset + start, nbytes)
                here = BufferRange(self._aside.buffer, self._aside.offset + start, nbytes)
                commands.record_copy(*((here, there) if fills else (there, here)))
            commands.record_order()

    def _extents(self, step: Step) -> Iterator[_Extent]:
        for action in step.actions:
            if isinstance(action, (Reduce, Forward)):
                finished = isinstance(action, Forward)
                for slot in action.reads:
                    yield from self._used(slot, action.span, final=finished, fills=False)
                if action.out_slot is not None:
                    final = isinstance(action, Forward) or action.final
                    yield from self._used(action.out_slot, action.span, final=final, fills=True)

    def _used(self, slot: int, span: Span, *, final: bool, fills: bool) -> Iterator[_Extent]:
        first = self._slab.byte_of(slot)
        for start, nbytes in self._plan.used(span.blocks, self._slab.slot_nbytes, final=final):
            yield first + start, nbytes, fills
