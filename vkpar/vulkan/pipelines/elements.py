"""Which arrays a binding takes: the types of what it is declared to hold, and those of arrays."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from vkpar.vulkan.pipelines.push import WORDS

ANYTHING: Final = "*"
"""The code of what is not looked into: structs, addresses, floats of 8 bits."""
BYTES: Final = "B"
BFLOAT16: Final = "y"
_ANY_BITS: Final = "I"  # a uint reads the words of whatever is there
_UNSIGNED: Final = "BHQ"
_NAMES: Final = {
    "b": ("int8", "bool"),
    "h": ("int16",),
    "i": ("int32",),
    "q": ("int64",),
    "e": ("float16",),
    "f": ("float32", "complex64"),
    "d": ("float64", "complex128"),
    BFLOAT16: ("bfloat16",),
}
_WORDS: Final = {**WORDS, BFLOAT16: "bfloat16_t"}


class Padded(NamedTuple):
    """What a binding holds, where gaps follow each.

    Attributes:
        nbytes: of a number, a vector, or a column of a matrix (a row of a ``row_major`` one).
        stride: bytes from one to the next.
        text: what GLSL calls it.
    """

    nbytes: int
    stride: int
    text: str

    def lies_in(self, shape: Sequence[int], itemsize: int) -> bool:
        """Say whether an array has the gaps: in its last axes, or, if it is flat, by its length; one alone has none."""
        row = itemsize
        for count in reversed(shape[1:]):
            row *= count
            if row == self.stride:
                return True
        if itemsize * math.prod(shape) <= self.nbytes:
            return True
        return shape[-1] * itemsize % self.stride == 0


def takes(codes: str, dtype: str, itemsize: int) -> bool:
    """Say whether a binding takes an array.

    Its own type fits, real or complex; ``uint`` takes every array, as words, and unsigned integers of another width
    take what has that width, as bits.

    Args:
        codes: the types that the binding holds, by their codes in :mod:`struct`.
        dtype: the name of the array's type.
        itemsize: its bytes.
    """
    return any(
        code == _ANY_BITS
        or (code in _UNSIGNED and itemsize == struct.calcsize(f"={code}"))
        or dtype in _NAMES.get(code, ())
        for code in codes
    )


def glsl_types(codes: str) -> str:
    """Return the types in GLSL's words."""
    return " or ".join(_WORDS[code] for code in dict.fromkeys(codes))
