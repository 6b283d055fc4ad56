"""Measures until clocks have risen.

GPUs that were idle begin at a fifth of their clock, and take a quarter of a second of work to rise; a GPU that waits
for another one half of the time takes seconds, step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from vkpar.device import Device

_RISE: Final = 0.4  # seconds of work after which a GPU's clock has risen
_RISE_CPU: Final = 0.1
_LONGEST: Final = 3.0
_QUIET: Final = 5  # turns without a fall
_STILL: Final = 0.98  # of the least before: what is not below it is no fall


def settled(measures: Sequence[Callable[[], float]], devices: Sequence[Device]) -> list[float]:
    """Return the least of what each of ``measures`` returns, called in turns until none falls any more."""
    least = [float("inf")] * len(measures)
    start = fell = time.perf_counter()
    cpu = all(device.info.is_cpu for device in devices)
    rise, now = _RISE_CPU if cpu else _RISE, start
    while True:
        begun, found = now, [measure() for measure in measures]
        now = time.perf_counter()
        quiet = max(rise / 4, 0 if cpu else _QUIET * (now - begun))
        if any(new < _STILL * old for new, old in zip(found, least, strict=True)):
            fell = now
        least = [min(pair) for pair in zip(found, least, strict=True)]
        if now - start >= _LONGEST or (now - start >= rise and now - fell >= quiet):
            return least


def warm_up(run: Callable[[], float], devices: Sequence[Device]) -> None:
    """Make calls, which return their seconds, until the clocks of GPUs have risen; none where there is a CPU."""
    if not any(device.info.is_cpu for device in devices):
        settled([run], devices)
