"""The memory behind an array and its views."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol

from vkpar.arrays.forms import Plans
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.accounting import ARRAYS
from vkpar.vulkan.memory.subbuffers import SubBuffers

_serials = itertools.count(1)
GUARD: Final = 16384  # bytes of guard words on each side of a guarded array


class Owner(Protocol):
    """What memory asks of the device that it lies on, which lies above: see :class:`vkpar.device.Device`."""

    plans: Plans

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""

    @property
    def logical(self) -> LogicalDevice:
        """The Vulkan side, checked to be open."""

    def check_open(self) -> None:
        """Refuse it once it is closed."""

    def allocate_array(self, nbytes: int, label: Callable[[], str] | None, purpose: str) -> SubBuffers:
        """Return memory for an array."""


class Storage:
    """A device's memory for one array and its views; given back when the last of them goes, or by :meth:`close`.

    Attributes:
        nbytes: its size.
        serial: a number that no other storage of this process has.
        own: its memory; None where it has none, or gave it back.
        place: what no other memory in use has, in this process; it is the same where an array takes the memory of
            another one that was dropped.
        held_by: the group of collectives that names it and was not left yet, weakly; None for none. Who sets it sets
            ``ready``, too.
        closed: True after :meth:`close`.
        number: the VkBuffer that it lies in, and ``base`` where in that it begins; 0 where it lies in several.
        ready: the memory where an operation may use it without further ado, None where it has to look closer: there is
            none, it lies in several buffers, it was closed, or a group of collectives names it.
        guards: of a guarded array (:mod:`vkpar.testing`), what the bytes around it must be, and where it ends.
    """

    guards: Any = None

    def __init__(
        self, device: Owner, nbytes: int, label: Callable[[], str] | None = None, purpose: str = ARRAYS
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self.serial = next(_serials)
        self.held_by: Callable[[], object] | None = None
        self.closed = False
        self.number = self.base = 0
        self.ready: SubBuffers | None = None
        self.own: SubBuffers | None = None
        self.place: Hashable = self.serial
        if not nbytes:
            device.check_open()
            return
        self.own = memory = device.allocate_array(nbytes, label, purpose)
        if len(memory.buffers) == 1:
            buffer = memory.buffers[0]
            self.number, self.base, self.ready = buffer.number, buffer.offset, memory
            self.place = buffer.place
        else:
            self.place = memory.place

    @property
    def memory(self) -> SubBuffers:
        """The buffers, which stay for as long as somebody holds them, even if the storage is closed meanwhile.

        Raises:
            InvalidUsageError: the array has no elements, its memory was given back, or the device is closed.
        """
        self.device.check_open()
        self.check_free()
        memory = self.pin()
        if memory is None:
            raise InvalidUsageError("an array without elements has no memory")
        return memory

    def pin(self) -> SubBuffers | None:
        """Return the buffers, which are not given back while the caller holds them; None where there are none.

        Raises:
            InvalidUsageError: the memory was given back.
        """
        memory = self.own
        if self.closed:
            raise InvalidUsageError("the memory of this array was given back by close(), its own or that of a view")
        return memory

    def holder(self) -> object:
        """Return the group of collectives that names this memory and was not left yet, None for none."""
        return None if self.held_by is None else self.held_by()

    def check_free(self, group: object = None) -> None:
        """Refuse use after :meth:`close`, and while another group of collectives than ``group`` names the memory.

        Raises:
            InvalidUsageError: the memory was given back, or is pending in another group.
        """
        self.pin()
        holder = self.holder()
        if holder is not None and holder is not group:
            raise InvalidUsageError("the array is pending in a group of collectives that was not left yet")
        if holder is None and (self.held_by is not None or (self.ready is None and self.number)):
            self.ready = self.own if self.number else None  # an interrupt has cut the group short
            self.held_by = None

    def close(self) -> None:
        """Give the memory back once the calls under way and the work submitted so far are done.

        A second call does nothing.

        Raises:
            InvalidUsageError: a group of collectives names it and was not left yet.
        """
        if not self.closed:
            self.check_free()
            self.closed = True
            self.ready = self.own = None
