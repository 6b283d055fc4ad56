"""The processes of one command: those that ``mpiexec`` started, or one alone."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
from collections.abc import Sequence, Set
from typing import Any, Final, TypeVar

from vkpar.comm.rig.processes import mpi
from vkpar.comm.rig.processes.channel import Channel
from vkpar.errors import CommunicatorError, InvalidUsageError

_T = TypeVar("_T")
# What launchers tell a process: how many there are, and which it is. The second row is MPICH's and its kin's.
_TOLD: Final = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK"),
)
_BIND: Final = (
    "processes with CPU drivers share processors on {}, so that some runs take several times as long: bind each "
    "process to its own (mpiexec -bind-to core:N)"
)
_SECONDS = 3600.0  # that a process is waited for: another looks at its whole machine meanwhile
_current: list[Job] = []


class Job:
    """The processes of a command, which all do the same; the first of them prints.

    Attributes:
        comm: the communicator of mpi4py that has them; None for one that is alone.
        number: of this process; ``size`` says how many there are.
        hosts: by process, the host's name.
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm, self.number, self.size = comm, 0, 1
        self.hosts = [socket.gethostname()]
        self._channel: Channel | None = None
        self._is_over = False
        if comm is not None:
            self._channel = Channel(mpi.check(comm), comm.Dup(), _SECONDS)
            self.number, self.size = self._channel.me, self._channel.size
            self.hosts = self.gather(self.hosts[0])
            self._channel.names = [f"process {number} ({host})" for number, host in enumerate(self.hosts)]

    @property
    def prints(self) -> bool:
        """True in the process that prints for all."""
        return self.number == 0

    def gather(self, value: _T) -> list[_T]:
        """Return, by process, what each gives; all call it together.

        Raises:
            CommunicatorError: another process has ended by an error, which this one's says.
        """
        if self._channel is None:
            return [value]
        found: list[_T] = self._exchange((None, value))[0]
        return found

    def advice(self, *, computes: bool) -> str:
        """Say on which hosts processes share processors, "" where none do; all call it together.

        Args:
            computes: this process has CPU drivers, whose threads get in each other's way then.
        """
        crowded = sharing(self.hosts, self.gather(os.sched_getaffinity(0) if computes else set()))
        return _BIND.format(", ".join(crowded)) if crowded else ""

    def alike(self, told: object) -> None:
        """Refuse processes that were told different things.

        Raises:
            InvalidUsageError: in all of them.
        """
        texts = self.gather(repr(told))
        for number, text in enumerate(texts):
            if text != texts[0]:
                raise InvalidUsageError(f"process {number} was given other options than process 0: {text}, {texts[0]}")

    def ended(self, error: Exception) -> Exception:
        """Tell the other processes what ends this one, unless they know; return what ends them all."""
        if self._channel is None or self._is_over:
            return error
        try:
            return self._exchange((error, None))[1] or error
        except CommunicatorError as why:
            return why if self._is_over else error

    def finish(self) -> None:
        """Wait until all processes have come to the end.

        Raises:
            CommunicatorError: another process has ended by an error.
        """
        if not self._is_over:
            self.gather(None)

    def _exchange(self, given: tuple[Exception | None, Any]) -> tuple[list[Any], Exception | None]:
        """Exchange errors and values; where another process has ended, raise why, or return this one's own error."""
        assert self._channel is not None, "there are other processes"
        error, value = given
        told = None if error is None else (str(error) or type(error).__name__, isinstance(error, CommunicatorError))
        parts = [pickle.loads(part) for part in self._channel.exchange(pickle.dumps((told, value)), "a command")]
        failed = [(number, *part[0]) for number, part in enumerate(parts) if part[0] is not None]
        if not failed:
            return [part[1] for part in parts], None
        self._is_over = True
        # Others' communicators fail by the first error, and say so in other words.
        number, text, _ = next((item for item in failed if not item[2]), failed[0])
        if error is not None and (number == self.number or text == str(error)):
            return [], error
        raise CommunicatorError(f"{self._channel.names[number]}: {text}")

    def close(self) -> None:
        """Give back what MPI holds."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def sharing(hosts: Sequence[str], used: Sequence[Set[int]]) -> list[str]:
    """Return the hosts of which two processes use the same processors, those of ``used`` by process."""
    pairs = itertools.combinations(zip(hosts, used, strict=True), 2)
    return sorted({host for (host, mine), (other, theirs) in pairs if host == other and mine & theirs})


def size() -> int:
    """Return how many processes a launcher has started, 1 where there is none; it asks no MPI."""
    return _told(0, 1)


def number() -> int:
    """Return which of them this is."""
    return _told(1, 0)


def _told(which: int, default: int) -> int:
    for row in _TOLD:
        if all(os.environ.get(name, "").isdigit() for name in row):
            return int(os.environ[row[which]])
    return default


def current() -> Job:
    """Return the processes of the command that runs."""
    return _current[-1] if _current else Job()


def start() -> Job:
    """Meet the other processes that ``mpiexec`` has started, where there are any, for one command, until :func:`end`.

    Raises:
        UnsupportedError: there are, and mpi4py or an MPI is missing.
    """
    _current.append(Job(mpi.world()) if size() > 1 else Job())
    return _current[-1]


def end() -> None:
    """End what :func:`start` began."""
    _current.pop().close()
