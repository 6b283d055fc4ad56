"""MPI as far as it is used: mpi4py's module, the communicators that are taken, and the one lock around its calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vkpar.errors import InvalidUsageError, UnsupportedError

_LEAST = (4, 1)  # of mpi4py: from then on one build of it loads MPICH and Open MPI alike
# A wait looks again and again at first: for longer than a small sum takes, since who sleeps then, for 70 us at least,
# comes late to the next call, where the others sleep for that one in turn.
_EAGER_SECONDS = 0.0003
# Then it sleeps for a part of what it has waited, at most so long, or for a small part, which costs next to nothing.
_LONGEST_NAP, _PART, _SMALL_PART = 0.0005, 64, 500

_PATIENCE = 2.0  # seconds, for calls that need not be made

lock = threading.Lock()  # MPI may allow one thread at a time (MPI.THREAD_SERIALIZED)


@contextmanager
def briefly() -> Iterator[bool]:
    """Take the lock, and say whether it was free soon: a call of a dying MPI may keep it for ever."""
    taken = lock.acquire(timeout=_PATIENCE)
    try:
        yield taken
    finally:
        if taken:
            lock.release()


def _module() -> Any:
    """Return ``mpi4py.MPI``, which starts MPI where nobody has.

    Raises:
        UnsupportedError: mpi4py is missing or too old, or finds no MPI.
    """
    try:
        import mpi4py
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py finds no MPI, says the latter
        raise UnsupportedError(f"mpi= needs mpi4py and an MPI: pip install mpi4py mpich ({error})") from error
    if tuple(map(int, mpi4py.__version__.split(".")[:2])) < _LEAST:
        raise UnsupportedError(f"mpi= needs mpi4py 4.1 or newer; this is {mpi4py.__version__}")
    return MPI


def world() -> Any:
    """Return the communicator of all processes that were started together.

    Raises:
        UnsupportedError: mpi4py is missing or too old, or finds no MPI.
    """
    return _module().COMM_WORLD


def check(comm: Any) -> Any:
    """Return the module ``mpi4py.MPI`` where ``comm`` is a communicator of it that can be used.

    Raises:
        InvalidUsageError: ``comm`` is none, an intercommunicator, MPI.COMM_NULL, or MPI is not running.
        UnsupportedError: mpi4py is missing or too old, or MPI does not allow threads.
    """
    MPI = _module()
    if not isinstance(comm, MPI.Comm):
        raise InvalidUsageError(f"mpi= takes a communicator of mpi4py, such as MPI.COMM_WORLD; got {comm!r}")
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise InvalidUsageError("mpi=: MPI is not running: it was not initialized, or finalized already")
    if comm == MPI.COMM_NULL:
        raise InvalidUsageError("mpi= is MPI.COMM_NULL: this process is in no group of that communicator")
    if comm.Is_inter():
        raise InvalidUsageError("mpi= is an intercommunicator; take an intracommunicator (Merge makes one of it)")
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise UnsupportedError(
            "mpi= needs an MPI with threads (MPI.THREAD_SERIALIZED); this one was initialized with less: do not set "
            "mpi4py.rc.threads or mpi4py.rc.thread_level"
        )
    return MPI


class Nap:
    """The pauses of somebody who looks at MPI again and again: none at first, then in proportion to the wait."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    @property
    def waited(self) -> float:
        """Seconds since it was made, or reset."""
        return time.monotonic() - self._since

    def reset(self) -> None:
        """Begin anew: something has moved."""
        self._since = time.monotonic()

    @property
    def is_eager(self) -> bool:
        """Whether it is too early to sleep."""
        return self.waited < _EAGER_SECONDS

    def seconds(self) -> float:
        """Return how long to sleep now."""
        waited = self.waited
        return 0.0 if waited < _EAGER_SECONDS else min(waited / _PART, max(_LONGEST_NAP, waited / _SMALL_PART))
