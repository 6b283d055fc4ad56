"""Groups: several collectives that are enqueued together, in one submission per queue."""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vkpar.comm.engine.work import Work
from vkpar.comm.requests.collectives import Request
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from vkpar.comm.communicator import Communicator


class Group:
    """The collectives that one thread asked for inside ``with communicator.group():``.

    The arrays that they name cannot be used until the group is left: work on them would run before the collectives.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._used = False
        self.thread = threading.get_ident()
        self.items: list[tuple[Any, Request, Work, list[Any]]] = []

    def add(self, key: Any, request: Request, work: Work, pins: list[Any]) -> Work:
        """Put a checked collective off until the group is left; ``pins`` keep its arrays' memory until then."""
        self.items.append((key, request, work, pins))
        for array in request.arrays:
            array.storage.held_by = weakref.ref(self)  # a group that an interrupt cut short lets go by itself
        return work

    def take(self) -> list[tuple[Any, Request, Work, list[Any]]]:
        """Return the collectives, and let their arrays be used again."""
        items, self.items = self.items, []
        for _, request, *_ in items:
            for array in request.arrays:
                if array.storage.holder() is self:
                    array.storage.held_by = None
        return items

    def __repr__(self) -> str:
        return f"<vkpar group of {len(self.items)} collectives, not enqueued>"

    def __enter__(self) -> Group:
        if self._used or self.thread != threading.get_ident():
            raise InvalidUsageError("a group is entered once, by the thread that asked for it")
        self._used = True
        self._communicator.enter_group(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._communicator.leave_group(self, enqueue=kind is None)
