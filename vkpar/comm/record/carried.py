"""Writes down one rank's kernels of schedules whose slots are carried: with flags between the steps of a submission."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

from vkpar.abi.wire import Carry
from vkpar.abi.words import pack
from vkpar.comm.record.kernels import Recorder
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.carriers import MOST_RANKS
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.carried import LANES, CarriedStep, Lane, Part, Piece, PiecesOf
from vkpar.comm.schedule.steps import Span, Step
from vkpar.comm.wires import WirePlan
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.memory.buffer import SharedBuffer

_TURNS = 1 << 15  # of 65,536 looks each, of about a microsecond: half an hour, longer than timeouts that people set
_READY_BITS, _MOST_READY = 2, 3  # of the transfers on a lane that one launch tells of
_MOST_GROUPS = 1024  # the slots lie in the card's own memory, which many work-groups use best


class CarriedRecorder(Recorder):
    """Writes down one rank's kernels on slots that copy engines carry from card to card."""

    _most_groups = _MOST_GROUPS

    def _place(self, rig: Rig, rank: int) -> tuple[SharedBuffer, int]:
        assert rig.carriers is not None, "something carries"
        slab = rig.carriers.slab
        return rig.carriers.shared(rank), slab.base + slab.number

    def _ranges(self, slots: object) -> list[object]:  # type: ignore[override]
        """Return nothing: no other device touches the card's memory but by copies, which flags order."""
        return []

    def _record_step(self, commands: CommandBuffer, step: Step) -> None:
        ready: Counter[Lane] = Counter()  # the transfers that nobody was told of
        before = Part(())
        for part in step.parts if isinstance(step, CarriedStep) else (Part(step.actions),):
            if part.arrivals or before.hurries or max(ready.values(), default=0) == _MOST_READY:
                self._record_flags(commands, ready, part.arrivals)
                ready.clear()
            elif before.actions:
                commands.record_order()
            self._record_actions(commands, part.actions)
            ready.update(part.sends)
            before = part
        if ready:
            self._record_flags(commands, ready, {})

    def _record_flags(self, commands: CommandBuffer, ready: Mapping[Lane, int], arrivals: Mapping[Lane, int]) -> None:
        """Raise the flags of the lanes on which something is ready, and wait for what is to have come."""
        sends = sum(number << _READY_BITS * (LANES * rank + lane) for (rank, lane), number in ready.items())
        lanes = itertools.product(range(MOST_RANKS), range(LANES))
        words = Carry(sends, _TURNS, tuple(arrivals.get(lane, 0) for lane in lanes))
        self.record_small(commands, "carry", pack(words))


def pieces_of(slab: Slab, plan: WirePlan) -> PiecesOf:
    """Return what says which bytes of a slot are in use: the payloads of the blocks, and their scales if there are any."""
    tail = plan.tail_at(slab.slot_nbytes)

    def found(slot: int, span: Span, final: bool) -> list[Piece]:
        form, first = plan.final if final else plan.contribution, slab.byte_of(slot)
        pieces = [(first, span.blocks * form.payload), (first + tail, span.blocks * form.tail)]
        return [(start, nbytes) for start, nbytes in pieces if nbytes]

    return found
