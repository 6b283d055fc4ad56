"""One trace of everything: all devices, collectives and the host, on the host's clock."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from math import inf
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Final

from vkpar.comm.engine.engine import Engine
from vkpar.comm.observe.clocks import ClockLine
from vkpar.comm.observe.profile import Profile
from vkpar.comm.observe.steptimes import Places, named, slice_of, step_events
from vkpar.device import Device, living
from vkpar.errors import InvalidUsageError, VkparError
from vkpar.vulkan import tracing
from vkpar.vulkan.stamps import OPERATIONS, Allowance, DeviceStamps, Stamp

_log = logging.getLogger("vkpar")
_HOST: Final = 1  # the trace's process of the host; devices follow, by their numbers; 0 is an idle core to Perfetto
_QUEUES: Final = (
    100  # a device's first thread, and the host's for submissions: readers call one of its process' number main
)
_STEPS: Final = 100  # a device's threads for a communicator; they come next
_PYTHON: Final = 1_000_000  # the host's first thread of Python's; before are the submissions, by devices' numbers
_lock = threading.Lock()


class Trace:
    """What runs on all devices of the process inside one ``with vkpar.trace(path):`` block; written at its end.

    Attributes:
        path: where it is written to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stamps: dict[Device, DeviceStamps | str] = {}
        self._profiles: list[tuple[Profile, list[int]]] = []
        self._host: list[tuple[str, int, float, float, dict[str, Any]]] = []
        self._threads: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._begun = 0.0

    def __enter__(self) -> Trace:
        with _lock:
            if tracing.watcher is not None or self._begun:
                raise InvalidUsageError("traces do not nest: a process has one at a time, and each is entered once")
            self.path.write_text("")  # what cannot be written is said now
            self._begun = time.monotonic()
            for device in _open_devices():
                self.opened(device)
            tracing.watcher = self
        for engine in {each for device in _open_devices() for each in device.adopted() if isinstance(each, Engine)}:
            if not engine.closed:
                self.connected(engine)
        self._host.clear()  # what opening it took
        self._begun = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            if tracing.watcher is not self:
                return
            tracing.watcher = None
        for profile, _ in self._profiles:
            with suppress(VkparError):
                profile.__exit__(None, None, None)
        for device in list(self._stamps):
            self._finish(device)
        self.path.write_text(json.dumps(self._document()) + "\n")
        _log.info("the trace is in %s: open it at ui.perfetto.dev or chrome://tracing", self.path)

    # ---- what is told ----

    def opened(self, device: Device) -> None:
        """Take the times of a device from now on; the one that has begun the trace is told of twice."""
        if device in self._stamps:
            return
        logical = device.logical
        self._names[logical.number] = str(device)
        try:
            self._stamps[device] = DeviceStamps(logical)
        except VkparError as error:  # a queue without timestamps, or no memory: the program goes on
            self._stamps[device] = str(error)

    def closing(self, device: Device) -> None:
        """Read the times of a device that is about to be closed."""
        for profile, numbers in self._profiles:
            if device.logical.number in numbers:
                with suppress(VkparError):
                    profile.__exit__(None, None, None)
        self._finish(device)

    def _finish(self, device: Device) -> None:
        stamps = self._stamps.get(device)
        if isinstance(stamps, DeviceStamps):
            try:
                stamps.finish()
            except VkparError as error:
                _log.warning("the trace lacks what ran on %s: %s", device, error)

    def connected(self, engine: Engine) -> None:
        """Take the times of a communicator's steps from now on."""
        found = [each for device in engine.devices if isinstance(each := self._stamps.get(device), DeviceStamps)]
        profile = Profile(engine, Allowance(max((each.price for each in found), default=0.0)))
        try:
            profile.__enter__()
        except VkparError as error:
            _log.warning("the trace lacks a communicator's steps: %s", error)
        else:
            self._profiles.append((profile, [device.logical.number for device in engine.devices]))

    def host(self, name: str, begin: float, **told: Any) -> None:
        """Note what the calling thread did from ``begin`` until now."""
        ident = threading.get_ident()
        if ident not in self._threads:
            self._threads[ident] = threading.current_thread().name
        self._host.append((name, ident, begin, time.monotonic(), told))

    # ---- the document ----

    def _document(self) -> dict[str, Any]:
        events = [named("process_name", _HOST, 0, "host")]
        notes: list[dict[str, Any]] = []
        for device, stamps in self._stamps.items():
            number = device._logical.number
            events.append(named("process_name", _HOST + number, 0, self._names[number]))
            if isinstance(stamps, DeviceStamps):
                events += self._device_events(number, stamps)
                notes.append(self._note(number, stamps))
            else:
                notes.append({"device": self._names[number], "error": stamps})
        for index, (profile, numbers) in enumerate(self._profiles):
            title = f"communicator {index}: " if len(self._profiles) > 1 else ""
            first, flows = _QUEUES + _STEPS * (index + 1), 10_000_000 * (index + 1)
            events += step_events(
                profile.steps, Places([_HOST + number for number in numbers], first, self._begun, flows, title)
            )
        events += self._host_events()
        refused = [{"untimed": profile.allowance.refused} for profile, _ in self._profiles if profile.allowance]
        other = {"origin_monotonic_seconds": self._begun, "devices": notes, "communicators": refused}
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}

    def _line(self, stamps: DeviceStamps) -> ClockLine:
        return ClockLine(stamps.clock.bits, stamps.clock.period, stamps.start, stamps.end)

    def _note(self, number: int, stamps: DeviceStamps) -> dict[str, Any]:
        off = self._line(stamps).uncertainty(time.monotonic())
        if stamps.dropped:
            _log.warning(
                "the trace lacks %d operations of %s (it holds %d)", stamps.dropped, self._names[number], OPERATIONS
            )
        return {
            "device": self._names[number],
            "clock": stamps.clock.method,
            "uncertainty_us": 1e6 * off,
            "dropped": stamps.dropped,
            "estimated": sum(stamp.begin is None for stamp in stamps.stamps),
        }

    def _device_events(self, number: int, stamps: DeviceStamps) -> list[dict[str, Any]]:
        queues = list(dict.fromkeys(stamp.queue for stamp in stamps.stamps))
        process = _HOST + number
        events = [named("thread_name", process, thread, queue) for thread, queue in enumerate(queues, _QUEUES)]
        line = self._line(stamps)
        for thread, queue in enumerate(queues, _QUEUES):
            mine = [stamp for stamp in stamps.stamps if stamp.queue == queue]
            events += [
                self._slice(name, process, thread, begin, end, **told) for name, begin, end, told in placed(mine, line)
            ]
        if stamps.sent:
            events.append(named("thread_name", _HOST, _QUEUES + number, f"submissions to #{number}"))
            for each in stamps.sent:
                events.append(
                    self._slice("submit", _HOST, _QUEUES + number, each.begin, each.end, operations=each.operations)
                )
        return events

    def _host_events(self) -> list[dict[str, Any]]:
        threads = {ident: _PYTHON + index for index, ident in enumerate(self._threads)}
        events = [named("thread_name", _HOST, threads[ident], name) for ident, name in self._threads.items()]
        events += [
            self._slice(name, _HOST, threads[ident], begin, end, **told)
            for name, ident, begin, end, told in self._host[::-1]
        ]
        return events

    def _slice(self, name: str, process: int, thread: int, begin: float, end: float, **told: Any) -> dict[str, Any]:
        kind = "host" if process == _HOST else "device"
        return slice_of(name, kind, process, thread, begin - self._begun, end - self._begun, told)


def trace(path: str | os.PathLike[str]) -> Trace:
    """Return a context manager that writes what runs inside it to ``path``, for ui.perfetto.dev or chrome://tracing.

    The trace has a process for each device, with its operations by name and its copies from and to the host, and the
    steps of every communicator with their bytes and what they waited for; and one for the host: submissions, launches
    of graphs, and waits. Devices and communicators may be opened and closed inside. All times are on the host's clock.
    Leaving the block waits for what it has submitted.

    Timestamps take a device time, so that a trace has as many as three percent of the time that passes pay for.
    Operations without any are put between their neighbours and marked as estimated; of collectives and of launches of
    graphs some are left without their steps and operations then. A communicator in a trace cannot be profiled as well.

    Args:
        path: the file, which is written when the block ends.

    Raises:
        InvalidUsageError: on entering, inside another trace.
        OSError: on entering, the file cannot be written.

    Examples:
        >>> import json, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "trace.json")
        >>> with vkpar.trace(path):
        ...     b = vkpar.add(device.ones(3), 1)
        >>> len(json.load(open(path))["traceEvents"]) > 0
        True
    """
    return Trace(path)


def placed(stamps: Sequence[Stamp], line: ClockLine) -> Iterator[tuple[str, float, float, dict[str, Any]]]:
    """Yield the operations of one queue in their order: name, begin, end, and what is told of them.

    Those without timestamps are put between those that have some, each as long as others of its name take.
    """
    spans = [
        None if s.begin is None or s.end is None else (line.seconds(s.begin, s.asked), line.seconds(s.end, s.asked))
        for s in stamps
    ]
    usual: dict[str, list[float]] = {}
    for stamp, span in zip(stamps, spans, strict=True):
        if span is not None:
            usual.setdefault(stamp.name, []).append(span[1] - span[0])
    lengths = {name: median(found) for name, found in usual.items()}
    ends = list(accumulate(reversed([inf if span is None else span[0] for span in spans]), min))[::-1]
    at = -inf
    for stamp, span, until in zip(stamps, spans, ends, strict=True):
        begin, end = span or (max(at, stamp.asked), inf)
        begin = min(begin, until)
        at = end = min(end, begin + lengths.get(stamp.name, 0.0), until) if span is None else end
        told = {"after_the_call_us": round(1e6 * (begin - stamp.asked), 3)}
        yield stamp.name, begin, end, told if span else {**told, "estimated": True}


def _open_devices() -> list[Device]:
    """Return the devices of this process that are open, in the order of their opening."""
    return sorted((device for device in living if not device.closed), key=lambda device: device.logical.number)


_asked: Trace | None = None


def _begin(path: str) -> None:
    """Trace this process to its end; the processes that it starts are not."""
    global _asked
    if _asked is None and tracing.watcher is None:
        os.environ.pop("VKPAR_TRACE", None)
        where = Path(path)
        _asked = Trace(where if not where.exists() else where.with_name(f"{where.name}.{os.getpid()}"))
        _asked.__enter__()
        atexit.register(_asked.__exit__, None, None, None)


tracing.asked = _begin
