"""Keys and values of several texts, of which each gets a token at a time: one append and one attention for all."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.attention.kvcache import KVCache

if TYPE_CHECKING:
    from vkpar.device import Device

_ROWS: Final = 16  # each has a multiple of so many: then all begin at offsets that devices bind, of 256 bytes at most
_MOVED: Final = 256  # rows are moved in multiples of so many: what was recorded for some serves others


def room_of(tokens: int, sequences: int) -> int:
    """Return for how many tokens each of several texts gets room: those that are asked for, rounded up."""
    return tokens if sequences == 1 else -(-tokens // _ROWS) * _ROWS


def seen_of(window: int) -> int:
    """Return how many of the latest rows are kept where tokens see a window of them: some may be forgotten again."""
    return window + max(window, _ROWS)


def rows_of(tokens: int, sequences: int, window: int | None, piece: int) -> int:
    """Return how many rows of keys each of several texts of so many tokens has, where tokens see a window of them.

    Those of :func:`seen_of`, behind which ``piece`` tokens are appended together; all for no window.
    """
    whole = room_of(tokens, sequences)
    return whole if window is None else min(whole, room_of(seen_of(window) + max(piece, _ROWS), sequences))


class KVCaches(KVCache):
    """The keys and values of several texts side by side: rows are appended one to each, at a position of its own.

    :func:`vkpar.attention` takes it for queries of (sequences, heads, 1, width), of which each sees its own text.

    Attributes:
        sequences: how many texts there are.
        k: the keys, (sequences, kv_heads, tokens, width); ``v`` the values.
        length: uint32, (sequences,): how many tokens each holds after an append of one to each.

    Args:
        device: where it lies.
        sequences: how many texts.
        kv_heads: heads of keys and values.
        tokens: how many each text has room for; :attr:`tokens` is what :func:`room_of` makes of it.
        width: elements of a head.
        dtype: float16, bfloat16 or float32.
        base: uint32, (sequences,), the position of each text's first row, which attention takes for its first key; None
            where that is 0.

    Raises:
        InvalidUsageError: a number below 1.
        UnsupportedError: another type.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> from vkpar.ops.attention.kvcaches import KVCaches
        >>> caches = KVCaches(device, 3, kv_heads=2, tokens=20, width=8)
        >>> rows = device.ones((2, 3, 8))  # of three texts a token each
        >>> caches.append(rows, rows, device.array([0, 7, 4], "uint32"))
        >>> caches.tokens, caches.length.tolist()
        (32, [1, 8, 5])
    """

    def __init__(
        self,
        device: Device,
        sequences: int,
        kv_heads: int,
        tokens: int,
        width: int,
        dtype: object = "float16",
        base: Array | None = None,
    ) -> None:
        self.sequences = operator.index(sequences)
        if self.sequences < 1:
            raise InvalidUsageError(f"KVCaches: sequences are 1 or more: {sequences}")
        self._take_sizes(device, kv_heads, room_of(operator.index(tokens), self.sequences), width, dtype)
        self._apart, self._base = self.kv_heads * self.tokens, base
        shape = self.sequences, self.kv_heads, self.tokens, self._pitch
        self._hold(device.zeros(shape, self.dtype), device.zeros(shape, self.dtype), self.sequences)
        self._alone: dict[int, KVCache] = {}

    def sequence(self, number: int) -> KVCache:
        """Return the cache of one text alone, in the same memory: prompts are appended there."""
        if number not in self._alone:
            made = KVCache.__new__(KVCache)
            made._take_sizes(self.device, self.kv_heads, self.tokens, self.width, self.dtype)
            made._hold(self._rows[0][number], self._rows[1][number])
            made._base = None if self._base is None else self._base[number : number + 1]
            self._alone[number] = made
        return self._alone[number]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the keys and values of a text's first tokens, so many and maybe more, to another text's place."""
        count = min(-(-tokens // _MOVED) * _MOVED, self.tokens)
        for rows in self._rows:
            rows[target, :, :count].copy_from(rows[source, :, :count])

    def shift(self, number: int, first: int, count: int) -> None:
        """Copy rows of a text from ``first`` on to its beginning, where it has a base."""
        if self._base is not None:
            for rows in self._rows:
                rows[number, :, :count].copy_from(rows[number, :, first : first + count])

    def close(self) -> None:
        """Give the memory back once the work submitted so far is done; a second call does nothing."""
        for cache in self._alone.values():
            cache.length.close()
        super().close()

    def _check_count(self, name: str, count: int, positions: Array) -> None:
        if count != self.sequences or positions.size != count:
            raise InvalidUsageError(
                f"{name}: {count} tokens at {positions.size} positions for {self.sequences} texts; each gets one"
            )
