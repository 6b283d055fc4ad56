"""The profile that is open on an engine: collectives are recorded with timestamps until it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from vkpar.comm.engine.cache import ProgramCache
from vkpar.comm.engine.health import Health
from vkpar.comm.record.recorder import StepRecorder
from vkpar.comm.record.timestamps import Collector
from vkpar.errors import InvalidUsageError, VulkanError


class Profile(Protocol):
    """What an engine knows of the profile that is open on it."""

    @property
    def collector(self) -> Collector:
        """What takes the times."""

    def finish(self, *, calibrate: bool) -> None:
        """Work out the times of all steps that were read so far."""


class Profiling:
    """Opens and ends the profiles of one engine, one at a time.

    Attributes:
        profile: the profile that is open; None for none.
    """

    def __init__(
        self,
        health: Health,
        cache: ProgramCache,
        lock: threading.RLock,
        recorder: StepRecorder,
        sweep: Callable[[], None],
    ) -> None:
        self._health, self._cache, self._lock, self._recorder, self._sweep = health, cache, lock, recorder, sweep
        self.profile: Profile | None = None

    def check_none(self) -> None:
        """Refuse a profile inside a profile.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: the communicator is closed, or a profile is open.
        """
        with self._health.gate.lock():
            self._health.gate.check()
            self._health.check_failure()
            if self.profile is not None:
                raise InvalidUsageError("profiles do not nest: a communicator has one at a time")

    def begin(self, profile: Profile) -> None:
        """Record every collective anew from now on, with timestamps.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: the communicator is closed, or another profile is open.
        """
        with self._health.gate.lock(), self._lock:
            self.check_none()
            self.profile = profile
            self._cache.retire_all()
            self._recorder.collector = profile.collector

    def end_timing(self) -> None:
        """Record every collective anew, without timestamps; the timed ones are freed once they are done."""
        with self._lock:
            if self._recorder.collector is not None:
                self._recorder.collector = None
                self._cache.retire_all()

    def end(self, profile: Profile, close: Callable[[], None], *, calibrate: bool) -> None:
        """Let ``profile`` read the times of all that is done, and free what was recorded for it.

        Args:
            profile: the profile that ends.
            close: closes the engine; it waits for a close that another thread has begun.
            calibrate: let the profile look at the devices' clocks once more.
        """
        try:
            with self._health.gate.lock(), self._lock:
                self._health.gate.check()
                profile.collector.read_done()
        except InvalidUsageError:
            close()  # the other thread's close reads the times: wait for that
        finally:
            if self.profile is profile:
                self.profile = None
        profile.finish(calibrate=calibrate and not self._health.failed)
        with suppress(InvalidUsageError), self._health.gate.lock(), self._lock:
            self._health.gate.check()
            if not self._health.failed:
                self._sweep()

    def read_last(self) -> None:
        """Let an open profile read the times that can still be read: its communicator is about to be freed."""
        if self.profile is not None:
            with suppress(VulkanError):  # a lost device
                self.profile.collector.read_done()
            self.profile.finish(calibrate=False)
