"""The push constants of elementwise kernels, and Python's numbers among them."""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from vkpar.errors import InvalidUsageError
from vkpar.ops.call.checks import NUMBERS
from vkpar.ops.elementwise.expressions import INTEGERS
from vkpar.ops.elementwise.kinds import WORDS, KernelTypes
from vkpar.text import shown

_PACK: Final = struct.Struct(f"={WORDS}I").pack


def word_of(number: Any, dtype: str) -> int:
    """Return the bits of a number as float32, int32 or uint32.

    Raises:
        InvalidUsageError: a whole number that the type does not hold.
    """
    if dtype in INTEGERS:
        value = operator.index(number) if not isinstance(number, np.bool_) else int(number)
        low, high = (-(1 << 31), 1 << 31) if dtype == "int32" else (0, 1 << 32)
        if not low <= value < high:
            raise InvalidUsageError(f"the number {shown(value)} is no {dtype}")
        return value % (1 << 32)
    try:
        return int.from_bytes(struct.pack("=f", number), "little")
    except (OverflowError, struct.error):  # beyond float32, and whole numbers beyond float64
        return 0x7F800000 if number > 0 else 0xFF800000


class Words:
    """The push constants of a dispatch, numbers filled in."""

    def __init__(self, kind: KernelTypes, types: Sequence[str], operands: Sequence[Any]) -> None:
        self.words = [0] * WORDS
        self.places: list[int] = []  # of the numbers, in order
        self._last: tuple[object, bytes] | None = None  # the only number of the last call, and what came of it
        self._types = [types[number] for number, operand in enumerate(operands) if isinstance(operand, NUMBERS)]
        self.bits = [
            word_of(operand, types[number]) for number, operand in enumerate(operands) if isinstance(operand, NUMBERS)
        ]

    def packed(self) -> bytes:
        """Return them with the numbers of this call."""
        return self._fill(self.bits)

    def __call__(self, numbers: Sequence[Any]) -> bytes:
        """Return them with other numbers; raises as :func:`word_of` does."""
        last = self._last
        if last is not None and last[0] is numbers[0]:
            return last[1]
        packed = self._fill(map(word_of, numbers, self._types))
        if len(numbers) == 1:  # the object itself is kept: 0.0 and -0.0, True and 1 are equal
            self._last = (numbers[0], packed)
        return packed

    def _fill(self, bits: Any) -> bytes:
        words = [*self.words]  # other threads may fill in their numbers meanwhile
        for place, word in zip(self.places, bits, strict=True):
            words[place] = word
        return _PACK(*words)
