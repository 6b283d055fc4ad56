"""A communicator's life: what it owns, how it fails, how it is closed."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Collection, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkpar.comm.engine.cache import Entry, ProgramCache
from vkpar.comm.engine.flights import Flight, FlightRecorder
from vkpar.comm.engine.watchdog import Watchdog
from vkpar.comm.record.checks import SlotChecks, WireReports
from vkpar.comm.rig import links
from vkpar.comm.rig.rig import Rig
from vkpar.comm.tune.opening import open_rig
from vkpar.device import Device, orphans
from vkpar.errors import CommunicatorError, InvalidUsageError, VulkanError
from vkpar.vulkan.gate import Gate

if TYPE_CHECKING:
    from vkpar.comm.observe.profile import Profile
    from vkpar.comm.record.recording import Recording

_log = logging.getLogger("vkpar")
_EVICTION_SECONDS = 1.0  # that an eviction waits for another thread's call
_PATIENCE = 10.0  # seconds without progress until a device is given up, at least

# What ranks that never finished may still use: kept for the life of the process.
_abandoned: list[Any] = []


class Lifecycle:
    """Owns the rig, the recorded programs and the watchdog; the collectives are in :class:`Communicator`.

    Attributes:
        devices: the devices, in rank order.
        timeout: seconds without progress after which a pending collective fails.
    """

    _gate: Gate | None = None  # until the constructor is through
    _recording: Recording
    _profile: Profile | None = None
    devices: tuple[Device, ...]
    timeout: float

    def _open(self, transports: Sequence[str], staging_nbytes: int | None, undo: ExitStack, *, tunes: bool) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # the cache and what is recorded into it
        self._closing = threading.RLock()
        self._freed = False
        self._cache = ProgramCache()
        self._picked: Collection[Entry] = ()  # what a group under way is about to enqueue
        self._sequence = 0
        self._failure: BaseException | None = None
        self._failure_details: dict[str, Any] = {}
        self._flights = FlightRecorder()
        self._checks: SlotChecks | None = None
        self._reports: WireReports | None = None
        logical = [device.logical for device in self.devices]
        self._rig, self._kept = open_rig(logical, transports, staging_nbytes, tunes=tunes)
        undo.callback(self._rig.close)
        self._watchdog = Watchdog(self)
        undo.callback(self._watchdog.stop)
        self._gate = Gate("the communicator")
        for device in logical:
            device.keepers.add(self)

    # ---- what it is ----

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def rig(self) -> Rig:
        """What the communicator owns on its devices."""
        return self._rig

    def links(self) -> list[links.Link]:
        """Return how each ordered pair of ranks is linked, and why."""
        return list(self._rig.links)

    def transports(self) -> list[str]:
        """Return how each rank reaches the staging memory."""
        return [transport.name for transport in self._rig.transports]

    @property
    def gate(self) -> Gate:
        """Every call passes it; shut by :meth:`close`."""
        assert self._gate is not None
        return self._gate

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self.gate.is_shut

    @property
    def failed(self) -> bool:
        """True once something has made the communicator unusable."""
        return self._failure is not None

    def reached(self) -> list[int]:
        """Return each lane's timeline value now: the ranks', then those of the queues that copy slots."""
        with self.gate.lock():
            self.gate.check()
            return self._rig.reached()

    def stats(self) -> dict[str, Any]:
        """Return counters: collectives, cached command buffers, what the bridge did.

        ``bridge_latency_ns`` counts bridged waits by the time from seeing a source's value to signalling: keys are the
        lower edges of the classes, in ns. With ``VKPAR_DEBUG=wire``, ``wire_largest_error`` is the largest absolute
        error of any float32 that was encoded, and ``wire_scaled_blocks`` the number of blocks of 256 that plain
        float16 could not hold; reading them waits for what is pending.
        """
        with self.gate.lock():
            self.gate.check()
            made = {
                "collectives": self._sequence,
                "cached_programs": len(self._cache),
                "cached_batches": self._cache.batches,
                **self._rig.bridge_counters(),
                "staging_bytes": self._rig.arena.memory.nbytes,
            }
        return {**made, **self._reports.read()} if self._reports else made

    def dump(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the flight recorder as JSON, and write it to ``path`` where that is given.

        It holds the last 256 collectives with every rank's step and wanted and reached timeline values, the links,
        the counters and the failure; a failed or closed communicator can be asked too.
        """
        alive = not self.closed
        places, transports = self._rig.places, self.transports()
        reached = self._rig.values() if alive else None
        document = {
            "ranks": [
                {"rank": rank, "device": name, "transport": transports[rank], "reached": reached and reached[lane]}
                for lane, (rank, name) in enumerate(places)
            ],
            "links": [{"src": x.src, "dst": x.dst, "kind": x.kind, "reason": x.reason} for x in self.links()],
            "closed": not alive,
            "failure": None if self._failure is None else str(self._failure),
            "timeout": self.timeout if math.isfinite(self.timeout) else None,
            "bridge": self._rig.bridge_counters() if alive else None,
            "operations": self._flights.document(places, reached),
        }
        text = json.dumps(document, indent=1)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    # ---- failure ----

    def describe(self, flight: Flight) -> tuple[str, dict[str, Any]]:
        """Return where each rank is in ``flight``: in words, and as details for an error."""
        places = self._rig.places
        reached = list(flight.values) if self.closed else self._rig.values()
        counters = {} if self.closed else self._rig.bridge_counters()
        pending = counters.get("bridges_pending", 0)
        details = {
            "op": flight.op,
            "sequence": flight.sequence,
            **flight.label,
            "ranks": flight.ranks(places, reached),
            "bridges_pending": pending,
            "bridges_pending_by_rank": counters.get("bridges_pending_by_rank", []),
        }
        return f"{flight.describe(places, reached)}; {pending} bridged waits pending", details

    def stalled(self, flight: Flight) -> None:
        """Fail because nothing of ``flight`` moves."""
        with self.gate.lock():
            self.gate.check()
            text, details = self.describe(flight)
        self.fail(CommunicatorError(f"{text}; no timeline advanced for {self.timeout} s", details))

    def _details(self, cause: BaseException, flight: Flight | None) -> dict[str, Any]:
        """Return what is known of a failure: its own details, else where ``flight`` or the oldest pending one is."""
        own: dict[str, Any] = getattr(cause, "details", {})
        flight = flight or self._watchdog.oldest(self._rig.values())
        if own or flight is None:
            return own
        rank = {"rank": self._rig.lanes.ranks[cause.rank]} if hasattr(cause, "rank") else {}
        return {**self.describe(flight)[1], **rank}

    def fail(self, cause: BaseException, flight: Flight | None = None) -> None:
        """Poison the communicator with its first failure, that of ``flight``, and let what is parked run out."""
        if self._failure is None:
            self._failure_details = self._details(cause, flight)
            self._failure = cause
            _log.error("the communicator failed: %s", cause)
            self._rig.group.abort()

    def look(self) -> list[int] | None:
        """Return each lane's timeline value; None once the communicator has failed, which this may notice.

        Raises:
            InvalidUsageError: it is closed.
        """
        with self.gate.lock():
            self.gate.check()
            if self._failure is None:
                self._notice_bridge_error()
            try:
                return None if self.failed else self._rig.reached()
            except VulkanError as error:
                self.fail(error)
                return None

    def _notice_bridge_error(self) -> None:
        result = self._rig.group.error()
        if result:
            self.fail(self._rig.bridge_error(result))

    def check_failure(self) -> None:
        """Raise what has made the communicator unusable.

        Raises:
            CommunicatorError: its ``__cause__`` is the first failure.
        """
        if self._failure is None and not self._freed:
            self._notice_bridge_error()
        if self._failure is not None:
            text = f"the communicator failed: {self._failure}"
            raise CommunicatorError(text, self._failure_details) from self._failure

    def check_results(self) -> None:
        """Raise as :meth:`check_failure` does, unless the communicator was closed since.

        Raises:
            CommunicatorError
        """
        if not self.closed:
            self.check_failure()

    def check_slots(self) -> None:
        """With ``VKPAR_DEBUG=slots``: fail where a rank has read a slot of the wrong generation.

        Raises:
            CommunicatorError
        """
        if self._checks is None or self.closed:
            return
        try:
            self._checks.check()
        except CommunicatorError as error:
            self.fail(error)
            raise

    def settle(self) -> None:
        """After a failure: wait until the queues have run out, and give up the devices on which they do not."""
        if not self._closing.acquire(blocking=False):
            return  # a close does it
        try:
            if not self._freed:
                late = self._drain()
                if late:
                    self._abandon(late)
        finally:
            self._closing.release()

    # ---- profiles ----

    def _check_profile(self) -> None:
        """Refuse a profile inside a profile.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: it is closed, or a profile is under way.
        """
        with self.gate.lock():
            self.gate.check()
            self.check_failure()
            if self._profile is not None:
                raise InvalidUsageError("profiles do not nest: a communicator has one at a time")

    def _begin_profile(self, profile: Profile) -> None:
        """From now on record every collective anew, with timestamps.

        Raises:
            CommunicatorError, InvalidUsageError: as :meth:`_check_profile` does.
        """
        with self.gate.lock(), self._lock:
            self._check_profile()
            self._profile = profile
            self._cache = ProgramCache(self._cache)
            self._recording.executor.collector = profile.collector

    def _end_timing(self) -> None:
        """Go back to what was recorded before the profile; what it timed is freed once it is done."""
        with self._lock:
            if self._recording.executor.collector is not None:
                self._recording.executor.collector = None
                self._cache = self._cache.fold()

    def _end_profile(self, profile: Profile, *, calibrate: bool) -> None:
        """Let ``profile`` read what is done, and free what was recorded for it."""
        try:
            with self.gate.lock(), self._lock:
                self.gate.check()
                profile.collector.read_done()
        except InvalidUsageError:
            self.close()  # another thread closes it, and reads: wait for that
        finally:
            if self._profile is profile:
                self._profile = None
        profile.finish(calibrate=calibrate and not self.failed)
        with suppress(InvalidUsageError), self.gate.lock(), self._lock:
            self.gate.check()
            if not self.failed:
                self.sweep()

    def sweep(self) -> None:
        """Free recorded collectives that nobody can ask for again and that are done."""
        self._cache.sweep(self.reached(), self._rig.confirm)

    def evict(self) -> bool:
        """Free the bounce buffers that recorded collectives keep, once these are done; say whether there were any.

        An allocation that finds no room asks for it, in any thread. Where another thread holds the communicator for
        long, nothing is freed: it may be waiting for the thread that asks.
        """
        taken: list[bool] = []
        try:
            taken.extend(map(self._lock.acquire, (True,), (_EVICTION_SECONDS,)))  # an interrupt finds both done or none
            return taken[0] and self._evict()
        finally:
            if True in taken:
                self._lock.release()

    def _evict(self) -> bool:
        with self.gate.lock(), suppress(InvalidUsageError, VulkanError):  # a closed or a lost device
            self.gate.check()
            entries = [] if self.failed else self._cache.evict(self._picked)
            for program in [program for entry in entries for program in entry.programs]:
                for queue, value in zip(self._rig.queues, program.pending(), strict=True):
                    queue.wait(value)
            if entries:
                self.sweep()
                return True
        return False

    # ---- the end ----

    def close(self) -> None:
        """Wait for pending collectives and free everything.

        Where nothing moves for 10 s, or for the communicator's timeout if that is longer, they are aborted. A close
        that was interrupted goes on at the next call. In a forked child nothing is touched.
        """
        if self._gate is None:
            return
        if os.getpid() != self._process:
            self._gate.is_shut = True
            return
        self._watchdog.stop()
        with self._closing:
            self._gate.shut()
            if not self._freed:
                self._close()

    def _close(self) -> None:
        late = self._drain()
        if late and not self.failed:
            self.fail(CommunicatorError(f"closed while ranks {late} stood still for {self._patience:g} s"))
            late = self._drain()
        if late:
            self._abandon(late)
            return
        if self._profile is not None:
            with suppress(VulkanError):  # a lost device
                self._profile.collector.read_done()
            self._profile.finish(calibrate=False)
        self._cache.close()
        self._rig.close()
        self._freed = True

    def _drain(self) -> list[int]:
        """Wait for pending work, without the lock: its holder may wait for a device that hangs."""
        return self._rig.drain(self._cache.pending(len(self._rig.queues)), self._patience)

    @property
    def _patience(self) -> float:
        return max(_PATIENCE, self.timeout)

    def _abandon(self, late: Sequence[int]) -> None:
        """Give up the devices of ranks that never finish; what they may still use is left alone."""
        for rank in late:
            self._rig.devices[rank].quarantine()
        scratch = self._cache.scratch()
        self._cache.close(late)
        self._rig.abandon(late)
        _abandoned.append((self._rig, scratch))
        self._freed = True

    def passed(self, lanes: Sequence[int], values: Sequence[int]) -> bool:
        """After a close: say whether the lanes' timelines have those values; a close that is through waited for all."""
        with nullcontext() if self.gate.is_inside() else self._closing:  # a close inside waits for this thread
            return self._freed or all(self._rig.queues[lane].passed(values[lane]) for lane in lanes)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._gate is not None and not self._gate.is_shut:
            orphans.append(self)

    def __repr__(self) -> str:
        state = " closed" if self._gate is not None and self.closed else " failed" if self.failed else ""
        return f"<vkpar.Communicator of {self.nranks}: {', '.join(device.name for device in self.devices)}{state}>"
