"""Frees the bounce buffers of recorded collectives where a device runs out of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress

from vkpar.comm.engine.cache import ProgramCache
from vkpar.comm.engine.health import Health
from vkpar.comm.record.entry import Entry
from vkpar.errors import InvalidUsageError, VulkanError
from vkpar.timeouts import EVICT_SECONDS


class Eviction:
    """Frees the bounce buffers of one communicator; its devices know it as a keeper.

    Attributes:
        spared: the entries that a group under way is about to enqueue.
    """

    def __init__(self, health: Health, cache: ProgramCache, lock: threading.RLock, sweep: Callable[[], None]) -> None:
        self.spared: Collection[Entry] = ()
        self._health, self._cache, self._lock, self._sweep = health, cache, lock, sweep

    def evict(self) -> bool:
        """Free bounce buffers once the collectives that use them are done; say whether there were any.

        An allocation that finds no room calls this in its own thread. Where another thread holds the engine's lock for
        long, nothing is freed, because that thread may be waiting for the allocating one.
        """
        taken: list[bool] = []
        try:
            taken.extend(map(self._lock.acquire, (True,), (EVICT_SECONDS,)))  # an interrupt finds both done or none
            return taken[0] and self._evict()
        finally:
            if True in taken:
                self._lock.release()

    def _evict(self) -> bool:
        with self._health.gate.lock(), suppress(InvalidUsageError, VulkanError):  # a closed or a lost device
            self._health.gate.check()
            entries = [] if self._health.failed else self._cache.evict(self.spared)
            for program in [program for entry in entries for program in entry.programs.values()]:
                for queue, value in zip(self._health.rig.queues, program.pending(), strict=True):
                    queue.wait(value)
            if entries:
                self._sweep()
                return True
        return False
