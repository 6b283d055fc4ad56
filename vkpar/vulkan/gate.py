"""Keeps a close in one thread from freeing what a call in another thread is using."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from vkpar.errors import InvalidUsageError, VkparError


class Gate:
    """Open until :meth:`shut`; a call holds its thread's lock while it is inside.

    Calls look like this; only ``with`` on a lock that is implemented in C cannot be cut in two by an interrupt::

        with gate.lock():
            gate.check()

    Args:
        what: the object's name in the error that a call gets after the gate was shut.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._locks: dict[int, Any] = {}  # by thread
        self._process = os.getpid()
        self._refusal: Callable[[], VkparError] | None = None
        self.is_shut = False

    def lock(self) -> Any:
        """Return the lock that this thread holds while it is inside; it may be taken again inside.

        Raises:
            InvalidUsageError: in a forked child.
        """
        if os.getpid() != self._process:
            raise InvalidUsageError(f"{self.what} was opened before a fork; open it in the child, a spawned process")
        thread = threading.get_ident()
        lock = self._locks.get(thread)
        return self._locks.setdefault(thread, threading.RLock()) if lock is None else lock

    def is_inside(self) -> bool:
        """Say whether this thread is inside: nothing is freed before it leaves."""
        lock = self._locks.get(threading.get_ident())
        return lock is not None and bool(lock._is_owned())

    def check(self) -> None:
        """Refuse a call after the gate was shut, those too that are inside.

        Raises:
            InvalidUsageError: closed; or whatever :meth:`refuse` was given.
        """
        if self.is_shut:
            raise self._refusal() if self._refusal else InvalidUsageError(f"{self.what} is closed")

    def refuse(self, error: Callable[[], VkparError]) -> None:
        """Shut without waiting for anyone: from now on every call raises what ``error`` makes."""
        self._refusal = error
        self.is_shut = True

    def shut(self) -> None:
        """Refuse further calls and wait until the other threads' are done."""
        self.is_shut = True
        for thread, lock in list(self._locks.items()):
            if thread != threading.get_ident():
                with lock:
                    pass
