"""Small messages between the processes of a communicator: what every call is, and notices of failure and leave."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from vkpar.comm.rig.processes import mpi
from vkpar.comm.rig.processes.mpi import Nap
from vkpar.errors import CommunicatorError
from vkpar.vulkan.pump.hub import let_others_run

_CALL, _REST, _NOTICE = 1, 2, 3  # tags
_HEAD = 1024  # bytes of a message; what is longer follows in a second one
_LENGTH = struct.Struct("<Q")
_NOTICE_NBYTES = 1024
FAILED, CLOSED, LEAVES = 1, 2, 3
_GRACE_SECONDS = 1.0  # a message that was sent before a notice of leave may arrive after it
_kept: list[Channel] = []  # of those that are closed, what MPI may still send from or receive into
_WORDS: Final = {FAILED: "failed", CLOSED: "closed the communicator", LEAVES: "has ended"}


class Channel:
    """Exchanges of bytes among all processes, in which each waits for all others, and notices, which none waits for.

    Args:
        module: ``mpi4py.MPI``.
        comm: a communicator of this object's own.
        timeout: seconds that an exchange waits for a process.

    Attributes:
        names: by process, what errors call it; set once that is known.
        told: by process, whether it has failed or closed the communicator, and in which words.
        leaving: the processes that are about to end.
        others: all processes but this one.
    """

    def __init__(self, module: Any, comm: Any, timeout: float) -> None:
        self._mpi, self._comm, self._timeout = module, comm, timeout
        self.me, self.size = int(comm.rank), int(comm.size)
        self.names = [f"process {number}" for number in range(self.size)]
        self.told: dict[int, tuple[int, str]] = {}
        self.leaving: set[int] = set()
        self.others = [number for number in range(self.size) if number != self.me]
        self._heads = {number: bytearray(_HEAD) for number in self.others}
        self._words = {number: bytearray(_NOTICE_NBYTES) for number in self.others}
        self._sent: list[tuple[Any, Any]] = []  # requests that may not be done, and what they read or write
        with mpi.lock:
            self._receives = self._started(self._heads, _CALL)
            self._notices = self._started(self._words, _NOTICE)

    def _started(self, buffers: dict[int, bytearray], tag: int) -> dict[int, Any]:
        made = {}
        for number, buffer in buffers.items():
            made[number] = self._comm.Recv_init([buffer, self._mpi.BYTE], number, tag)
            made[number].Start()
        return made

    # ---- exchanges ----

    def exchange(self, payload: bytes, what: str, check: Callable[[], None] = lambda: None) -> list[bytes]:
        """Give every process ``payload`` and return, by process, what each gave.

        Args:
            payload: of this process.
            what: the call, for errors.
            check: called meanwhile; what it raises ends the wait.

        Raises:
            CommunicatorError: a process has failed, left, or not come within the timeout; or MPI says no.
        """
        try:
            return self._exchange(payload, what, check)
        except self._mpi.Exception as error:
            raise CommunicatorError(f"{what}: MPI failed: {error}") from error

    def _exchange(self, payload: bytes, what: str, check: Callable[[], None]) -> list[bytes]:
        head = (_LENGTH.pack(len(payload)) + payload[: _HEAD - _LENGTH.size]).ljust(_HEAD, b"\0")
        rest = payload[_HEAD - _LENGTH.size :]
        with mpi.lock:
            sends = [self._send(head, number, _CALL) for number in self.others]
            if rest:
                sends += [self._send(rest, number, _REST) for number in self.others]
        self._wait(self._receives, what, check)
        found: dict[int, Any] = {self.me: payload}
        longer: dict[int, Any] = {}
        with mpi.lock:
            for number in self.others:
                (length,) = _LENGTH.unpack_from(self._heads[number])
                found[number] = bytearray(self._heads[number][_LENGTH.size : _LENGTH.size + length])
                if length > _HEAD - _LENGTH.size:
                    more = bytearray(length - len(found[number]))
                    longer[number] = self._comm.Irecv([more, self._mpi.BYTE], number, _REST)
                    self._sent.append((longer[number], more))
                    found[number] = (found[number], more)
                self._receives[number].Start()
        self._wait(longer, what, check)
        self._wait({f"send {index}": send for index, send in enumerate(sends)}, what, check)
        with mpi.lock:
            self._drop_done()
        return [self._joined(found[number]) for number in range(self.size)]

    def _send(self, data: bytes, number: int, tag: int) -> Any:
        """Begin to send, and keep the data until that is done: an exchange may be given up."""
        self._sent.append((self._comm.Isend([data, self._mpi.BYTE], number, tag), data))
        return self._sent[-1][0]

    def _drop_done(self) -> None:
        self._sent = [pair for pair in self._sent if not pair[0].Test()]

    @staticmethod
    def _joined(found: Any) -> bytes:
        return b"".join(found) if isinstance(found, tuple) else bytes(found)

    def _wait(self, requests: dict[Any, Any], what: str, check: Callable[[], None]) -> None:
        left, nap, overdue = list(requests.items()), Nap(), 0.0
        while True:
            check()
            with mpi.lock:
                left = [(key, request) for key, request in left if not request.Test()]
            if not left:
                return
            if nap.is_eager:
                let_others_run()
                continue
            missing = [key for key, _ in left if isinstance(key, int)]
            gone = self.gone(missing)
            overdue = overdue or (time.monotonic() if gone else 0.0)
            # One that is waited for may itself wait for another, and say so when its own time is over.
            late = nap.waited > self._timeout + (_GRACE_SECONDS if len(self.others) > 1 else 0.0)
            if gone and (late or time.monotonic() - overdue > _GRACE_SECONDS):
                raise CommunicatorError(f"{what}: {gone}")
            if late:
                names = ", ".join(self.names[key] for key in missing)
                raise CommunicatorError(
                    f"{what}: {names or 'MPI'} has not made this call within {self._timeout:g} s",
                    {"processes": missing, "call": what},
                )
            time.sleep(nap.seconds())

    # ---- notices ----

    def notify(self, kind: int, text: str = "") -> None:
        """Tell all other processes, without waiting."""
        words = (bytes([kind]) + text.encode()[: _NOTICE_NBYTES - 2]).ljust(_NOTICE_NBYTES, b"\0")
        for number in self.others:
            try:
                with mpi.briefly() as free:
                    if free:
                        self._send(words, number, _NOTICE)
            except self._mpi.Exception:  # that process is gone
                continue

    def look(self) -> None:
        """Take the notices that have come."""
        for number, request in self._notices.items():
            try:
                with mpi.briefly() as free:
                    while free and request.Test():
                        kind, text = self._words[number][0], bytes(self._words[number][1:]).rstrip(b"\0")
                        if kind == LEAVES:
                            self.leaving.add(number)
                        self.told.setdefault(number, (kind, text.decode(errors="replace")))
                        request.Start()
            except self._mpi.Exception as error:
                self.told.setdefault(number, (FAILED, f"MPI: {error}"))

    def gone(self, processes: Sequence[int] | None = None) -> str:
        """Return in words which of the processes, all by default, has failed or left; "" where none has."""
        self.look()
        wanted = self.others if processes is None else processes
        told = [(number, *self.told[number]) for number in wanted if number in self.told]
        failed = [(number, kind, text) for number, (kind, text) in self.told.items() if kind == FAILED]
        for number, kind, text in failed or told:
            return f"{self.names[number]} {_WORDS[kind]}{f': {text}' if text else ''}"
        return ""

    def close(self) -> bool:
        """Cancel what is awaited, and free the communicator; say whether nothing that was sent is left.

        Where something is left the communicator stays, as MPI may still use it.
        """
        with mpi.lock:
            for request in (*self._receives.values(), *self._notices.values()):
                while request.Test():  # what has come for a call that was given up is taken
                    request.Start()
                request.Cancel()
                request.Wait()
                request.Free()
            self._receives, self._notices = {}, {}
            self._drop_done()
            if not self._sent:
                self._comm.Free()
            else:
                _kept.append(self)
        return not self._sent
