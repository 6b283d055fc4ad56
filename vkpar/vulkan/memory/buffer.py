"""Byte ranges of Vulkan buffers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vkpar.vulkan import api
from vkpar.vulkan.memory.pool import Piece


@dataclass(frozen=True)
class BufferRange:
    """``nbytes`` of a VkBuffer from ``offset``: what a descriptor or a copy names.

    Attributes:
        mapped: the host address of the first byte, 0 where the host does not see it.
        owner: what gives the memory back when nobody holds it any more; None where others see to that.
    """

    buffer: Any
    offset: int
    nbytes: int
    mapped: int = 0
    owner: Any = field(default=None, repr=False, compare=False)

    @property
    def bare(self) -> BufferRange:
        """The same without its owner, for those that outlive the memory."""
        return BufferRange(self.buffer, self.offset, self.nbytes, self.mapped)

    def head(self, nbytes: int) -> BufferRange:
        """Return the first ``nbytes``."""
        return BufferRange(self.buffer, self.offset, nbytes, self.mapped, self.owner)

    def tail(self, nbytes: int) -> BufferRange | None:
        """Return what follows the first ``nbytes``, None for nothing."""
        left = self.nbytes - nbytes
        mapped = self.mapped and self.mapped + nbytes
        return BufferRange(self.buffer, self.offset + nbytes, left, mapped, self.owner) if left else None


def paired(sources: Sequence[BufferRange], targets: Sequence[BufferRange]) -> Iterator[tuple[BufferRange, BufferRange]]:
    """Yield what copies the bytes of ``sources``, one range after the other, to those of ``targets``, as many."""
    left, right = iter(sources), iter(targets)
    source, target = next(left, None), next(right, None)
    while source is not None and target is not None:
        nbytes = min(source.nbytes, target.nbytes)
        yield source.head(nbytes), target.head(nbytes)
        source = source.tail(nbytes) or next(left, None)
        target = target.tail(nbytes) or next(right, None)


@dataclass(frozen=True)
class SharedBuffer:
    """Host memory that other devices write too, as one queue family of one device sees it.

    Attributes:
        foreign: hand it over with ownership transfers from and to VK_QUEUE_FAMILY_FOREIGN_EXT. Without them NVIDIA
            GPUs keep what they read from host memory cached from one batch of a submission to the next.
        kernels: the family runs kernels; where it does not, its barriers cannot name them.
    """

    range: BufferRange
    family: int
    foreign: bool
    kernels: bool = True


@dataclass(eq=False)
class Buffer:
    """A sub-allocated piece of device memory.

    Attributes:
        handle: the VkBuffer of the block that it lies in.
        offset: bytes into that VkBuffer.
        nbytes: the size asked for; ``reserved`` bytes are taken.
        mapped: host address of the first byte, 0 where the memory is not mapped.
        piece: the part of a block that it is.
        place: what no other piece of memory in use has, in this process: its block's number, and where in that it is.
        purpose: what it was booked for.
        label: says what it holds, for messages.
        lease: what its allocator knows it by.
    """

    handle: Any
    offset: int
    nbytes: int
    reserved: int
    mapped: int
    piece: Piece = field(repr=False)
    purpose: str = ""
    label: Callable[[], str] | None = None
    lease: Lease = field(init=False, repr=False)
    place: tuple[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.place = (self.piece.block.serial, self.offset)

    @functools.cached_property
    def number(self) -> int:
        """The handle as a number."""
        return api.load().address(self.handle)

    def range(self, start: int = 0, nbytes: int | None = None, owner: Any = None) -> BufferRange:
        """Return ``nbytes`` (all the rest by default) from byte ``start``."""
        nbytes = self.nbytes - start if nbytes is None else nbytes
        return BufferRange(self.handle, self.offset + start, nbytes, self.mapped and self.mapped + start, owner)


class Lease(weakref.ref[Buffer]):
    """What an allocator keeps of a buffer that it handed out: it does not keep the buffer alive.

    A buffer that nobody holds any more is told of by its lease: ``dropped``, a method of a built-in type, is called
    with it. So nothing written in Python runs where a buffer dies: an interrupt there would be lost.

    Attributes:
        piece: the part of a block that the buffer is.
        nbytes: the size that was asked for; ``reserved`` bytes are taken.
        purpose: what it is booked for.
        label: says what it holds, for messages.
        heap: the heap that the block lies in.
    """

    __slots__ = ("label", "nbytes", "piece", "purpose", "reserved")

    def __init__(self, buffer: Buffer, dropped: Callable[[Any], object]) -> None:
        super().__init__(buffer, dropped)  # type: ignore[call-arg]
        self.piece, self.nbytes, self.reserved = buffer.piece, buffer.nbytes, buffer.reserved
        self.purpose, self.label = buffer.purpose, buffer.label

    @property
    def offset(self) -> int:
        """Bytes from the start of the block."""
        return self.piece.offset

    @property
    def heap(self) -> int:
        """The heap that the block lies in."""
        return int(self.piece.block.backing.heap)
