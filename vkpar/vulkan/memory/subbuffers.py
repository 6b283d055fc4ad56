"""One range of bytes over several buffers, for arrays that no single buffer may hold."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Sequence

from vkpar.errors import InvalidUsageError
from vkpar.vulkan.machine.physical import ALIGNMENT, TEXEL
from vkpar.vulkan.memory.buffer import Buffer, BufferRange
from vkpar.vulkan.memory.pool import round_up

# Sub-buffers but for the last are multiples of it: 256 elements of up to 16 bytes, so that a border between two of them
# lies between two blocks of a collective and at an offset that every device can bind.
GRANULE = 4096
_AT_ZERO = [0]  # where the one buffer of an array begins


def cut(nbytes: int, most: int) -> list[int]:
    """Return the sizes of the sub-buffers for ``nbytes`` where none may have more than ``most`` bytes."""
    return [size for size, count in counted(nbytes, most) for _ in range(count)]


def counted(nbytes: int, most: int) -> list[tuple[int, int]]:
    """Return the sizes that :func:`cut` gives, each with how many of it follow each other."""
    most = max(most // GRANULE, 1) * GRANULE
    whole, rest = divmod(nbytes, most)
    return [(size, count) for size, count in ((most, whole), (rest, 1)) if size and count]


def spans_of(buffers: Sequence[Buffer]) -> list[tuple[int, int, int]]:
    """Return of each buffer the VkBuffer as a number, the first byte in it, and the one after the last."""
    return [(each.number, each.offset, each.offset + each.reserved) for each in buffers]


class SubBuffers:
    """An ordered list of buffers behind one range of addresses, which begin at 0.

    An address is resolved by bisection over where the buffers begin, whoever asks for it. The memory is given back when
    nobody holds this object any more, and ranges hold it: what a call was given stays until it has submitted its work.

    Attributes:
        buffers: in order; all but the last are multiples of :data:`GRANULE`.
        nbytes: bytes of them all.
        born: what the ledger of failures had counted when it became an array's.
    """

    __slots__ = ("__weakref__", "_reserved", "_starts", "born", "buffers", "nbytes")

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers = tuple(buffers)
        self.born = 0
        if len(self.buffers) == 1:  # by far the most
            (only,) = self.buffers
            self._starts, self.nbytes, self._reserved = _AT_ZERO, only.nbytes, only.reserved
            return
        ends = list(itertools.accumulate(buffer.nbytes for buffer in self.buffers))
        self._starts = [0, *ends[:-1]]
        self.nbytes = ends[-1]
        self._reserved = self._starts[-1] + self.buffers[-1].reserved

    def __len__(self) -> int:
        return len(self.buffers)

    @property
    def place(self) -> Hashable:
        """What no other memory in use has, in this process: the places of its buffers, and their borders."""
        return tuple((buffer.place, buffer.nbytes) for buffer in self.buffers)

    @property
    def borders(self) -> list[int]:
        """The addresses at which a buffer begins and another ends."""
        return self._starts[1:]

    @property
    def whole(self) -> list[BufferRange]:
        """All of its bytes."""
        return [buffer.range(owner=self) for buffer in self.buffers]

    def resolve(self, address: int) -> tuple[Buffer, int]:
        """Return the buffer that holds the byte at ``address``, and the byte's offset in it.

        The last buffer is padded: its padding can be resolved, too.

        Raises:
            InvalidUsageError: there is no such byte.
        """
        if not 0 <= address < self._reserved:
            raise InvalidUsageError(f"byte {address} of an array's memory, which has {self.nbytes} bytes")
        index = bisect.bisect_right(self._starts, address) - 1
        return self.buffers[index], address - self._starts[index]

    def reach(self, address: int) -> int:
        """Return how many bytes there are from ``address`` on in the same buffer, padding included."""
        buffer, offset = self.resolve(address)
        return buffer.reserved - offset

    def range(self, start: int, nbytes: int) -> BufferRange:
        """Return ``nbytes`` from ``start``, as far as into the padding.

        Raises:
            InvalidUsageError: they do not lie in one buffer.
        """
        buffer, offset = self.resolve(start)
        if offset + nbytes > buffer.reserved:
            raise InvalidUsageError(
                f"{nbytes} bytes from byte {start} of an array's memory lie in more than one of its "
                f"{len(self)} sub-buffers"
            )
        return buffer.range(offset, nbytes, self)

    def window(self, start: int, nbytes: int) -> tuple[BufferRange, int]:
        """Return a bindable range over ``nbytes`` from ``start``, and the number of bytes in it before them.

        The range begins as the offset alignment of every device asks, and ends at a whole texel (buffers are padded).

        Raises:
            InvalidUsageError: they do not lie in one buffer.
        """
        self.range(start, nbytes)  # refuses bytes in several
        buffer, offset = self.resolve(start)
        skipped = offset % ALIGNMENT
        end = min(round_up(offset + nbytes, TEXEL), buffer.reserved)
        return buffer.range(offset - skipped, end - offset + skipped, self), skipped

    def ranges(self, start: int, nbytes: int) -> list[BufferRange]:
        """Return ``nbytes`` from ``start``, a range for each buffer that holds some of them."""
        made, end = [], start + nbytes
        while start < end:
            buffer, offset = self.resolve(start)
            held = min(end - start, buffer.reserved - offset)
            made.append(buffer.range(offset, held, self))
            start += held
        return made
