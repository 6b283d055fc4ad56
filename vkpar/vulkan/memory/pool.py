"""Blocks of memory and the pieces handed out of them: which block, how large, what is kept. No Vulkan here.

The same code places real buffers (:mod:`vkpar.vulkan.memory.memory`) and those of a plan (:func:`vkpar.plan_memory`).

Sizes fall into classes that share no block, so that small pieces do not cut up the room of large ones:

=================  ==========
pieces up to       in blocks of
=================  ==========
4 KiB              1 MiB
64 KiB             4 MiB
1 MiB              16 MiB
16 MiB             64 MiB
more               their own size
=================  ==========

No block is larger than a sixteenth of the heap (but of 1 MiB at least); a piece of more than half a block gets its own.

Fragmentation is bounded by that. A block is added to a class only where none of its blocks has a free piece of the
size asked for, ``r``. A block with ``n`` pieces in use has at most ``n + 1`` free ones then, all smaller than ``r``:
less than ``2 * n * r`` bytes of it lie idle, and ``n`` times the class's smallest size or more are in use. Sizes within
a class differ 16-fold, so a class grows only while its blocks hold less than 32 idle bytes for each one in use,
whatever was allocated and freed in whichever order. Only an adversary gets near that: in random traffic an eighth to
two fifths of the blocks in use is idle (docs/notes/memory.md). One class for all sizes leaves three quarters idle where
most pieces are small, since a single one keeps a large block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from vkpar import env
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.freelist import FreeList

# By class: the largest piece, and the bytes of a block.
SIZE_CLASSES: tuple[tuple[int, int], ...] = (
    (4 << 10, 1 << 20),
    (64 << 10, 4 << 20),
    (1 << 20, 16 << 20),
    (16 << 20, 64 << 20),
)
_OWN = -1  # the class of pieces with blocks of their own
_HEAP_SHARE = 16  # a block is a sixteenth of the heap at most
_LEAST_BLOCK = 1 << 20
_CACHE_SHARE = 8  # empty blocks that are kept take an eighth of the heap at most
_serials = itertools.count(1)
_WASTE_SHARE = 8  # a kept block of its own serves requests that leave an eighth of it idle at most


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is at least ``number``."""
    return -(-number // multiple) * multiple


def padded(nbytes: int) -> int:
    """Return the bytes that a buffer of ``nbytes`` takes."""
    return round_up(max(nbytes, 1), ALIGNMENT)


def newer() -> int:
    """Return a number below the serials of the blocks that will be made, and above those of all others."""
    return next(_serials)


class Block:
    """A block of memory.

    Attributes:
        kind: what kind of memory it is.
        dedicated: it holds one piece alone.
        backing: what the pool's ``make`` returned.
        free: which of its bytes are free.
        serial: a number that no other block of this process has, had or will have.
        dropped: its backing was given back.
    """

    def __init__(self, nbytes: int, kind: str, size_class: int, backing: Any) -> None:
        self.kind = kind
        self.size_class = size_class
        self.backing = backing
        self.free = FreeList(nbytes)
        self.serial = next(_serials)
        self.dropped = False

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.free.nbytes

    @property
    def dedicated(self) -> bool:
        """True where it holds one piece alone."""
        return self.size_class == _OWN


class Piece(NamedTuple):
    """A part of a block: ``nbytes`` from ``offset``; more than asked for where a kept block of its own serves."""

    block: Block
    offset: int
    nbytes: int


class Pool:
    """Blocks of several kinds of memory, and which of their bytes are in use; the caller locks it.

    Blocks that became empty are kept for later requests, up to an eighth of the heap: the longest empty goes first.

    Args:
        heap_nbytes: the size of the heap behind it; 0 where it is not known.
        make: returns what backs a new block of so many bytes of a kind; it may raise.
        drop: frees that.
        most: bytes that a block has at most.

    Attributes:
        trimmable: bytes of the empty blocks.
        ndropped: how many blocks were dropped so far.
    """

    def __init__(
        self, heap_nbytes: int, make: Callable[[int, str], Any], drop: Callable[[Any], None], most: int | None = None
    ) -> None:
        self._make, self._drop = make, drop
        heap_nbytes = heap_nbytes or SIZE_CLASSES[-1][1] * _HEAP_SHARE
        self._most_block = max(heap_nbytes // _HEAP_SHARE // ALIGNMENT * ALIGNMENT, _LEAST_BLOCK)
        if most is not None:
            self._most_block = max(min(self._most_block, most // ALIGNMENT * ALIGNMENT), ALIGNMENT)
        # The layer that watches kernels knows whole blocks only: with VKPAR_VALIDATION=gpu none holds two pieces.
        self._alone = env.get().validation == "gpu"
        self._most_cached = 0 if self._alone else heap_nbytes // _CACHE_SHARE
        self._blocks: dict[tuple[str, int], list[Block]] = {}
        self._empty: dict[Block, None] = {}  # the longest empty first
        self.trimmable = self.ndropped = 0

    def size_class(self, nbytes: int) -> tuple[int, int]:
        """Return the class of a piece of ``nbytes``, and the size of the block that it is put into."""
        for number, (largest, block) in enumerate(() if self._alone else SIZE_CLASSES):
            block_nbytes = min(block, self._most_block)
            if nbytes <= min(largest, block_nbytes // 2):
                return number, block_nbytes
        return _OWN, nbytes

    def take(self, nbytes: int, kind: str, *, alone: bool = False) -> Piece:
        """Return a piece of ``nbytes``, a multiple of the alignment; ``alone`` gives it a block of its own."""
        number, block_nbytes = (_OWN, nbytes) if alone else self.size_class(nbytes)
        block = self._with_room(nbytes, kind, number)
        if block is None:
            block = Block(block_nbytes, kind, number, self._make(block_nbytes, kind))
            self._blocks.setdefault((kind, number), []).append(block)
        if block in self._empty:
            del self._empty[block]
            self.trimmable -= block.nbytes
        taken = block.nbytes if block.dedicated else nbytes
        offset = block.free.take(taken)
        assert offset is not None
        return Piece(block, offset, taken)

    def _with_room(self, nbytes: int, kind: str, number: int) -> Block | None:
        """Return the oldest block with room, so that younger ones become empty; of the own ones the smallest."""
        if number != _OWN:
            return next((b for b in self._blocks.get((kind, number), ()) if b.free.largest >= nbytes), None)
        empty = (block for block in self._empty if block.dedicated and block.kind == kind)
        fitting = [block for block in empty if 0 <= block.nbytes - nbytes <= block.nbytes // _WASTE_SHARE]
        return min(fitting, key=lambda block: block.nbytes, default=None)

    def give(self, piece: Piece) -> None:
        """Take a piece back."""
        block = piece.block
        block.free.give(piece.offset, piece.nbytes)
        if not block.free.empty:
            return
        self._empty[block] = None
        self.trimmable += block.nbytes
        if block.nbytes > self._most_cached:
            self._remove(block)
        self._bound()

    def _bound(self) -> None:
        while self.trimmable > self._most_cached:
            self._remove(next(iter(self._empty)))

    def _remove(self, block: Block) -> None:
        """Drop an empty block; where that is interrupted, the block stays until :meth:`restore`."""
        self._give_back(block)
        self._blocks[block.kind, block.size_class].remove(block)
        del self._empty[block]
        self.trimmable -= block.nbytes

    def restore(self, pieces: Iterable[Piece], is_whole: Callable[[Any], bool]) -> None:
        """Make everything anew from the blocks there are and the ``pieces`` in use, after a call that did not end.

        Args:
            pieces: all that were taken and not given back.
            is_whole: says of what ``make`` returned that it was not dropped.
        """
        taken: dict[Block, list[tuple[int, int]]] = {}
        for piece in pieces:
            taken.setdefault(piece.block, []).append((piece.offset, piece.nbytes))
        for block in self.blocks():
            if not is_whole(block.backing):
                block.dropped = True
                self.ndropped += 1
        self._blocks = {key: [b for b in blocks if not b.dropped] for key, blocks in self._blocks.items()}
        for block in self.blocks():
            block.free = FreeList.around(block.nbytes, taken.get(block, ()))
        self._empty = {block: None for block in self.blocks() if block.free.empty}
        self.trimmable = sum(block.nbytes for block in self._empty)
        self._bound()

    def trim(self) -> int:
        """Drop the empty blocks; return how many bytes they had."""
        freed = self.trimmable
        while self._empty:
            self._remove(next(iter(self._empty)))
        return freed

    def clear(self) -> None:
        """Drop every block, in use or not."""
        self._empty.clear()
        self.trimmable = 0
        for block in self.blocks():
            self._give_back(block)
        self._blocks.clear()

    def _give_back(self, block: Block) -> None:
        block.dropped = True
        self.ndropped += 1
        self._drop(block.backing)

    def blocks(self) -> Iterator[Block]:
        """Yield every block."""
        for blocks in self._blocks.values():
            yield from blocks

    def room(self) -> Room:
        """Return how much is free in the blocks, and in what pieces."""
        free = [(block.free.free, block.free.largest) for block in self.blocks()]
        return Room(
            sum(total for total, _ in free), max((most for _, most in free), default=0), sum(m for _, m in free)
        )


class Room(NamedTuple):
    """What is free in a pool's blocks.

    Attributes:
        free: bytes.
        largest: bytes of the largest free piece.
        whole: bytes of each block's largest free piece, together.
    """

    free: int
    largest: int
    whole: int

    @property
    def fragmentation(self) -> float:
        """The share of the free bytes that lie outside their block's largest piece: 0 to 1."""
        return 1 - self.whole / self.free if self.free else 0.0
