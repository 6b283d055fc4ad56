"""Where the time of collectives goes: each step's begin and end on the host's clock, and what it waited for."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vkpar.comm.engine.work import Work
from vkpar.comm.observe.steptimes import PhaseSummary, StepTime, step_times, summarize, table, trace_events
from vkpar.comm.record.timestamps import Collector
from vkpar.comm.rig import links
from vkpar.errors import InvalidUsageError, VkparError
from vkpar.vulkan.query import DeviceClock, Sample

if TYPE_CHECKING:
    from vkpar.comm.communicator import Communicator

_DRIFT = 1e-4  # of a device's clock against the host's, at most, where it was not measured


class ClockLine:
    """A device's counter in seconds of the host's clock: a line through what both said at two moments.

    Of the slopes that the two samples' uncertainties allow, it has the one nearest to the driver's period, so that
    short profiles do not take uncertainty for drift.

    Args:
        bits: valid bits of the counter, which begins anew after the last.
        period: seconds of a tick, as the driver says.
        start: both clocks at the start of the profile.
        end: both at its end; None where the device could not be asked any more.

    Attributes:
        slope: seconds of a tick.
    """

    def __init__(self, bits: int, period: float, start: Sample, end: Sample | None = None) -> None:
        self._cycle = 1 << bits
        self._start = start
        self._measured = end is not None
        self._spread = start.uncertainty
        self.slope = period
        self._origin = start.seconds  # at the start's ticks
        if end is not None:
            ticks = self._since_start(end.ticks, end.seconds)
            slack = start.uncertainty + end.uncertainty
            elapsed = end.seconds - start.seconds
            if ticks > 0:
                self.slope = min(max(period, (elapsed - slack) / ticks), (elapsed + slack) / ticks)
            miss = elapsed - self.slope * ticks  # shared between the two ends
            self._origin += miss / 2
            self._spread = max(start.uncertainty, end.uncertainty) + abs(miss) / 2

    def _since_start(self, ticks: int, near: float) -> int:
        """Return the ticks since the start, at a moment within half a cycle of ``near`` seconds."""
        since = (ticks - self._start.ticks) % self._cycle
        expected = (near - self._start.seconds) / self.slope
        return since + round((expected - since) / self._cycle) * self._cycle

    def seconds(self, ticks: int, near: float) -> float:
        """Return the moment of ``ticks`` in seconds; ``near`` is one within half a cycle of the counter."""
        return self._origin + self.slope * self._since_start(ticks, near)

    def uncertainty(self, until: float) -> float:
        """Return by how many seconds moments up to ``until`` may be off."""
        return self._spread + (0.0 if self._measured else _DRIFT * max(0.0, until - self._start.seconds))


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
    """What the collectives of one ``with communicator.profile() as profile:`` did; filled when the block is left.

    Leaving it waits for them. Where the block raises, only what was done by then is taken down.

    Attributes:
        steps: every step of every collective, in the order of enqueueing, then of the schedule.
        clocks: by rank, how times were brought to the host's clock.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator: Communicator | None = communicator
        self._names = [device.name for device in communicator.devices]
        self._bridged = {(link.src, link.dst) for link in communicator.links() if link.kind == links.BRIDGED}
        self._device_clocks: list[DeviceClock] = []
        self._starts: list[Sample] = []
        self._entered = False
        self.collector = Collector(communicator)
        self.steps: tuple[StepTime, ...] = ()
        self.clocks: tuple[RankClock, ...] = ()

    # ---- what it says ----

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

    # ---- how it is made ----

    def __enter__(self) -> Profile:
        communicator = self._communicator
        if communicator is None or self._entered:
            raise InvalidUsageError("a profile is entered once: ask the communicator for another one")
        communicator._check_profile()
        self._device_clocks = [DeviceClock(device.logical) for device in communicator.devices]
        self._starts = [clock.sample(_patience(communicator)) for clock in self._device_clocks]
        self._entered = True
        try:
            communicator._begin_profile(self)
        except BaseException:
            if communicator._profile is self:  # an interrupt: nobody will leave it
                communicator._end_timing()
                communicator._end_profile(self, calibrate=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        communicator = self._communicator
        if communicator is None:
            return  # it was closed inside the block
        communicator._end_timing()
        try:
            if kind is None:
                for flight in self.collector.flights():
                    Work(communicator, ()).launch(flight).wait()
                    communicator.check_failure()
        finally:
            communicator._end_profile(self, calibrate=kind is None)

    def finish(self, *, calibrate: bool) -> None:
        """Work out the steps of what was read so far; a second call does nothing.

        Args:
            calibrate: look at the devices' clocks once more, which may wait for what is pending.
        """
        communicator, self._communicator = self._communicator, None
        if communicator is None:
            return
        ends: list[Sample | None] = [None] * len(self._names)
        if calibrate:
            ends = [_last_sample(clock, _patience(communicator)) for clock in self._device_clocks]
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


def _patience(communicator: Communicator) -> float | None:
    return communicator.timeout if math.isfinite(communicator.timeout) else None


def _last_sample(clock: DeviceClock, timeout: float | None) -> Sample | None:
    """Return both clocks now; None where the device is closed or lost, or busy for longer than ``timeout`` seconds."""
    with suppress(VkparError):
        return clock.sample(timeout)
    return None
