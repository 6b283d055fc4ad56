"""Who traces: told of what is opened and of what the host does; nobody, at first and mostly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from vkpar import env


class Watcher(Protocol):
    """What is told while a trace is open. Moments are seconds of ``time.monotonic``."""

    def opened(self, device: Any) -> None:
        """A device was opened."""

    def closing(self, device: Any) -> None:
        """A device is about to be closed; its work may be pending."""

    def connected(self, engine: Any) -> None:
        """A communicator was opened."""

    def host(self, name: str, begin: float, **told: Any) -> None:
        """The calling thread did something, from ``begin`` until now."""


watcher: Watcher | None = None

# Begins the trace that VKPAR_TRACE asks for, once; vkpar.tracing, which lies above this module, sets it.
asked: Callable[[str], None] | None = None


def opened(device: Any) -> None:
    """Tell of a device; the first one begins the trace that VKPAR_TRACE asks for."""
    path = env.get().trace
    if asked is not None and path:
        asked(path)
    if watcher is not None:
        watcher.opened(device)


def closing(device: Any) -> None:
    """Tell that a device is about to be closed, unless it is."""
    if watcher is not None and not device.closed:
        watcher.closing(device)
