"""Files of weights in memory: mapped, read-only, and every place in them checked before it is used."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vkpar import regular
from vkpar.errors import WeightsError

_POINTERS: Final = (b"version https://git-lfs.github.com/", b"version https://hawser.github.com/")


class MappedFile:
    """A file that is mapped into memory, whose pages are read when they are touched.

    It must not be cut shorter while it is mapped: the operating system ends processes that touch what is gone.

    Args:
        path: a regular file, or a link to one.

    Attributes:
        path: the file, for messages.
        nbytes: its size.

    Raises:
        WeightsError: no such file, one that cannot be read or mapped, or Git's stand-in for it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            with open(self.path, "rb", opener=regular.opened) as stream:
                found = os.fstat(stream.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise WeightsError("not a regular file", self.path)
                if not found.st_size:
                    raise WeightsError("an empty file: fetch it again", self.path)
                _refuse_pointer(stream.read(max(map(len, _POINTERS))), self.path)
                self._map: mmap.mmap | None = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, OverflowError) as error:
            raise WeightsError(f"cannot be read: {error}", self.path) from error
        self.nbytes = len(self._map)

    @property
    def map(self) -> mmap.mmap:
        """The mapping.

        Raises:
            WeightsError: closed.
        """
        if self._map is None:
            raise WeightsError("these weights are closed; open_weights() opens them again", self.path)
        return self._map

    def view(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return bytes as a read-only array over the mapping; raises as :attr:`map` does."""
        return np.frombuffer(self.map, np.uint8, stop - start, start) if stop > start else np.empty(0, np.uint8)

    def close(self) -> None:
        """Unmap the file, once the arrays over it are gone; a second call does nothing."""
        mapped, self._map = self._map, None
        if mapped is not None:
            with suppress(BufferError):  # arrays over it are in use: the last of them unmaps it
                mapped.close()


def small(path: str | os.PathLike[str], most: int) -> bytes:
    """Return what a file beside weights holds.

    Raises:
        OSError: there is none, or it cannot be read, is no regular file, or holds more than ``most`` bytes.
        WeightsError: Git's stand-in for it.
    """
    data = regular.read(path, most)
    _refuse_pointer(data, os.fspath(path))
    return data


def _refuse_pointer(begin: bytes, path: str) -> None:
    if begin.startswith(_POINTERS):
        raise WeightsError("a pointer of git-lfs, not the file: git lfs pull fetches that, or download it", path)


class Place(NamedTuple):
    """Where a tensor lies in its file, in bytes."""

    start: int
    stop: int
    name: str


def check_places(path: str, places: Iterable[Place], first: int, end: int) -> None:
    """Refuse tensors that lie outside of the file's data, or over one another.

    Raises:
        WeightsError: such a tensor, named.
    """
    last = Place(first, first, "")
    for place in sorted(places):
        if not first <= place.start <= place.stop <= end:
            raise WeightsError(
                f"lies at bytes {place.start} to {place.stop} of a file whose data are {first} to {end}: it was cut "
                "off, or is damaged; fetch it again",
                path,
                place.name,
            )
        if place.start < last.stop and place.stop > place.start:
            raise WeightsError(f"lies over {last.name!r}: the file is damaged; fetch it again", path, place.name)
        last = place if place.stop > last.stop else last
