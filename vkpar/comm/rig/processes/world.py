"""A communicator's processes: how they meet, what each knows of the others, and how they part."""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vkpar._version import __version__
from vkpar.comm.rig.processes import channel, mpi
from vkpar.comm.rig.processes.channel import Channel
from vkpar.comm.rig.processes.mpi import Nap
from vkpar.comm.schedule.processes import Division
from vkpar.errors import CommunicatorError, InvalidUsageError, VkparError
from vkpar.vulkan.machine.physical import DeviceInfo

_PROTOCOL = f"vkpar {__version__} over MPI, 1".encode()  # another number where messages or schedules change
_broken: list[World] = []  # kept, as the process ends otherwise because of them
_parting: list[World] = []  # closed here, while others may yet send their last words
_parts = threading.Lock()
_PART_SECONDS = 0.5  # that a close waits for these
_copying: list[tuple[Any, Any]] = []  # communicators and requests of copies that MPI has not finished


@dataclass(frozen=True)
class Settings:
    """What all processes must say alike.

    Attributes:
        wire: how float32 crosses links by default; ``algorithm``: the algorithm.
    """

    wire: str
    algorithm: str


@dataclass(frozen=True)
class Process:
    """A process: its host, its number there, its devices, and bytes for slots."""

    host: str
    pid: int
    infos: tuple[DeviceInfo, ...]
    settings: Settings
    staging_nbytes: int


class World:
    """The processes of one communicator, which meet by :meth:`connect` and :meth:`meet`.

    Attributes:
        data: the communicator of mpi4py that slots cross on.
        members: by process.
        division: which process has which ranks.
    """

    def __init__(self, comm: Any, timeout: float) -> None:
        self._mpi = mpi.check(comm)
        self._timeout = timeout
        self._comm = comm
        self.data: Any = None
        self._channel: Channel | None = None
        self.members: list[Process] = []
        self.division = Division((), 0)
        self._closed = self._all_know = False
        self._lock = threading.Lock()

    def connect(self) -> None:
        """Make copies of MPI's communicator, on which only this object's messages travel.

        Raises:
            CommunicatorError: not every process has come within the timeout.
        """
        _part(0)
        self.data, messages = [self._copy() for _ in range(2)]
        self._channel = Channel(self._mpi, messages, self._timeout)

    def _copy(self) -> Any:
        with mpi.lock:
            pair = self._comm.Idup()
        _copying.append(pair)
        nap = Nap()
        while True:
            with mpi.lock:
                if pair[1].Test():
                    _copying.remove(pair)
                    return pair[0]
            if nap.waited > self._timeout:
                raise CommunicatorError(
                    f"not every process of mpi= has opened its communicator within {self._timeout:g} s"
                )
            time.sleep(nap.seconds())

    @property
    def channel(self) -> Channel:
        """Small messages; there once the processes are connected."""
        assert self._channel is not None, "the processes are connected"
        return self._channel

    @property
    def module(self) -> Any:
        """``mpi4py.MPI``."""
        return self._mpi

    @property
    def infos(self) -> list[DeviceInfo]:
        """By rank, the device."""
        return [info for member in self.members for info in member.infos]

    @property
    def is_apart(self) -> bool:
        """Whether the processes live on several hosts."""
        return len({member.host for member in self.members}) > 1

    @property
    def staging_nbytes(self) -> int:
        """Bytes for all slots, the same in every process: what the one that wants least wants."""
        return min(member.staging_nbytes for member in self.members)

    def meet(self, infos: Sequence[DeviceInfo], settings: Settings, staging_nbytes: int) -> None:
        """Tell the other processes of this one, and learn of them.

        Raises:
            InvalidUsageError: another process runs another version of vkpar, or has other settings.
            CommunicatorError: a process has failed, or has not come within the timeout.
        """
        mine = Process(socket.gethostname(), os.getpid(), tuple(infos), settings, staging_nbytes)
        payloads = self.channel.exchange(_PROTOCOL + b"\0" + pickle.dumps(mine), "opening a communicator over MPI")
        for number, payload in enumerate(payloads):
            protocol = payload.partition(b"\0")[0]
            if protocol != _PROTOCOL:
                self._all_know = True
                raise InvalidUsageError(
                    f"process {number} runs {protocol.decode(errors='replace')}; this one, {self.channel.me}, "
                    f"{_PROTOCOL.decode()}: all must run the same"
                )
        self.members = [pickle.loads(payload.partition(b"\0")[2]) for payload in payloads]
        self.division = Division(tuple(len(member.infos) for member in self.members), self.channel.me)
        self.channel.names = [self._name(number) for number in range(len(self.members))]
        for number, member in enumerate(self.members):
            if member.settings != self.members[0].settings:
                self._all_know = True
                raise InvalidUsageError(
                    f"{self.channel.names[number]} opens its communicator with {member.settings}, "
                    f"{self.channel.names[0]} with {self.members[0].settings}: all must say the same"
                )

    def _name(self, number: int) -> str:
        ranks = self.division.ranks(number)
        which = f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"
        return f"process {number} ({which}, {self.members[number].host}, pid {self.members[number].pid})"

    def exchange(self, payload: bytes, what: str, check: Callable[[], None]) -> list[bytes]:
        """Give every process ``payload``; see :meth:`Channel.exchange`."""
        return self.channel.exchange(payload, what, check)

    def fail(self, cause: BaseException | str) -> None:
        """Tell the other processes that this one has failed; the process ends by MPI_Abort, see :func:`_leave`.

        Where all of them have found the same, nothing is to be told, and MPI has nothing under way.
        """
        if self._all_know:
            self.close()
            return
        with self._lock:
            if self._closed or self in _broken:
                return
            if not _broken:
                atexit.register(_leave)
            _broken.append(self)
        if isinstance(cause, (VkparError, str)):
            text = str(cause)
        else:
            text = f"{type(cause).__name__}: {cause}"
        if self._channel is not None:
            self._channel.notify(channel.FAILED, text)

    def leave(self) -> None:
        """Tell the others that this process is about to end."""
        if self._channel is not None:
            self._channel.notify(channel.LEAVES)

    def all_leave(self) -> bool:
        """Say whether every other process that has this communicator is about to end, or has closed it."""
        if self._channel is None:  # they were never met
            return True
        self.channel.look()
        closed = {number for number, (kind, _) in self.channel.told.items() if kind == channel.CLOSED}
        return self.channel.leaving | closed >= set(self.channel.others)

    def abort(self) -> None:
        """End all processes of the job."""
        self._mpi.COMM_WORLD.Abort(1)

    def close(self) -> None:
        """Tell the others, and give back what MPI holds; of a failed communicator that stays."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self in _broken:
                return
        self.channel.notify(channel.CLOSED)
        with _parts:
            atexit.unregister(_part_all)
            atexit.register(_part_all)
            _parting.append(self)
        _part(_PART_SECONDS)

    def free(self) -> None:
        """Give back what MPI holds."""
        if self.channel.close():
            with mpi.lock:
                self.data.Free()


def _part(seconds: float) -> None:
    """Free the communicators that every process has closed, and wait so long for those that are not.

    MPI gives the number of a freed communicator to a later one, to which late words for the first would go.
    """
    nap = Nap()
    while True:
        with _parts:
            for world in [world for world in _parting if world.all_leave()]:
                _parting.remove(world)
                world.free()
        if not _parting or nap.waited > seconds:
            return
        time.sleep(0.001)


def _part_all() -> None:
    """Free all of them, at the end of the process."""
    if _parting and not _parting[0].module.Is_finalized():
        _part(_PART_SECONDS)
        while _parting:
            _parting.pop().free()


def _leave() -> None:
    """End a process of which a communicator has failed: MPI_Finalize could wait for ever for one that hangs or is dead.

    First the others are waited for, which may yet have to say what they were told, as long as a collective would be.
    """
    worlds = list(_broken)
    for world in worlds:
        world.leave()
    nap = Nap()
    while worlds and nap.waited < max(world._timeout for world in worlds):
        worlds = [world for world in worlds if not world.all_leave()]
        time.sleep(0.01)
    for world in list(_broken):
        world.abort()
