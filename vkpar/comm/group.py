"""Groups: several collectives that are enqueued together, in one submission per queue."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vkpar.array import Array
from vkpar.comm.collectives import Request
from vkpar.comm.work import Work
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from vkpar.comm.communicator import Communicator


class Group:
    """The collectives that one thread asked for inside ``with communicator.group():``.

    The arrays that they name cannot be used until the group is left: work on them would run before the collectives.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._thread = threading.get_ident()
        self.items: list[tuple[Any, Request, Work]] = []

    def add(self, key: Any, request: Request, work: Work) -> Work:
        """Put a checked collective off until the group is left."""
        self.items.append((key, request, work))
        for array in request.arrays:
            array.storage.held_by = self
        return work

    def refuse(self, array: Array) -> None:
        """Say why ``array`` cannot be used now.

        Raises:
            InvalidUsageError
        """
        raise InvalidUsageError(f"{array!r} is pending in a group of collectives that was not left yet")

    def release(self) -> None:
        """Let the arrays be used again."""
        for _, request, _ in self.items:
            for array in request.arrays:
                if array.storage.held_by is self:
                    array.storage.held_by = None

    def __enter__(self) -> Group:
        self._communicator.enter_group(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._communicator.leave_group(self, enqueue=kind is None)
