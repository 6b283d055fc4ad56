"""Which threads capture: what such a thread asks of a device's stream goes into a graph in place of the stream."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from vkpar.errors import InvalidUsageError


class Operation(NamedTuple):
    """One operation as the C helper takes it.

    Attributes:
        name: of the operation.
        record: the helper's function that records it; its first argument is the recording.
        arguments: the other arguments.
        pins: what has to live as long as the operation may run: memory, then the kernel, or None.
        touches: what it does to memory, as the ledger of failures takes it.
    """

    name: str
    record: Any
    arguments: tuple[Any, ...]
    pins: Sequence[object]
    touches: Sequence[tuple[int, ...]] = ()


class Capture(Protocol):
    """What a thread captures into."""

    def holds(self, stream: object) -> bool:
        """Say whether operations of this stream are captured."""

    def add(self, stream: object, operation: Operation) -> None:
        """Take an operation of a stream."""

    def renew(self, touches: Sequence[tuple[int, ...]]) -> None:
        """Count memory as written anew by what is captured."""


by_thread: dict[int, Any] = {}  # the captures under way; looked at by every collective, so it is no function


def current() -> Any:
    """Return this thread's capture, None for none."""
    return by_thread.get(threading.get_ident()) if by_thread else None


def refuse(stream: object, what: str) -> None:
    """Refuse what cannot be part of a graph, where this thread captures the stream.

    Raises:
        InvalidUsageError: it does.
    """
    capture = current()
    if capture is not None and capture.holds(stream):
        raise InvalidUsageError(
            f"{what} inside vkpar.capture: a graph has work of the devices alone; do it before or after"
        )
