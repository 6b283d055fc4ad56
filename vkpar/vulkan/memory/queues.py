"""What memory asks of a device's queue, which lies above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class CopyQueue(Protocol):
    """A queue that copies in program order, as :class:`vkpar.vulkan.queue.Queue` does."""

    family: int

    @property
    def last(self) -> int:
        """The timeline value that the newest submission will signal."""

    def run(self, record: Callable[[Any], None]) -> int:
        """Submit what ``record`` records into the ``commands`` of a frame; return its timeline value."""

    def wait(self, value: int) -> None:
        """Block until the timeline has ``value``."""

    def passed(self, value: int, seconds: float = 0.1) -> bool:
        """Wait for ``value``, ``seconds`` at most; say whether the timeline has it."""

    def confirm(self) -> None:
        """Let the validation layer see that what is done is done."""
