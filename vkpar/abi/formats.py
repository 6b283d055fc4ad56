"""The wires and what slots hold: the one table that kernels are made by, and that all others read.

A new wire is a row of :data:`WIRES`, its encoder and decoder in shaders/common/wire.glsl (by its ``code``), and
``python tools/compile_shaders.py``. What the errors mean, and how they add up, is told in :mod:`vkpar.testing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK: Final = 256  # elements of a block; shaders/common/wire.glsl has the same


@dataclass(frozen=True)
class Format:
    """A slot's layout: ``payload`` bytes a block, and ``tail`` bytes a block after all payloads.

    Attributes:
        name: part of kernels' names.
        code: what shaders/common/wire.glsl calls it.
    """

    name: str
    code: str
    payload: int
    tail: int = 0


@dataclass(frozen=True)
class Wire:
    """How float32 crosses links, and what that does to a number.

    Attributes:
        format: in slots.
        meaning: a word or two for people.
        relative: error.
        block: error, relative to the largest magnitude of the block.
        exact: integers up to this cross it unchanged; 0 says that none but zero does for sure.

    Examples:
        >>> import vkpar.testing
        >>> vkpar.testing.wire_of("f32").relative, vkpar.testing.wire_of("f16").relative > 0
        (0.0, True)
    """

    format: Format
    meaning: str
    relative: float
    block: float
    exact: int


@dataclass(frozen=True)
class Element:
    """What arrays of collectives hold.

    Attributes:
        code: what shaders/common/wire.glsl calls it.
        exact: how it travels unchanged.
        in_words: kernels count its 32-bit words, so that it goes on as integers do.
        macros: that its kernels need besides.
    """

    code: str
    exact: Format
    in_words: bool = False
    macros: tuple[str, ...] = ()


WORD: Final = Format("word", "WIRE_WORD", 4 * BLOCK)
HALF: Final = Format("half", "WIRE_F16", 2 * BLOCK)
BHALF: Final = Format("bhalf", "WIRE_BF16", 2 * BLOCK)

# By name; the last one is exact.
WIRES: Final = {
    "f16": Wire(
        Format("scaled", "WIRE_SCALED_F16", 2 * BLOCK, 4), "scaled in blocks of 256", 2.0**-11, 2.0**-39, 2**11
    ),
    "bf16": Wire(BHALF, "unscaled", 2.0**-8, 0.0, 2**8),
    "q8": Wire(
        Format("q8", "WIRE_Q8", BLOCK, BLOCK // 8),
        "8 bits and a scale for 32 elements",
        2.0**-18,
        (1.0 + 2.0**-11) / 252.0,
        0,
    ),
    "f32": Wire(WORD, "exact", 0.0, 0.0, 2**24),
}

# By their names in kernels'. Signed or not, integers add up alike.
ELEMENTS: Final = {
    "f32": Element("ELEM_F32", WORD),
    "f16": Element("ELEM_F16", HALF),
    "bf16": Element("ELEM_BF16", BHALF),
    "int": Element("ELEM_INT", WORD),
    "i8": Element("ELEM_I8", WORD, in_words=True),
    "i16": Element("ELEM_I16", WORD, in_words=True),
    "i64": Element("ELEM_I64", WORD, in_words=True),
    "f64": Element("ELEM_F64", WORD, in_words=True, macros=("DOUBLES",)),
}


def finals(element: str) -> tuple[Format, ...]:
    """Return how finished sums of an element may travel."""
    return tuple(wire.format for wire in WIRES.values()) if element == "f32" else (ELEMENTS[element].exact,)


def sums(element: str) -> tuple[tuple[Format, Format], ...]:
    """Return how contributions and what is made of them may travel: halves widened, until their sum is finished."""
    alike = [(form, form) for form in finals(element)]
    widened = [(WORD, WORD), (WORD, ELEMENTS[element].exact)] if ELEMENTS[element].exact is not WORD else []
    return (*alike, *widened)
