"""The flight recorder: a record of each collective under way and of the last ones, and their descriptions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

_KEPT = 256

Place = tuple[int, str]  # of a queue: whose it is, and the name of its queue


class Flight:
    """One collective under way, or done.

    Attributes:
        op: the collective's name; ``sequence`` is its number in its communicator.
        label: its dtype, count, algorithm and the like.
        phases: by queue (see ``QueueMap``), what each of its batches is for.
        starts: by queue, the value at which its first batch may start; None until :meth:`mark_submitted`.
        enqueued: when it was enqueued, in seconds of the monotonic clock.

    Args:
        pending: returns, by queue, a value at which nothing is pending; used until :meth:`mark_submitted`, because an
            interrupt can come right after the submits.
    """

    __slots__ = ("_pending", "_values", "enqueued", "label", "op", "phases", "sequence", "starts")

    def __init__(
        self,
        op: str,
        sequence: int,
        label: dict[str, Any],
        phases: Sequence[Sequence[str]],
        pending: Callable[[], Sequence[int]],
    ) -> None:
        self.op = op
        self.sequence = sequence
        self.label = label
        self.phases = phases
        self.starts: Sequence[int] | None = None
        self.enqueued = time.monotonic()
        self._values: Sequence[int] | None = None
        self._pending = pending

    def mark_submitted(self, values: Sequence[int], starts: Sequence[int]) -> None:
        """Note, by queue, the timeline values at which the collective is done and may start."""
        self.starts = starts
        self._values = values

    @property
    def values(self) -> Sequence[int]:
        """By queue, the timeline value at which its last batch is done, 0 where it has none."""
        return self._pending() if self._values is None else self._values

    def order(self) -> Sequence[int]:
        """Return the queues in the order in which they are best waited for.

        Those to and from other processes come last, and are waited for first where devices have several batches:
        lavapipe wakes whoever waits for a device at the end of each.
        """
        queues = range(len(self.values))
        return queues[::-1] if any(len(each) > 1 for each in self.phases) else queues

    def done(self, reached: Sequence[int]) -> bool:
        """Say whether it was submitted and every queue's timeline is there."""
        return self.starts is not None and all(now >= value for now, value in zip(reached, self.values, strict=True))

    def started(self, reached: Sequence[int]) -> bool:
        """Say whether nothing earlier keeps any queue from starting."""
        return self.starts is not None and all(now >= value for now, value in zip(reached, self.starts, strict=True))

    def step(self, queue: int, reached: int) -> str:
        """Return the first step that ``queue`` has not finished, such as ``"gather (3 of 3)"``."""
        phases = self.phases[queue] if self.phases else ()
        if self.starts is None:
            return "being enqueued"
        if not phases or reached >= self.values[queue]:
            return "done"
        if reached < self.starts[queue]:
            return "waiting for earlier work"
        index = reached - self.starts[queue]
        return f"{phases[index]} ({index + 1} of {len(phases)})"

    def ranks(self, places: Sequence[Place], reached: Sequence[int]) -> list[dict[str, Any]]:
        """Return each queue's rank, device, step and wanted and reached timeline values."""
        return [
            {"rank": rank, "device": name, "step": self.step(queue, now), "wanted": wanted, "reached": now}
            for queue, ((rank, name), wanted, now) in enumerate(zip(places, self.values, reached, strict=True))
        ]

    def describe(self, places: Sequence[Place], reached: Sequence[int]) -> str:
        """Return one line that says which step each rank is at."""
        waiting = [
            f"rank {item['rank']} ({item['device']}) at {item['reached']} of {item['wanted']} in {item['step']}"
            for item in self.ranks(places, reached)
            if item["reached"] < item["wanted"]
        ]
        return f"{self.op} #{self.sequence}: {', '.join(waiting) or 'all ranks done'}"


class FlightRecorder:
    """The collectives of a communicator: those under way, and the last 256 for people to read.

    Attributes:
        pending: the collectives under way, in the order of enqueueing; some may be done already.
    """

    def __init__(self) -> None:
        self._kept: deque[Flight] = deque(maxlen=_KEPT)
        self.pending: deque[Flight] = deque()
        self._dropping = threading.Lock()

    def add(self, flights: Sequence[Flight]) -> None:
        """Remember collectives that are about to be submitted."""
        self._kept.extend(flights)
        self.pending.extend(flights)

    def oldest(self, reached: Sequence[int]) -> Flight | None:
        """Return the oldest collective that is not done, given the queues' timeline values."""
        return next((flight for flight in list(self.pending) if not flight.done(reached)), None)

    def drop_done(self, reached: Sequence[int]) -> None:
        """Forget the oldest collectives that are done, and those that an interrupt kept from being marked."""
        pending = self.pending
        with self._dropping:
            while pending and (pending[0].done(reached) or self._was_cut_short()):
                pending.popleft()

    def _was_cut_short(self) -> bool:
        """Say whether an interrupt hit the oldest collective: a later one is marked as submitted, the oldest is not."""
        pending = self.pending
        return len(pending) > 1 and pending[0].starts is None and pending[1].starts is not None

    def forget(self) -> None:
        """Forget the collectives so far, but for those under way."""
        self._kept.clear()

    def document(self, places: Sequence[Place], reached: Sequence[int] | None) -> list[dict[str, Any]]:
        """Return the records, oldest first, ready for JSON."""
        now = time.monotonic()
        return [self._record(flight, places, reached, now) for flight in list(self._kept)]

    def _record(
        self, flight: Flight, places: Sequence[Place], reached: Sequence[int] | None, now: float
    ) -> dict[str, Any]:
        made = {
            "sequence": flight.sequence,
            "op": flight.op,
            **flight.label,
            "seconds_ago": round(now - flight.enqueued, 6),
            "done": None if reached is None else flight.done(reached),
        }
        if reached is None:
            return {**made, "wanted": list(flight.values)}
        return {**made, "ranks": flight.ranks(places, reached)}
