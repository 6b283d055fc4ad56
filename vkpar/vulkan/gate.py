"""Keeps a close in one thread from freeing what a call in another thread is using."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable

from vkpar.errors import InvalidUsageError, VkparError


class Gate:
    """Open until :meth:`shut`; calls pass through it with ``with``, nested ones too.

    Args:
        what: the object's name in the error that a call gets after the gate was shut.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._inside: Counter[int] = Counter()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._process = os.getpid()
        self.is_shut = False
        self._refusal: Callable[[], VkparError] | None = None

    def __enter__(self) -> None:
        if os.getpid() != self._process:
            raise InvalidUsageError(f"{self._what} was opened before a fork; open it in the child, a spawned process")
        thread = threading.get_ident()
        with self._lock:
            if self._refusal is not None:
                raise self._refusal()
            if self.is_shut and not self._inside[thread]:
                raise InvalidUsageError(f"{self._what} is closed")
            self._inside[thread] += 1

    def __exit__(self, *exception: object) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._inside[thread] -= 1
            if not self._inside[thread]:
                del self._inside[thread]
                if self.is_shut:
                    self._changed.notify_all()

    def refuse(self, error: Callable[[], VkparError]) -> None:
        """Shut without waiting for anyone: from now on every call raises what ``error`` makes, nested ones too."""
        with self._lock:
            self._refusal = error
            self.is_shut = True

    def shut(self) -> None:
        """Refuse further calls and wait until the other threads' are done.

        Calls of this thread are not waited for: an interrupt may have cut one short before it could count itself out.
        """
        thread = threading.get_ident()
        with self._lock:
            self.is_shut = True
            while any(number for inside, number in self._inside.items() if inside != thread):
                self._changed.wait()
