"""Who traces: told of what is opened and of what the host does; nobody, at first and mostly."""

from __future__ import annotations

from typing import Any, Protocol


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
