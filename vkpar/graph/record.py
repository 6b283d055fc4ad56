"""Turns stretches into command buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from vkpar.device import Device
from vkpar.graph.fusion import Fused
from vkpar.graph.params import Params
from vkpar.graph.protocol import Collective, Flags, Recorded, Step, Timer
from vkpar.graph.stretches import Stretch
from vkpar.vulkan.capturing import Operation
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.pump.ports import Batch
from vkpar.vulkan.recording import Recording


class Recorder:
    """Records one graph; a second recording of it takes times.

    Attributes:
        operations: how many were recorded; ``barriers``: between them.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        stretches: Sequence[Stretch],
        collectives: Sequence[Collective],
        params: Params,
        touches: Sequence[tuple[int, ...]],
    ) -> None:
        self._devices, self._stretches, self._collectives, self._params = devices, stretches, collectives, params
        self._touches = touches
        self.operations = self.barriers = 0

    def __call__(self, timers: Mapping[int, Timer]) -> Recorded:
        """Record it.

        Args:
            timers: by rank, for a profile. What the collectives hold, and the parameters, belong to the recording that
                has none, which is the first.

        Raises:
            OutOfMemoryError: no room for command buffers.
        """
        with ExitStack() as undo:
            recordings: dict[int, Recording] = {}
            batches: list[Batch] = []
            most = max((stretch.rank + 1 for stretch in self._stretches), default=0)
            phases: list[list[str]] = [[] for _ in range(max(len(self._devices), most))]
            for stretch in self._stretches:
                rank = stretch.rank
                if stretch.items and stretch.items[0].alone:
                    command = stretch.items[0].content.errand
                else:
                    if rank not in recordings:
                        recordings[rank] = Recording(self._devices[rank].logical.stream)
                        undo.callback(recordings[rank].close)
                    command = _record(stretch, recordings[rank], timers.get(rank))
                batches.append(
                    Batch(
                        rank,
                        command,
                        () if stretch.carried else stretch.reads,
                        stretch.writes,
                        carried=tuple(stretch.reads) if stretch.carried else (),
                        opens=stretch.opens,
                        transfers=stretch.transfers,
                    )
                )
                phases[rank].append(stretch.phase)
            parts: list[tuple[int, Any]] = list(recordings.items())
            if not timers:
                counts = [recording.stats() for recording in recordings.values()]
                self.operations, self.barriers = (sum(pair[index] for pair in counts) for index in (0, 1))
                parts += self._params.record(undo)
                parts += [part for collective in self._collectives for part in collective.parts]
            undo.pop_all()
        label = {"operations": self.operations, "collectives": len(self._collectives)}
        return Recorded(
            batches,
            phases,
            parts,
            label,
            [(stretch.received_nbytes, stretch.sent_nbytes) for stretch in self._stretches],
            self._touches,
            [sum(1 + len(each.items) for each in self._stretches if each.rank == rank) for rank in range(len(phases))],
        )


def _record(stretch: Stretch, recording: Recording, timer: Timer | None) -> Any:
    """Record a stretch and return its command buffer."""
    command = recording.begin()
    if timer is not None:
        timer.record_begin(CommandBuffer(command))
        recording.strange()
    raised: Flags | None = None  # by the step before, which nobody was told of: whoever waits next tells
    for item in stretch.items:
        flags = _flags_of(item.content)
        _record_flags(raised, flags, command, recording)
        raised = flags if flags is not None and flags.raises else None
        if isinstance(item.content, Operation):
            recording.add(item.content)
        elif isinstance(item.content, Fused):
            _record_fused(item.content, command, recording)
        else:
            item.content.record(command)
            recording.strange()
        if timer is not None:
            timer.record_mark(CommandBuffer(command), item.what)
    _record_flags(raised, None, command, recording)
    if timer is not None:
        timer.record_end(CommandBuffer(command))
    recording.end()
    return command


def _flags_of(content: Any) -> Flags | None:
    """Return the flags of a step, or those that operations leave which do its work."""
    return content.flags if isinstance(content, (Fused, Step)) else None


def _record_flags(raised: Flags | None, flags: Flags | None, command: Any, recording: Recording) -> None:
    """Record what raises flags that are due, and what the next item waits for."""
    waits = flags if flags is not None and flags.waits else None
    known = raised or waits
    if known is not None:
        known.record(command, raised.raises if raised else {}, waits.waits if waits else {})
        recording.strange()


def _record_fused(fused: Fused, command: Any, recording: Recording) -> None:
    """Record a step whose kernels others stand for."""
    if fused.step.reads and fused.step.flags is None:  # what comes before is ordered by the step's own barrier
        fused.step.around(command, after=False)
    for operation in fused.operations:
        recording.add(operation)
    if fused.step.writes:
        fused.step.around(command, after=True)
        recording.strange()
