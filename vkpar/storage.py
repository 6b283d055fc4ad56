"""The memory behind an array and its views."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable

from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.subbuffers import SubBuffers

_serials = itertools.count(1)


class Storage:
    """A device's memory for one array and its views; given back when the last of them goes, or by :meth:`close`.

    Attributes:
        nbytes: its size.
        serial: what tells it from all others of this process.
        held_by: None where anybody may use it; else what is to be asked through :meth:`check_free`.
    """

    def __init__(self, device: Device, nbytes: int, label: Callable[[], str] | None = None) -> None:
        self.device = device
        self.nbytes = nbytes
        self.serial = next(_serials)
        self.held_by: Callable[[], object] | None = None  # a group of collectives, weakly
        self.closed = False
        self._memory: SubBuffers | None = None
        logical = device.logical
        if nbytes:
            self._memory = logical.allocate_array(nbytes, label)
            self._finalizer = weakref.finalize(self, logical.retire, self._memory)
            self._finalizer.atexit = False

    @property
    def memory(self) -> SubBuffers:
        """The buffers.

        Raises:
            InvalidUsageError: there are none, they were given back, or the device is closed.
        """
        self.device.logical.check_open()
        self.check_free()
        if self._memory is None:
            raise InvalidUsageError("an array without elements has no memory")
        return self._memory

    def holder(self) -> object:
        """Return the group of collectives that names this memory and was not left yet, None for none."""
        return None if self.held_by is None else self.held_by()

    def check_free(self, group: object = None) -> None:
        """Refuse use after :meth:`close`, and while another group of collectives than ``group`` names the memory.

        Raises:
            InvalidUsageError
        """
        if self.held_by is None:
            return
        if self.closed:
            raise InvalidUsageError("the memory of this array was given back by close(), its own or that of a view")
        holder = self.holder()
        if holder is not None and holder is not group:
            raise InvalidUsageError("the array is pending in a group of collectives that was not left yet")

    def close(self) -> None:
        """Give the memory back once the work submitted so far is done; a second call does nothing.

        Raises:
            InvalidUsageError: a group of collectives names it and was not left yet.
        """
        if self.closed:
            return
        self.check_free()
        self.closed = True
        self.held_by = _nobody
        if self._memory is not None:
            self._finalizer()


def _nobody() -> None:
    """Hold what was given back."""
