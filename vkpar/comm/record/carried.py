"""Writes down one rank's kernels of schedules whose slots are carried: with flags between the steps of a submission."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vkpar.abi import wire as abi
from vkpar.abi.wire import Carry
from vkpar.abi.words import pack
from vkpar.comm.record.kernels import Recorder
from vkpar.comm.record.score import LaidScore
from vkpar.comm.record.slot_copies import Sides, extents_of
from vkpar.comm.rig.carriers import FARTHER, KERNEL, MOST_RANKS
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.carried import LANES, CarriedPart, CarriedStep, Lane, Rounds, Taken
from vkpar.comm.schedule.steps import Reduce, SlotCopy, Step
from vkpar.graph import protocol
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.memory.buffer import SharedBuffer
from vkpar.vulkan.pump.ports import TransferPieces

_READY_BITS, _MOST_READY = 2, 3  # of the transfers on a lane that one launch tells of
_MOST_GROUPS = 1024  # the slots lie in the card's own memory, which many work-groups use best


class _OwnFlags(NamedTuple):
    """What a kernel waits for and raises by itself; 0 for what others do for it."""

    awaits: int = 0
    sends: int = 0


class CarriedRecorder(Recorder):
    """Writes down one rank's kernels on slots that copy engines carry from card to card."""

    _most_groups = _MOST_GROUPS
    _own = _OwnFlags()  # of the next kernel
    _shared: SharedBuffer  # the slots that all ranks share

    def _place(self, rig: Rig, rank: int) -> tuple[SharedBuffer, int]:
        assert rig.carriers is not None, "something carries"
        last, self._shared = rig.carriers.large, rig.transports[rank].shared()
        return rig.carriers.shared(rank), last.base + last.number

    def _ranges(self, slots: object) -> list[object]:  # type: ignore[override]
        """Return nothing: no other device touches the card's memory but by copies, which flags order."""
        return []

    def _record_copies(self, commands: CommandBuffer, copies: Sequence[SlotCopy]) -> None:
        """Record copies between this card's memory and the slots that all ranks share, all of them in or all out."""
        if copies:
            extents = extents_of(self._slab, self._spec.plan)
            Sides(self._shared, self._slots.range, self._nslots, extents, FARTHER).record(commands, copies)
        if copies and not copies[0].sends:
            commands.record_order()

    def _record_step(self, commands: CommandBuffer, step: Step) -> None:
        ready: Counter[Lane] = Counter()  # the transfers that nobody was told of
        before = CarriedPart(())
        for part in step.parts if isinstance(step, CarriedStep) else (CarriedPart(step.actions),):
            own = self._own_flags(part)
            arrivals = {} if own.awaits else part.arrivals
            urgent = ready and (part.arrivals or before.hurries or max(ready.values()) == _MOST_READY)
            if arrivals or urgent:
                self._record_flags(commands, ready, arrivals)
                ready.clear()
            elif before.actions:
                commands.record_order()
            self._record_copies(commands, part.fetched)
            self._own = own
            self._record_actions(commands, part.actions)
            self._own = _OwnFlags()
            self._record_copies(commands, part.published)
            ready.update(() if own.sends else part.sends)
            before = part
        if ready:
            self._record_flags(commands, ready, {})

    def _own_flags(self, part: CarriedPart) -> _OwnFlags:
        """Return what the kernel of ``part`` does about flags, where one launch of a kernel does all of it."""
        action = part.actions[0] if len(part.actions) == 1 else None
        if not isinstance(action, Reduce) or part.fetched or part.published:
            return _OwnFlags()
        if self._processor != "gpu" or self._copier:
            return _OwnFlags()
        groups = self._groups_of(action)
        if len(groups) > 1:
            return _OwnFlags()
        waits = groups[0] <= protocol.MOST_WAITING
        return _OwnFlags(word(part.arrivals) if waits else 0, word(Counter(part.sends)))

    def _words(self, action: Reduce) -> abi.Reduce:
        return super()._words(action)._replace(**self._own._asdict())

    def _record_flags(self, commands: CommandBuffer, ready: Mapping[Lane, int], arrivals: Mapping[Lane, int]) -> None:
        """Raise the flags of the lanes on which something is ready, and wait for what is to have come."""
        self.record_small(commands, KERNEL, flags(ready, arrivals))


def flags(ready: Mapping[Lane, int], arrivals: Mapping[Lane, int]) -> bytes:
    """Return what raises the flags of lanes on which something is ready, and waits for what is to have come."""
    lanes = itertools.product(range(MOST_RANKS), range(LANES))
    return pack(Carry(word(ready), tuple(arrivals.get(lane, 0) for lane in lanes)))


def word(counts: Mapping[Lane, int]) -> int:
    """Return so many transfers of lanes as kernels are told of them; 0 where those of a lane are too many."""
    if any(number > _MOST_READY for number in counts.values()):
        return 0
    return sum(number << _READY_BITS * (LANES * rank + lane) for (rank, lane), number in counts.items())


class GraphCarrier:
    """Has the slots of one graph's collectives carried: its steps raise flags and wait for them by themselves."""

    def __init__(self, rig: Rig) -> None:
        assert rig.carriers is not None, "something carries"
        self._carriers, self._rounds = rig.carriers, Rounds()

    def carry(self, laid: LaidScore) -> None:
        """Add flags and transfers to the steps of a collective, the graph's next one."""
        if laid.carried is None:  # a barrier, whose ranks wait for whole submissions
            laid.steps[:1] = [step._replace(opens=True) for step in laid.steps[:1]]
            self._rounds.cut()
            return
        slab, plan = laid.carried
        taken = self._rounds.take(laid.listed, extents_of(slab, plan))
        laid.steps = [self._step(step, item) for step, item in zip(laid.steps, taken, strict=True)]

    def _step(self, step: protocol.Step, taken: Taken) -> protocol.Step:
        part = taken.part
        assert part is not None, "in a graph all ranks are one group"

        def record(handle: Any, ready: Mapping[Lane, int], arrivals: Mapping[Lane, int]) -> None:
            self._carriers.record_flags(step.rank, handle, flags(ready, arrivals))

        told = protocol.Flags(part.arrivals, dict.fromkeys(part.sends, 1), record, word)
        sent = tuple(TransferPieces(*transfer) for transfer in taken.transfers)
        return step._replace(flags=told, opens=taken.opens, transfers=sent)
