"""Which threads capture: what such a thread asks of a device's stream goes into a graph in place of the stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from vkpar.errors import InvalidUsageError
from vkpar.vulkan.memory.recycle import Divided, Recycler


class Operation(NamedTuple):
    """One operation as the C helper takes it.

    Attributes:
        name: of the operation.
        record: the helper's function that records it; its first argument is the recording.
        arguments: the other arguments.
        pins: what has to live as long as the operation may run: memory, the kernel.
    """

    name: str
    record: Any
    arguments: tuple[Any, ...]
    pins: Sequence[object]


class Capture(Protocol):
    """What a thread captures into."""

    def holds(self, stream: object) -> bool:
        """Say whether operations of this stream are captured."""

    def add(self, stream: object, operation: Operation) -> None:
        """Take an operation of a stream."""


class Captured(Protocol):
    """What a capture changes of a device."""

    recycler: Recycler | Divided

    @property
    def label(self) -> str:
        """Its name, for messages."""

    @property
    def gate(self) -> Any:
        """Shut before it is closed."""

    @property
    def stream(self) -> Any:
        """What gathers its operations."""


_changing = threading.Lock()  # held while captures of devices begin and end
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


def attach(device: Captured, memory: Recycler) -> None:
    """Have what this thread asks of a device go to its capture; arrays that it makes lie in what ``memory`` keeps.

    Raises:
        InvalidUsageError: another thread captures the device, or it is closed.
    """
    with device.gate.lock(), _changing:
        device.gate.check()
        if isinstance(device.recycler, Divided):
            raise InvalidUsageError(f"{device.label} is captured by another thread already; one capture at a time")
        device.recycler = Divided(device.recycler, memory)
        device.stream.capture(on=True)


def detach(device: Captured, memory: Recycler) -> None:
    """End what :func:`attach` began with ``memory``; does nothing where it began nothing."""
    with _changing:
        divided = device.recycler
        if isinstance(divided, Divided) and divided.own is memory:
            device.stream.capture(on=False)
            device.recycler = divided.rest


@contextmanager
def outside(device: Captured) -> Iterator[None]:
    """Let this thread, which captures the device, make arrays that no captured operation but those on them reach.

    Others may lie where an array of the graph lay that was dropped.
    """
    divided = device.recycler
    assert isinstance(divided, Divided), "this thread captures the device"
    divided.paused = True
    device.stream.capture(on=False)
    try:
        yield
    finally:
        device.stream.capture(on=True)
        divided.paused = False
