"""The end of a communicator: it waits for pending work, then frees everything, or abandons a device that hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkpar import timeouts
from vkpar.comm.engine.cache import ProgramCache
from vkpar.comm.engine.health import Health
from vkpar.errors import CommunicatorError, VulkanError

# Rigs and bounce buffers that ranks which never finished may still use: kept for the life of the process.
_abandoned: list[Any] = []


class Closer:
    """Frees a communicator's rig and its recorded programs.

    Args:
        health: the communicator's health, whose ``closing`` lock guards everything here.
        cache: the recorded programs.
    """

    def __init__(self, health: Health, cache: ProgramCache) -> None:
        self._health = health
        self._rig = health.rig
        self._cache = cache

    def settle(self) -> None:
        """After a failure, wait until the queues have run out; give up the devices whose queues do not."""
        health = self._health
        if not health.closing.acquire(blocking=False):
            return  # a close is doing the same
        try:
            late = [] if health.freed else self._drain()
            if late:
                self._abandon(late)
        finally:
            health.closing.release()

    def close(self, read_last: Callable[[], None]) -> None:
        """Wait for pending work and free everything; the caller holds ``closing`` and has shut the gate.

        Where nothing moves for 10 s, or for the communicator's timeout if that is longer, the work is aborted. A second
        call does nothing; after an interrupt, it continues the close.

        Args:
            read_last: called once all work is done, before anything is freed.
        """
        if self._health.freed:
            return
        self._health.notice()
        late, failed = self._drain(), self._health.failed
        self._health.notice()
        if not late:
            self._check_done()
        if late and not failed:  # a failure lets go of what is parked: the ranks may come through now
            if not self._health.failed:
                ranks = sorted({self._rig.places[queue][0] for queue in late})
                self._health.fail(CommunicatorError(f"closed while ranks {ranks} stood still for {self._patience:g} s"))
            late = self._drain()
        if late:
            self._abandon(late)
            return
        read_last()
        self._cache.close()
        self._rig.close()
        self._health.freed = True

    def _check_done(self) -> None:
        """Fail where a collective is not done although nothing is under way: its device is lost."""
        health = self._health
        if health.failed or health.flights.oldest(self._rig.values()) is None:
            return
        try:
            self._rig.drained()
        except VulkanError as error:
            health.fail(error)

    def _drain(self) -> list[int]:
        """Wait for pending work and return the late queues; the caller does not hold the engine's lock.

        Where the bridge has died, or does so now, the communicator fails: else what is parked would wait for ever.
        """
        pending = self._cache.pending(len(self._rig.queues))
        return self._rig.drain(pending, self._patience, self._health.notice)

    @property
    def _patience(self) -> float:
        return max(timeouts.CLOSE_SECONDS, self._health.timeout)

    def _abandon(self, queues: Sequence[int]) -> None:
        """Give up the devices of the late queues, which never finish, and keep the memory that they may still use."""
        late = self._rig.own_ranks(queues)
        for rank in late:
            self._rig.devices[rank].quarantine()
        bounce_buffers = self._cache.bounce_buffers()
        self._cache.close(late)
        self._rig.abandon(late)
        _abandoned.append((self._rig, bounce_buffers))
        self._health.freed = True
