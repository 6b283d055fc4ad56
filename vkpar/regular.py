"""Regular files of bounded size: a pipe, a device or a giant is an error at once, never waited for and never read."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, BinaryIO


def opened(path: str, flags: int, **how: Any) -> int:
    """Return what ``os.open`` does, which waits for the writer of a pipe: give it to ``open`` as its opener."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, **how)


def content(stream: BinaryIO, most: int) -> bytes:
    """Return what a file holds that was opened by :func:`opened`.

    Raises:
        OSError: it is no regular file, or holds more than ``most`` bytes.
    """
    found = os.fstat(stream.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    data = stream.read(most + 1) if found.st_size <= most else b""  # it may grow meanwhile
    if max(found.st_size, len(data)) > most:
        raise OSError(errno.EFBIG, f"it holds more than {most} bytes")
    return data


def read(path: str | os.PathLike[str], most: int) -> bytes:
    """Return what the file ``path`` holds; raises as :func:`content` does, and where there is none."""
    with open(path, "rb", opener=opened) as stream:
        return content(stream, most)
