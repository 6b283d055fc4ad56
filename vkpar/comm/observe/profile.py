"""Where the time of collectives goes: each step's begin and end on the host's clock, and what it waited for."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from vkpar.comm.engine.engine import Engine
from vkpar.comm.observe.clocks import ClockLine
from vkpar.comm.observe.collector import Collector
from vkpar.comm.observe.steptimes import PhaseSummary, StepTime, step_times, summarize, table, trace_events
from vkpar.comm.rig import links
from vkpar.errors import InvalidUsageError, UnsupportedError, VkparError
from vkpar.vulkan.query import DeviceClock, Sample
from vkpar.vulkan.stamps import Allowance


@dataclass(frozen=True)
class RankClock:
    """How one rank's times came to the host's clock.

    Attributes:
        method: the extension that reads both clocks, or ``"measured"``: the host's clock around a lone timestamp.
        uncertainty_us: by how many us a time may be off.
    """

    rank: int
    device: str
    method: str
    uncertainty_us: float


class Profile:
    """The steps of all collectives of one ``with communicator.profile() as profile:`` block, filled at its end.

    Leaving the block waits for its collectives. Where the block raises, the profile has only the collectives that were
    done by then.

    Attributes:
        steps: every step of every collective, in the order of enqueueing, then of the schedule.
        clocks: by rank, how the device's times were brought to the host's clock.
        allowance: which collectives are timed; None for all.
    """

    def __init__(self, engine: Engine, allowance: Allowance | None = None) -> None:
        self._engine: Engine | None = engine
        self._names = [device.name for device in engine.devices]
        self._bridged = {(link.src, link.dst) for link in engine.rig.links if link.kind == links.BRIDGED}
        self._device_clocks: list[DeviceClock] = []
        self._starts: list[Sample] = []
        self._entered = False
        self.allowance = allowance
        self.collector = Collector(engine.health, allowance)
        self.steps: tuple[StepTime, ...] = ()
        self.clocks: tuple[RankClock, ...] = ()

    # ---- reports ----

    def summary(self) -> list[PhaseSummary]:
        """Return a row per rank and phase: times, rates and waits."""
        return summarize(self.steps)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "clocks": [asdict(clock) for clock in self.clocks],
            "summary": [asdict(row) for row in self.summary()],
            "steps": [asdict(step) for step in self.steps],
        }

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as Chrome trace events, for chrome://tracing or ui.perfetto.dev.

        Raises:
            OSError: ``path`` cannot be written.
        """
        Path(path).write_text(json.dumps(trace_events(self.steps, self._names)) + "\n")

    def __str__(self) -> str:
        clocks = (
            f"rank {clock.rank}: {clock.device}; clock: {clock.method}, within {clock.uncertainty_us:.1f} us"
            for clock in self.clocks
        )
        return "\n".join([*clocks, *table(self.summary())])

    def __repr__(self) -> str:
        state = "" if self.clocks else ", under way"
        return f"<vkpar.comm.observe.profile.Profile of {len(self.steps)} steps{state}>"

    # ---- taking it ----

    def __enter__(self) -> Profile:
        engine = self._engine
        if engine is None or self._entered:
            raise InvalidUsageError("a profile is entered once: ask the communicator for another one")
        if engine.rig.world is not None:
            raise UnsupportedError("the steps of a communicator over several processes are not timed")
        engine.profiling.check_none()
        self._device_clocks = [DeviceClock(device.logical) for device in engine.devices]
        self._starts = [clock.sample(engine.health.timeout) for clock in self._device_clocks]
        self._entered = True
        try:
            engine.profiling.begin(self)
        except BaseException:
            if engine.profiling.profile is self:  # an interrupt: nobody will leave it
                engine.profiling.end_timing()
                engine.profiling.end(self, engine.close, calibrate=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine = self._engine
        if engine is None:
            return  # it was closed inside the block
        engine.profiling.end_timing()
        try:
            if kind is None:
                self.collector.wait()
        finally:
            engine.profiling.end(self, engine.close, calibrate=kind is None)

    def finish(self, *, calibrate: bool) -> None:
        """Work out the times of all steps that were read so far; a second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        ends: list[Sample | None] = [None] * len(self._names)
        if calibrate:
            ends = [_last_sample(clock, engine.health.timeout) for clock in self._device_clocks]
        lines = [
            ClockLine(clock.bits, clock.period, start, end)
            for clock, start, end in zip(self._device_clocks, self._starts, ends, strict=True)
        ]
        self.steps = step_times(self.collector.runs, lines, self._names, self._bridged)
        until = max((step.end for step in self.steps), default=0.0)
        self.clocks = tuple(
            RankClock(rank, self._names[rank], clock.method, 1e6 * lines[rank].uncertainty(until))
            for rank, clock in enumerate(self._device_clocks)
        )
        self.collector.close()


def _last_sample(clock: DeviceClock, timeout: float) -> Sample | None:
    """Return both clocks now; None where the device is closed or lost, or busy for longer than ``timeout`` seconds."""
    with suppress(VkparError):
        return clock.sample(timeout)
    return None
