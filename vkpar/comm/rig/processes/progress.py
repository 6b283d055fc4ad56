"""The thread that has MPI carry slots between processes, in their turn among all batches."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from vkpar.comm.rig.processes import mpi
from vkpar.comm.rig.processes.mpi import Nap
from vkpar.comm.rig.processes.world import World
from vkpar.errors import CommunicatorError, within_limits
from vkpar.timeouts import SLICE_NS
from vkpar.vulkan.pump.hub import CHub, Errand

_TAG = 0
_JOIN_SECONDS = 5.0  # a thread that MPI keeps for longer is left behind
_LOOK_SECONDS = 0.05  # between looks at whether another process has failed

_kept: list[Progress] = []  # of those that were ended, what MPI still sends from or receives into


class SlotBytes(NamedTuple):
    """Bytes of the host's memory that are sent, or received: of slots, or of arrays that the host sees.

    Those at ``source``, unless that is 0, are copied there before.
    """

    address: int
    nbytes: int
    source: int = 0


class Progress:
    """Carries slots for one communicator; idle it sleeps, and looks ten times a second at what other processes tell.

    A queue of errands each leads to and from every other process. Messages of one direction are posted in the order of
    the schedule, which both ends share, so that they match without further ado. Many may be under way at once.

    Attributes:
        hub: the queues.
        error: what made the thread give up; None while it works.
        broken: says whether the rig's batches no longer run as they were submitted; nothing is carried then.

    Args:
        world: the processes.

    Raises:
        OutOfMemoryError: the system starts no thread, or has no memory left.
    """

    def __init__(self, world: World) -> None:
        self._world, self._mpi = world, world.module
        self._peers = world.division.others
        names = world.channel.names
        self.hub = CHub([f"{way} {names[peer]}" for peer in self._peers for way in ("to", "from")])
        self.error: CommunicatorError | None = None
        self.broken: Callable[[], object] = lambda: False
        self._numbers = itertools.count(1)
        self._jobs: dict[int, tuple[list[Any], list[tuple[int, int, int]]]] = {}
        self._flying: list[deque[tuple[list[Any], Errand]]] = [deque() for _ in self.hub.queues]
        self._with_arrays: set[int] = set()  # the errands that use more than slots
        self._stopped = self._posting = self._cancelled = False
        self.carried = self.carried_nbytes = 0
        self._looked = Nap()
        self._thread = threading.Thread(target=self._run, name="vkpar-mpi", daemon=True)
        with within_limits("a communicator's MPI thread"):
            self._thread.start()

    # ---- what is carried ----

    def add(self, pieces: Sequence[SlotBytes], *, arrays: bool = False) -> int:
        """Return the number of an errand, which may be given to a queue from now on; the rest as :meth:`replace`."""
        number = next(self._numbers)
        self.replace(number, pieces, arrays=arrays)
        return number

    def replace(self, number: int, pieces: Sequence[SlotBytes], *, arrays: bool = False) -> None:
        """Have an errand that no queue has carry ``pieces`` from now on; ``arrays`` says that some are no slots."""
        (self._with_arrays.add if arrays else self._with_arrays.discard)(number)
        buffers = self._mpi.buffer
        copied = [(piece.address, piece.source, piece.nbytes) for piece in pieces if piece.source]
        specs = [[buffers.fromaddress(piece.address, piece.nbytes), self._mpi.BYTE] for piece in pieces]
        self._jobs[number] = specs, copied

    def cancel(self) -> None:
        """Have nothing posted any more, nor received that has not begun: users may write to their arrays again.

        Receives that have begun go on, and so do sends, as MPICH's MPI_Cancel of a send may crash.
        """
        with mpi.briefly() as free:
            self._cancelled = True
            for flying in self._flying[1::2] if free else ():
                for request in itertools.chain.from_iterable(requests for requests, _ in list(flying)):
                    with suppress(self._mpi.Exception):  # that of a process which is gone keeps no other one
                        if not request.Test():
                            request.Cancel()

    @property
    def uses_arrays(self) -> bool:
        """Say whether MPI may use arrays, and not slots alone; asked once the hub is halted."""
        if self._posting:  # nobody knows what
            return bool(self._with_arrays)
        flying = [errand.number for queue in self._flying for _, errand in list(queue)]
        return not self._with_arrays.isdisjoint(flying)

    def remove(self, number: int) -> None:
        """Forget an errand that no queue has."""
        self._jobs.pop(number, None)
        self._with_arrays.discard(number)

    # ---- the thread ----

    def _run(self) -> None:
        nap = Nap()
        while not self._stopped:
            try:
                if self._post() | self._finish():
                    nap.reset()
                self._look()
            except Exception as error:  # of MPI, or a bug: whoever waits must know
                self.error = CommunicatorError(f"carrying slots between processes failed: {error}")
                self.error.__cause__ = error
                self.hub.halt()
                return
            if any(self._flying):
                self.hub.rest(int(nap.seconds() * 1e9))
            else:
                self.hub.rest(SLICE_NS)
                nap.reset()

    def _post(self) -> bool:
        self._posting = True
        errands = self.hub.take()
        if errands and self.broken():  # what was to be written to the slots before may never be
            self.hub.halt()
            errands = []
        for errand in errands:
            self._flying[errand.queue].append((self._requests(errand), errand))
        self._posting = False
        return bool(errands)

    def _requests(self, errand: Errand) -> list[Any]:
        peer, comm = self._peers[errand.queue // 2], self._world.data
        post = comm.Irecv if errand.queue % 2 else comm.Isend
        specs, copied = self._jobs[errand.number]
        for copy in copied:
            ctypes.memmove(*copy)
        with mpi.lock:
            if self._cancelled:
                return []
            requests = [post(spec, peer, _TAG) for spec in specs]
        self.carried += len(requests)
        self.carried_nbytes += sum(len(spec[0]) for spec in specs)
        return requests

    def _finish(self) -> bool:
        moved = False
        for queue, flying in enumerate(self._flying):
            value = 0
            while flying and self._is_done(flying[0][0]):
                value = flying.popleft()[1].value
            if value:
                self.hub.done(queue, value)
                moved = True
        return moved

    @staticmethod
    def _is_done(requests: list[Any]) -> bool:
        with mpi.lock:
            return all(request.Test() for request in requests)

    def _look(self) -> None:
        """See whether another process has failed; that it has left is no matter until it is needed."""
        if self._looked.waited < _LOOK_SECONDS:
            return
        self._looked.reset()
        self._world.channel.look()
        failed = self._world.channel.gone(())
        if failed and self.error is None:
            self.error = CommunicatorError(failed)

    # ---- the end ----

    def stop(self) -> bool:
        """End the thread; say whether MPI uses no slot any more."""
        self._stopped = True
        self.hub.stop()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive() or any(self._flying):  # MPICH's MPI_Cancel of a send may crash
            _kept.append(self)
            return False
        return True

    def close(self) -> None:
        """Free the queues of a thread that was ended; those of one that MPI keeps stay."""
        if not self._thread.is_alive():
            self.hub.close()
