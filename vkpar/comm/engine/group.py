"""Groups: several collectives that are enqueued together, in one submission per queue."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from vkpar.arrays.storage import Storage
from vkpar.comm.engine.work import Work
from vkpar.comm.record.entry import Entry
from vkpar.comm.requests.collectives import Request
from vkpar.comm.requests.keys import Call
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.memory.subbuffers import SubBuffers


@dataclass(slots=True)
class Member:
    """One collective of a group.

    Attributes:
        key: the key of the call's recorded programs.
        entry: the programs recorded for an equal call before, which may be another call's when the group is left.
        nretired: the cache's when the entry was found.
        request: the checked call; None where it, or one of its form, was checked before.
        pins: objects that keep the arrays' memory until the group is submitted.
    """

    key: Any
    call: Call
    entry: Entry | None
    nretired: int
    request: Request | None
    work: Work
    pins: list[Any]


class Group:
    """The collectives that one thread asked for inside ``with communicator.group():``.

    The arrays that they name cannot be used until the group is left: work on them would run before the collectives.

    Args:
        enter: called with the group when the block is entered.
        leave: called with the group when the block is left, and with ``enqueue=``: False after an exception.
    """

    def __init__(self, enter: Callable[[Group], None], leave: Callable[..., None]) -> None:
        self._enter, self._leave = enter, leave
        self._used = False
        self.thread = threading.get_ident()
        self.members: list[Member] = []
        self._held: list[tuple[Storage, SubBuffers | None]] = []  # and what each was ready with
        self._ref = weakref.ref(self)  # weak: an interrupt may drop the group

    def add(self, member: Member) -> Work:
        """Hold a collective back until the group is left."""
        self.members.append(member)
        held, ref = self._held, self._ref
        call = member.call
        for array in call.arrays if call.out is None else (*call.arrays, *call.out):
            if array is not None:
                storage = array.storage
                if storage.held_by is not ref:
                    held.append((storage, storage.ready))
                    storage.held_by = ref
                    storage.ready = None
        return member.work

    def take(self) -> list[Member]:
        """Return the collectives and release their arrays, which a close by another thread finds held until then."""
        members, self.members = self.members, []
        held, self._held = self._held, []
        for storage, ready in held:
            if storage.held_by is self._ref:
                storage.ready = ready
                storage.held_by = None
        return members

    def __repr__(self) -> str:
        return f"<vkpar group of {len(self.members)} collectives, not enqueued>"

    def __enter__(self) -> Group:
        if self._used or self.thread != threading.get_ident():
            raise InvalidUsageError("a group is entered once, by the thread that asked for it")
        self._used = True
        self._enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self, enqueue=kind is None)


class OpenGroups:
    """The groups that are open on one communicator, at most one per thread.

    Attributes:
        by_thread: the groups by their threads' numbers; a dropped group counts as left.
    """

    def __init__(self) -> None:
        self.by_thread: dict[int, weakref.ref[Group]] = {}

    def current(self) -> Group | None:
        """Return the group that this thread has open."""
        held = self.by_thread.get(threading.get_ident())
        return None if held is None else held()

    def enter(self, group: Group) -> None:
        """Open a group of this thread.

        Raises:
            InvalidUsageError: this thread has a group open already.
        """
        if self.current() is not None:
            raise InvalidUsageError("groups do not nest: this thread has one open on the communicator")
        self.by_thread[group.thread] = weakref.ref(group)

    def leave(self, group: Group) -> None:
        """Close a group."""
        self.by_thread.pop(group.thread, None)
