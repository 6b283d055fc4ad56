"""What a vendor's library offers for its cards: memory that all of them reach, and streams of copies and flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory.buffer import BufferRange


class CardMemory(Protocol):
    """Memory of one card that its Vulkan device and the other cards' copy engines use.

    Attributes:
        address: where it begins, for copy engines.
        nbytes: its size.
        heap: the device's heap that it counts to.
    """

    address: int
    nbytes: int
    heap: int

    def range(self) -> BufferRange:
        """Return all of it as Vulkan's device names it."""

    def close(self) -> None:
        """Give it back; nothing that uses it may be pending."""


class CopyStream(Protocol):
    """What a card's copy engine does, one after the other.

    Attributes:
        handle: as the vendor's functions take it.
    """

    handle: int

    def idle(self) -> bool:
        """Say whether all is done."""

    def close(self) -> None:
        """Give it back; it must be idle."""


class Card(Protocol):
    """One card, as the vendor's library knows it.

    Attributes:
        context: as the vendor's functions take it.
    """

    context: int

    def reaches(self, other: Any) -> bool:
        """Say whether its copy engines read and write ``other``'s memory."""

    def memory(
        self, device: Any, info: DeviceInfo, families: Sequence[int], nbytes: int, cards: Sequence[Any]
    ) -> CardMemory:
        """Return new memory of the card, zeros, for queue families of a VkDevice and the copy engines of ``cards``."""

    def stream(self) -> CopyStream:
        """Return a new stream."""

    def close(self) -> None:
        """Let go of the card."""


class Vendor(Protocol):
    """A vendor's library.

    Attributes:
        name: of the library.
        functions: addresses of what makes a context current, and the last one current again; and of what a stream
            takes: a wait for a word, a copy, the writing of a word.
        masks: the wait takes a mask of the word's bits, too.
        alone: one process at a time may have streams of a card, see :mod:`vkpar.vulkan.peer.claims`.
    """

    name: str
    functions: tuple[int, ...]
    masks: bool
    alone: bool

    def card(self, info: DeviceInfo) -> Card | None:
        """Return the card that a Vulkan device is; None where the library does not know it."""
