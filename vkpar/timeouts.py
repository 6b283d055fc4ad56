"""How long a call may wait: any number of seconds from 0 up, infinity included; and what is waited for."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from numbers import Real
from typing import Any

from vkpar.errors import InvalidUsageError, VkparError, within_limits

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
    """Work under way: whoever can be waited for and asked can also be awaited, and asked for its error."""

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
