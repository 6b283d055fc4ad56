"""The check of ``VKPAR_DEBUG=slots``: the generations of the slots."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Protocol

from vkpar.abi.wire import SlotCheck
from vkpar.abi.words import pack, padded
from vkpar.comm.rig.arena import Arena
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.steps import Step
from vkpar.errors import CommunicatorError, UnsupportedError
from vkpar.vulkan.command import CommandBuffer

SLOTS = "slots"
_PAIRS = 8  # of one launch of slot_check
_REPORT = struct.Struct("<4I")
_FREE = 0  # the generation of a slot that is being written


class SmallKernels(Protocol):
    """Records built-in kernels that touch single words."""

    def record_small(self, commands: CommandBuffer, name: str, push: bytes) -> None:
        """Record kernel ``name`` over the staging memory."""


class SlotChecks:
    """Numbers the contents of every slot in the global order, and has each rank compare the numbers that it reads.

    A writer marks its slots as being written, then stamps them with their new generation; a reader compares before
    and after it reads. Recorded programs hold the generations, so that nothing is replayed while this is on.

    Raises:
        UnsupportedError: the rig has copies of the slots, whose numbers are not checked.
    """

    def __init__(self, rig: Rig) -> None:
        if rig.copies:
            raise UnsupportedError("VKPAR_DEBUG=slots does not follow slots through copies; take VKPAR_PATH=fused")
        self._rig = rig
        self._arena: Arena = rig.arena
        self._generations = [_FREE] * rig.arena.nslots
        self._numbers = itertools.count(1)

    def record_before(self, recorder: SmallKernels, commands: CommandBuffer, step: Step) -> None:
        """Record the checks before the step's own kernels."""
        self._launch(recorder, commands, step, [(slot, self._generations[slot]) for slot in step.reads], write=False)
        self._launch(recorder, commands, step, [(slot, _FREE) for slot in step.writes], write=True)

    def record_after(self, recorder: SmallKernels, commands: CommandBuffer, step: Step) -> None:
        """Record the checks after the step's kernels, and number its writes."""
        self._launch(recorder, commands, step, [(slot, self._generations[slot]) for slot in step.reads], write=False)
        for slot in step.writes:
            self._generations[slot] = next(self._numbers)
        self._launch(recorder, commands, step, [(slot, self._generations[slot]) for slot in step.writes], write=True)

    def _launch(
        self,
        recorder: SmallKernels,
        commands: CommandBuffer,
        step: Step,
        stamps: Sequence[tuple[int, int]],
        *,
        write: bool,
    ) -> None:
        for start in range(0, len(stamps), _PAIRS):
            pairs = stamps[start : start + _PAIRS]
            words = [word for slot, generation in pairs for word in (self._stamp(slot) // 4, generation)]
            report = self._arena.report_of(step.rank) // 4
            check = SlotCheck(int(write), report, len(pairs), 0, padded(words, 2 * _PAIRS))
            recorder.record_small(commands, "slot_check", pack(check))

    def _stamp(self, slot: int) -> int:
        small, large = self._arena.small, self._arena.large
        return (small if slot < large.base else large).stamp_of(slot)

    def check(self) -> None:
        """Raise the first wrong generation that a rank has read.

        Raises:
            CommunicatorError: a slot was read while it held another generation than the global order says.
        """
        for rank, transport in enumerate(self._rig.transports):
            raw = transport.view(self._arena.report_of(rank), _REPORT.size)
            wrong, stamp, expected, found = _REPORT.unpack(bytes(raw))
            if wrong:
                slot = next(slot for slot in range(self._arena.nslots) if self._stamp(slot) == 4 * stamp)
                details = {"rank": rank, "slot": slot, "expected": expected, "found": found}
                raise CommunicatorError(
                    f"rank {rank} read slot {slot} at generation {found}, not {expected}: a wait is missing", details
                )
