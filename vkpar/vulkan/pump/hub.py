"""Queues without a device, for the C helper: errands that a thread of Python's runs, in their turn among batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vkpar.errors import OutOfMemoryError, WaitTimeoutError
from vkpar.timeouts import SLICE_NS, Deadline
from vkpar.vulkan import api
from vkpar.vulkan.pump.native import CGroup, CQueue, helper, wait
from vkpar.vulkan.pump.ports import QueueHandles

_MOST_TAKEN = 64


class Errand(NamedTuple):
    """What is to be done: number ``number`` of queue ``queue``, whose timeline is at ``value`` then."""

    queue: int
    number: int
    value: int


class CHub:
    """Queues of errands held by the C helper; see ``_pump_hub.h``.

    Args:
        names: what errors call the queues.

    Attributes:
        queues: the queues, as a communicator has them.

    Raises:
        OutOfMemoryError: the system has no memory left.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._c = helper()
        self.handle = self._c.lib.vkp_hub_new(len(names))
        if self.handle == self._c.ffi.NULL:
            raise OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", "vkp_hub_new")
        self._taken = self._c.ffi.new("uint64_t[]", 3 * _MOST_TAKEN)
        self.queues = [ErrandQueue(self._c, self.handle, number, name) for number, name in enumerate(names)]

    def take(self) -> list[Errand]:
        """Return errands whose turn has come, each once."""
        count = self._c.lib.vkp_hub_take(self.handle, self._taken, _MOST_TAKEN)
        words = self._c.ffi.unpack(self._taken, 3 * count) if count else []
        return [Errand(*words[at : at + 3]) for at in range(0, len(words), 3)]

    def done(self, queue: int, value: int) -> None:
        """Say that a queue's errands up to ``value`` are done."""
        self._c.lib.vkp_hub_done(self.handle, queue, value)

    def rest(self, timeout_ns: int) -> None:
        """Sleep until an errand's turn has come, at most so long; for no time at all where that is 0."""
        self._c.lib.vkp_hub_rest(self.handle, timeout_ns)

    def halt(self) -> None:
        """Give no errand away and let none end from now on."""
        self._c.lib.vkp_hub_halt(self.handle)

    def stop(self) -> None:
        """Halt, and wake whoever rests, now and from now on."""
        self._c.lib.vkp_hub_stop(self.handle)

    def empty(self) -> None:
        """Count all errands as done, and those to come."""
        self._c.lib.vkp_hub_empty(self.handle)

    def close(self) -> None:
        """Free the queues; no group may have them any more."""
        handle, self.handle = self.handle, None
        if handle is not None:
            for queue in self.queues:
                queue.close()
            self._c.lib.vkp_hub_free(handle)


class ErrandQueue:
    """One of a hub's queues, in the place of a :class:`~vkpar.vulkan.queue.Queue`; its command buffers are numbers.

    Attributes:
        port: the pump's view of it.
        released: the semaphore that the bridge signals for it.
        device_name: what errors call it.
        family: -1, which no queue of a device has.
    """

    family = -1

    def __init__(self, c: Any, hub: Any, number: int, name: str) -> None:
        words = c.ffi.new("uint64_t[]", 7)
        c.lib.vkp_hub_addresses(hub, number, words)
        self._c, self._hub, self._number = c, hub, number
        queue, timeline, self.released, *functions = c.ffi.unpack(words, 7)
        self.device_name = name
        self.port = CQueue(QueueHandles(queue, queue, timeline, *functions))
        self._word = c.ffi.cast("uint64_t*", timeline)
        self._frozen = 0

    def tell(self, group: CGroup, rank: int) -> None:
        """Be queue ``rank`` of a group, which starts no thread to wait for it: :meth:`CHub.done` tells the group."""
        self._c.lib.vkp_hub_tell(self._hub, self._number, group.handle, rank)

    @property
    def timeline(self) -> ErrandQueue:
        """Its timeline, which :meth:`value` reads."""
        return self

    def value(self) -> int:
        """Return the timeline's value now."""
        return self._frozen if self._word is None else int(self._word[0])

    @property
    def reached(self) -> int:
        """The timeline's value now."""
        return self.value()

    @property
    def last(self) -> int:
        """The value that the newest errand will signal."""
        return self.port.last

    def passed(self, value: int, seconds: float = 0.1) -> bool:
        """Wait for ``value``, ``seconds`` at most."""
        return wait([self.port], [min(value, self.port.submitted)], int(seconds * 1e9)) == 1

    def wait(self, value: int, timeout: float | Deadline | None = None) -> None:
        """Block until the timeline has ``value``.

        Raises:
            WaitTimeoutError: ``timeout`` seconds were not enough.
        """
        deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
        while not self.passed(value, deadline.left_ns(SLICE_NS) / 1e9):
            if deadline.passed:
                raise WaitTimeoutError(
                    f"{self.device_name}: at {self.value()}, not at {value}, after {deadline.timeout} s",
                    {"queue": self.device_name, "wanted": value, "reached": self.value()},
                )

    def confirm(self) -> None:
        """Do nothing: no validation layer watches it."""

    def close(self) -> None:
        """Free the helper's queue."""
        self._frozen, self._word = self.value(), None
        self.port.close()


def let_others_run() -> None:
    """Give up the processor, and the interpreter's lock, to whoever waits for it: ``time.sleep(0)`` takes 70 us."""
    helper().lib.vkp_yield()


def command_of(number: int) -> Any:
    """Return what stands for an errand where programs have command buffers."""
    return api.load().ffi.cast("VkCommandBuffer", number)
