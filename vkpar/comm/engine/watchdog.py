"""The watchdog: a thread that fails a communicator whose oldest collective stands still."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from vkpar.comm.engine.flights import Flight
from vkpar.comm.engine.health import Health
from vkpar.errors import InvalidUsageError, within_limits

_SHORTEST, _LONGEST = 0.02, 0.25  # seconds between two looks
_IDLE_LOOKS = 8  # looks that find nothing pending, before the thread parks


class Watchdog:
    """Looks at a communicator's timelines a few times within its timeout; parked while nothing is pending.

    It holds the communicator weakly, because its own thread must not keep a dropped communicator alive. It is woken
    through a queue that is implemented in C: an interrupt cannot leave that locked.

    Attributes:
        parked: True while only :meth:`wake` makes it look.

    Args:
        health: the communicator's health.
        settle: a weak method that the watchdog calls after a failure, as long as it exists.

    Raises:
        OutOfMemoryError: the system starts no thread.
    """

    def __init__(self, health: Health, settle: weakref.ref[Callable[[], None]]) -> None:
        self._health = weakref.ref(health)
        self._settle = settle
        self._pending = health.flights.pending
        self._patience = health.timeout
        self._tick = min(_LONGEST, max(_SHORTEST, self._patience / 8))
        self._wake: SimpleQueue[None] = SimpleQueue()
        self.parked = True
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="vkpar-watchdog", daemon=True)
        with within_limits("a communicator's watchdog"):
            self._thread.start()

    def wake(self) -> None:
        """Wake the thread where it is parked: a collective is pending now."""
        if self.parked and self._wake.empty():  # else it is being woken; waking takes longer than an enqueue
            self._wake.put(None)

    def stop(self) -> None:
        """End the thread and wait for it; it may be giving up a device that hangs."""
        self._stopped = True
        self._wake.put(None)
        if self._thread is not threading.current_thread():
            while self._thread.is_alive():
                self._thread.join(_LONGEST)

    def _run(self) -> None:
        progress = _Progress(self._patience)
        idle = _IDLE_LOOKS + 1
        while self._rest(idle, progress.left()):
            health = self._health()
            if health is None or health.closed or not self._look(health, progress):
                return
            del health
            idle = 0 if self._pending else idle + 1

    def _rest(self, idle: int, left: float) -> bool:
        """Sleep for a tick, at most ``left`` seconds, or until something is pending; return False once it is to end."""
        self.parked = idle > _IDLE_LOOKS
        # A caller adds a collective and then wakes; this thread parks and then looks: one of them sees the other.
        if self.parked and not self._pending:
            self._wake.get()
        self.parked = False
        with contextlib.suppress(Empty):
            while True:  # left-over tokens would cut the next rests short
                self._wake.get_nowait()
        if not self._stopped:
            with contextlib.suppress(Empty):  # stop() wakes it, and at most one late wake()
                self._wake.get(timeout=max(_SHORTEST, min(self._tick, left)))
        return not self._stopped

    def _look(self, health: Health, progress: _Progress) -> bool:
        """Forget finished collectives; fail the communicator where the oldest one stands still.

        Returns False once the communicator is closed or has failed.
        """
        try:
            reached = health.look()
            if reached is not None:
                health.flights.drop_done(reached)
                oldest = next(iter(list(self._pending)), None)
                if oldest is None:
                    progress.forget()
                elif progress.stalled(oldest, reached):
                    health.fail_stalled(oldest)
        except InvalidUsageError:
            return False  # closed since
        if not health.failed:
            return True
        settle = self._settle()
        if settle is not None:
            settle()
        return False


class _Progress:
    """Watches timelines for standing still since the oldest collective could start."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._flight: Flight | None = None
        self._seen: Sequence[int] = ()
        self._since = 0.0

    def left(self) -> float:
        """Return after how many seconds it can be too late, where nothing moves any more.

        Whoever waits for this process, which waits itself, is told within a second why.
        """
        return self._patience if self._flight is None else self._since + self._patience - time.monotonic()

    def forget(self) -> None:
        """Watch nothing."""
        self._flight = None

    def stalled(self, flight: Flight, reached: Sequence[int]) -> bool:
        """Say whether no timeline has moved for the timeout since ``flight`` could start."""
        now = time.monotonic()
        if flight is not self._flight or not flight.started(reached) or reached != self._seen:
            self._flight, self._seen, self._since = flight, reached, now
        return now - self._since >= self._patience
