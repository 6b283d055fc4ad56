"""Which process has the streams of a card: those of two that wait on one card keep each other's copies back."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vkpar.errors import UnsupportedError

_log = logging.getLogger("vkpar")
_lock = threading.Lock()
_holds: dict[str, tuple[int, int]] = {}  # by the card's UUID how often this process claimed it, and the locked file
_inherited: set[str] = set()


@contextmanager
def claimed(*uuids: str) -> Iterator[None]:
    """Keep cards from other processes of this machine (of this container), as long as the block runs.

    All processes take cards in the same order, so that of two that want the same ones, one has them.

    Raises:
        UnsupportedError: another process has one of them.
    """
    with ExitStack() as undo:
        for uuid in sorted(uuids):
            _claim(uuid)
            undo.callback(_release, uuid)
        yield


def inherit(*uuids: str) -> None:
    """Take cards for claimed: the process that started this one has them."""
    _inherited.update(uuids)


def _claim(uuid: str) -> None:
    with _lock:
        count, file = _holds.get(uuid, (0, -1))
        _holds[uuid] = count + 1, file if count or uuid in _inherited else _locked(uuid)


def _release(uuid: str) -> None:
    with _lock:
        count, file = _holds.pop(uuid)
        if count > 1:
            _holds[uuid] = count - 1, file
        elif file >= 0:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too
            os.close(file)


def _locked(uuid: str) -> int:
    """Return the card's file, locked; -1 where there can be none."""
    try:
        file = _opened(Path(tempfile.gettempdir(), f"vkpar-{uuid}.lock"))
    except OSError as error:
        _log.info("other processes may use the streams of card %s: %s", uuid, error)
        return -1
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise UnsupportedError(f"another process carries slots between cards, of which {uuid} is one") from None
    return file


def _opened(path: Path) -> int:
    """Open a file that any user may have made, all may open, and nobody writes to."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # none waits at a pipe of that name
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(file, 0o644)  # whatever the umask
    return file
