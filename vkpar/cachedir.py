"""The folder of files that outlive the process: tunings and compiled kernels.

What lies there is believed, so a folder that another user can write is not used. Every access opens the folder first
and then names files relative to it, so that the folder that was checked is the one that is read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from vkpar import env, regular
from vkpar.errors import UnsupportedError

_log = logging.getLogger("vkpar")
_MOST: Final = 16 << 20  # bytes of a file: tunings and kernels hold far less
_refused: set[Path] = set()
_Found = TypeVar("_Found")
# What reading a document that was not written by this version may raise.
_SENSELESS: Final = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, UnsupportedError),
)


def directory() -> Path | None:
    """Return ``VKPAR_CACHE_DIR``, else ``vkpar`` in the user's cache directory; None where there is none."""
    named, cache = env.get().cache_dir, os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(cache) if cache else Path.home() / ".cache") / "vkpar"
    except RuntimeError:  # no home directory
        return None


def read(name: str) -> bytes | None:
    """Return what the file ``name`` of the folder holds; None where there is none, or none to be trusted.

    Raises:
        OSError: it is there and cannot be read, is no regular file, or larger than anything that is kept.
    """
    try:
        with _opened() as folder:
            if folder is None:
                return None

            def opener(name: str, flags: int) -> int:
                return regular.opened(name, flags | os.O_NOFOLLOW, dir_fd=folder)

            with open(name, "rb", opener=opener) as stream:
                return regular.content(stream, _MOST) if not _danger(os.fstat(stream.fileno())) else None
    except FileNotFoundError:
        return None


def write(name: str, data: bytes) -> Path | None:
    """Keep ``data`` as the file ``name``; readers see what was there before or all of it.

    Returns:
        The file; None where there is no folder to be trusted.

    Raises:
        OSError: it cannot be written, or is larger than what would be read.
    """
    where = directory()
    if where is None:
        return None
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"{len(data)} bytes are more than the {_MOST} of a file that is kept", name)
    os.makedirs(where, mode=0o700, exist_ok=True)
    with _opened() as folder:
        if folder is None:
            return None
        made = f"{name}.{secrets.token_hex(8)}.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(made, flags, 0o600, dir_fd=folder), "wb") as stream:
                stream.write(data)
            os.replace(made, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(made, dir_fd=folder)
            raise
    return where / name


def named(what: str, about: Mapping[str, object]) -> str:
    """Return the name of the document of a measurement: what it is of, then a digest of all that it depends on."""
    text = json.dumps(about, sort_keys=True)
    return f"{what}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def document(name: str, parse: Callable[[Any], _Found], level: int = logging.WARNING) -> _Found | None:
    """Return what ``parse`` makes of a JSON document; None where there is none, or one that makes no sense (logged)."""
    try:
        data = read(name)
        return None if data is None else parse(json.loads(data))
    except _SENSELESS as error:
        where = directory()
        _log.log(level, "%s cannot be used, it is measured again: %s", where / name if where else name, error)
        return None


def keep(name: str, values: Mapping[str, object], level: int = logging.WARNING) -> Path | None:
    """Keep a JSON document; return its file, None where it cannot be written, or not safely (logged)."""
    why: object = "there is no cache folder; VKPAR_CACHE_DIR may name one"
    try:
        written = write(name, json.dumps(values, indent=2).encode())
    except OSError as error:
        written, why = None, error
    if written is None:
        _log.log(level, "%s is not kept beyond this process: %s", name, why)
    return written


def prune(prefix: str, most: int) -> None:
    """Delete the oldest of the files that begin with ``prefix``, a quarter of them, where there are more than ``most``.

    Raises:
        OSError: they cannot be listed.
    """
    with _opened() as folder:
        if folder is None:
            return
        found = [name for name in os.listdir(folder) if name.startswith(prefix)]
        if len(found) <= most:
            return
        for name in _by_age(folder, found)[: len(found) - most + most // 4]:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def names(prefix: str) -> list[str]:
    """Return the names of the files that begin with ``prefix``, the newest first; none where nothing is to be trusted.

    Raises:
        OSError: they cannot be listed.
    """
    try:
        with _opened() as folder:
            if folder is None:
                return []
            return _by_age(folder, [name for name in os.listdir(folder) if name.startswith(prefix)])[::-1]
    except FileNotFoundError:
        return []


def _by_age(folder: int, found: list[str]) -> list[str]:
    """Return the names of files, the oldest first."""
    ages: list[tuple[float, str]] = []
    for name in found:
        with suppress(FileNotFoundError):
            ages.append((os.stat(name, dir_fd=folder).st_mtime, name))
    return [name for _, name in sorted(ages)]


@contextmanager
def _opened() -> Iterator[int | None]:
    """Open the folder; None, and one warning, where it is not to be trusted.

    Raises:
        OSError: there is none, or it cannot be opened.
    """
    where = directory()
    if where is None:
        yield None
        return
    folder = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        danger = _danger(os.fstat(folder))
        if danger and where not in _refused:
            _refused.add(where)
            _log.warning(
                "the cache folder %s is not used: %s. Make it yours alone (chmod 700), or name another in "
                "VKPAR_CACHE_DIR",
                where,
                danger,
            )
        yield None if danger else folder
    finally:
        os.close(folder)


def _danger(found: os.stat_result) -> str:
    """Return why others can change a file or a folder; nothing where they cannot."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user ({found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write it (mode {stat.S_IMODE(found.st_mode):o})"
    return ""
