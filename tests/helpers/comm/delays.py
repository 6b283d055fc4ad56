"""Holds single steps of collectives up for random times: each waits for a gate timeline that a thread releases."""

from __future__ import annotations

import random
import threading
from typing import Any

import vkpar
from vkpar.comm.schedule.steps import Step
from vkpar.vulkan.semaphore import TimelineSemaphore


class Delays:
    """While it is entered, some steps that the communicator records wait for gates.

    A step is recorded once and replayed: give fresh arrays to every collective that is to be held up. A step of rank r
    that waits for rank q's data holds up that link; a publishing step holds up the rank.

    Args:
        communicator: whose steps to hold up.
        seed: of the choice and of the times.
        share: of the steps that are held up.
        longest: seconds between two releases.
    """

    def __init__(
        self, communicator: vkpar.Communicator, seed: int, *, share: float = 0.3, longest: float = 0.002
    ) -> None:
        self._communicator = communicator
        self._choice, self._pause = random.Random(seed), random.Random(seed + 1)
        self._share, self._longest = share, longest
        self._timelines: list[TimelineSemaphore] = []
        self._given = [0] * len(communicator._engine.rig.queue_map.ranks)
        self._released = [0] * len(communicator._engine.rig.queue_map.ranks)
        self._changed = threading.Condition()
        self._stop = False
        self.held = 0

    def _gate(self, step: Step) -> tuple[Any, int] | None:
        if self._choice.random() >= self._share:
            return None
        with self._changed:
            self._given[step.rank] += 1
            self.held += 1
            self._changed.notify()
            return self._timelines[step.rank].handle, self._given[step.rank]

    def _waiting(self) -> list[int]:
        return [rank for rank, given in enumerate(self._given) if self._released[rank] < given]

    def _release(self) -> None:
        while True:
            with self._changed:
                while not self._waiting() and not self._stop:
                    self._changed.wait()
                ranks = self._waiting()
                if not ranks:
                    return
                rank = self._pause.choice(ranks)
                self._released[rank] += 1
                self._timelines[rank].signal(self._released[rank])
                stopping = self._stop
            if not stopping:
                threading.Event().wait(self._pause.uniform(0, self._longest))

    def __enter__(self) -> Delays:
        for rank in self._communicator._engine.rig.queue_map.ranks:
            device = self._communicator.devices[rank]
            self._timelines.append(TimelineSemaphore(device.logical.handle, host_only=True))
        self._thread = threading.Thread(target=self._release, daemon=True)
        self._thread.start()
        with self._communicator._engine._lock:
            self._communicator._engine.builder.recorder.holds = self._gate
            self._communicator._engine.cache.retire_all()  # what is recorded without gates
        return self

    def __exit__(self, *exception: object) -> None:
        self._communicator._engine.builder.recorder.holds = None
        with self._changed:
            self._stop = True
            self._changed.notify()
        self._thread.join()
        for device in self._communicator.devices:
            device.synchronize(60)
        with self._communicator._engine._lock:
            self._communicator._engine.cache.close()  # what is recorded names the gates
        for timeline in self._timelines:
            timeline.close()
