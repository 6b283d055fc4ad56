"""Groups: several collectives that are enqueued together, in one submission per queue."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from vkpar.comm.engine.landing import Landing
from vkpar.comm.engine.library import Asked
from vkpar.comm.engine.work import Work
from vkpar.errors import InvalidUsageError


@dataclass(slots=True)
class Member(Asked):
    """One collective of a group.

    Attributes:
        pins: objects that keep the arrays' memory until the group is submitted.
        landing: what the call stands for, where that has views whose elements do not lie side by side.
    """

    work: Work
    pins: list[Any]
    landing: Landing | None = None


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
        self._ref = weakref.ref(self)  # weak: an interrupt may drop the group

    def add(self, member: Member) -> Work:
        """Hold a collective back until the group is left."""
        self.members.append(member)
        ref = self._ref
        for arrays in (member.call.arrays, member.call.out or ()):
            for array in arrays:
                if array is not None:
                    storage = array.storage
                    storage.held_by = ref
                    storage.ready = None
        return member.work

    def take(self) -> list[Member]:
        """Return the collectives and release their arrays, which a close by another thread finds held until then."""
        members, self.members = self.members, []
        ref = self._ref
        for member in members:
            for arrays in (member.call.arrays, member.call.out or ()):
                for array in arrays:
                    if array is not None and array.storage.held_by is ref:
                        storage = array.storage
                        storage.ready = storage.own if storage.number else None
                        storage.held_by = None
            if member.landing is not None:
                member.landing.release()
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
