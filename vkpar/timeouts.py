"""How long things wait: the package's own values, checked ones of callers, and what is waited for."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from numbers import Real
from typing import Any

from vkpar.errors import InvalidUsageError, VkparError, within_limits

# A collective that makes no progress for so many seconds fails, unless its communicator was given another timeout.
COLLECTIVE_SECONDS = 30.0
# A communicator with a shorter timeout is not measured when it opens: steps under measurement may take so long.
MEASURED_SECONDS = 1.0
# Before a new communicator's self-test, a device on whose queues nothing moves for so long (or for the communicator's
# timeout, if that is longer) fails it: its earlier work, uploads among it, does not end.
EARLIER_SECONDS = 30.0
# A communicator that closes gives up devices on which nothing moves for so long, or for its timeout if that is longer.
CLOSE_SECONDS = 10.0
# A device or a graph that closes waits so long for its pending work; what is late then keeps its memory.
DRAIN_SECONDS = 30.0
# An allocation that finds no room waits so long for another thread's call before it frees a communicator's buffers.
EVICT_SECONDS = 1.0
# A device that is asked for its clock, or that drops a query, is waited for so long before it counts as hanging.
QUERY_SECONDS = 1.0
# In the child process that tests a native link, a token that is passed to and fro is lost after so long.
HOP_SECONDS = 10.0
# That whole process, with its start and its devices, fails its test after so long.
LINK_TEST_SECONDS = 60.0
# The doctor's collectives fail after so long without progress, and its queues after so long without their value.
DOCTOR_COLLECTIVE_SECONDS = 20.0
DOCTOR_QUEUE_SECONDS = 10.0
# The longest wait in one piece, in Python and in the helper's threads: how late Ctrl-C and failures are noticed.
SLICE_NS = 100_000_000
_NS = 1_000_000_000


def seconds(given: object, name: str = "timeout") -> float:
    """Return ``given`` as a float; a number too large for one is infinity.

    Raises:
        InvalidUsageError: ``given`` is no number, NaN or negative; the message calls it ``name``.
    """
    if isinstance(given, Real) and not isinstance(given, bool):
        try:
            value = float(given)
        except OverflowError:
            value = math.copysign(math.inf, 1 if abs(given) == given else -1)
            given = value  # thousands of digits help nobody, and Python refuses to print them
        if value >= 0:
            return value
    raise InvalidUsageError(f"{name} must be a number of seconds from 0 up (or math.inf), not {given!r}")


class Deadline:
    """The moment at which a wait gives up; never where no timeout was given.

    Args:
        timeout: seconds from now; None for ever.

    Attributes:
        timeout: the same.

    Raises:
        InvalidUsageError: ``timeout`` is no number, NaN or negative.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._end = math.inf if timeout is None else time.monotonic() + seconds(timeout)

    def left_ns(self, most: int) -> int:
        """Return the nanoseconds that are left, from 0 to ``most``."""
        return int(max(0.0, min((self._end - time.monotonic()) * _NS, most)))

    @property
    def passed(self) -> bool:
        """True once no time is left."""
        return time.monotonic() >= self._end


class Waitable(ABC):
    """Work under way: whoever can be waited for and asked can also be awaited, and asked for its error.

    Examples:
        >>> with vkpar.Communicator(devices) as comm:
        ...     work = comm.broadcast([d.ones(2) for d in comm.devices])
        ...     work.wait(60)  # seconds; without it, later work on the devices still sees the results
        ...     work.done()
        True
    """

    @abstractmethod
    def wait(self, timeout: float | None = None) -> None:
        """Block until it is done; raise what it failed with."""

    @abstractmethod
    def done(self) -> bool:
        """Say, without waiting, whether it is done; raise what it failed with."""

    def exception(self) -> VkparError | None:
        """Return the error that :meth:`wait` would raise now; None where the work is done or still under way."""
        try:
            self.done()
        except VkparError as error:
            return error
        return None

    def __await__(self) -> Generator[Any, None, None]:
        with within_limits("a thread of the event loop's executor"):
            future = asyncio.get_running_loop().run_in_executor(None, self.wait)
        return future.__await__()
