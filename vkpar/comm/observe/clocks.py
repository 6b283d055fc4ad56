"""Devices' counters brought to the host's clock."""

from __future__ import annotations

from vkpar.vulkan.query import Sample

_DRIFT = 1e-4  # of a device's clock against the host's, at most, where it was not measured


class ClockLine:
    """A device's counter in seconds of the host's clock: a line through two samples of both clocks.

    Of the slopes that the samples' uncertainties allow, the line has the slope nearest to the driver's period, so that
    short profiles do not take uncertainty for drift.

    Args:
        bits: valid bits of the counter, which begins anew when they overflow.
        period: seconds of a tick, as the driver says.
        start: both clocks at the start of the profile.
        end: both clocks at its end; None where the device could not be asked any more.

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
