"""The watchdog: a thread that fails a communicator whose oldest collective stands still."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from vkpar.comm.engine.flights import Flight
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from vkpar.comm.engine.lifecycle import Lifecycle

_SHORTEST, _LONGEST = 0.02, 0.25  # seconds between two looks
_IDLE_LOOKS = 8  # without anything pending, before the thread parks


class Watchdog:
    """Looks at a communicator's timelines a few times within its timeout; parked while nothing is pending.

    It holds the communicator weakly: one that is dropped must not be kept alive by its own thread. It is woken through
    a queue that is implemented in C: an interrupt cannot leave that locked.
    """

    def __init__(self, communicator: Lifecycle) -> None:
        self._communicator = weakref.ref(communicator)
        self._patience = communicator.timeout
        self._tick = min(_LONGEST, max(_SHORTEST, self._patience / 8))
        self._pending: deque[Flight] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._parked = True
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="vkpar-watchdog", daemon=True)
        self._thread.start()

    def watch(self, flight: Flight) -> None:
        """Look after a collective, in the order of enqueueing."""
        self._pending.append(flight)
        if self._parked and self._wake.empty():  # else it is being woken; waking takes longer than an enqueue
            self._wake.put(None)

    def oldest(self, reached: Sequence[int]) -> Flight | None:
        """Return the oldest collective that is not done, given the ranks' timeline values."""
        return next((flight for flight in list(self._pending) if not flight.done(reached)), None)

    def stop(self) -> None:
        """End the thread; it may be in the middle of giving up a device that hangs."""
        self._stopped = True
        self._wake.put(None)
        if self._thread is not threading.current_thread():
            while self._thread.is_alive():
                self._thread.join(_LONGEST)

    def _run(self) -> None:
        progress = _Progress(self._patience)
        idle = _IDLE_LOOKS + 1
        while self._rest(idle):
            communicator = self._communicator()
            if communicator is None or communicator.closed or not self._look(communicator, progress):
                return
            del communicator
            idle = 0 if self._pending else idle + 1

    def _rest(self, idle: int) -> bool:
        """Sleep for a tick, or until there is something to do; False when it is time to end."""
        self._parked = idle > _IDLE_LOOKS
        if self._parked and not self._pending:  # in the other order than watch() has them: one of the two sees it
            self._wake.get()
        self._parked = False
        with contextlib.suppress(Empty):
            while True:  # what is left would cut the rests to come short
                self._wake.get_nowait()
        if not self._stopped:
            with contextlib.suppress(Empty):
                self._wake.get(timeout=self._tick)  # stop() wakes it, and at most one watch() that came late
        return not self._stopped

    def _look(self, communicator: Lifecycle, progress: _Progress) -> bool:
        """Drop what is done; fail the communicator where the oldest collective stands still. False at the end."""
        try:
            reached = communicator.look()
        except InvalidUsageError:
            return False  # closed since
        while reached is not None and self._pending and (self._pending[0].done(reached) or self._was_cut_short()):
            self._pending.popleft()
        if reached is not None and self._pending and progress.stalled(self._pending[0], reached):
            communicator.stalled(self._pending[0])
        if not communicator.failed:
            return True
        communicator.settle()
        return False

    def _was_cut_short(self) -> bool:
        """Say whether the oldest collective was interrupted before it was taken down: the next one was already."""
        return self._pending[0].starts is None and len(self._pending) > 1 and self._pending[1].starts is not None


class _Progress:
    """Watches timelines for standing still since the oldest collective could start."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._flight: Flight | None = None
        self._seen: Sequence[int] = ()
        self._since = 0.0

    def stalled(self, flight: Flight, reached: Sequence[int]) -> bool:
        """Say whether nothing has moved for too long."""
        now = time.monotonic()
        if flight is not self._flight or not flight.started(reached) or reached != self._seen:
            self._flight, self._seen, self._since = flight, reached, now
        return now - self._since >= self._patience
