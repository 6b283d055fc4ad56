"""Sections of push constants as bytes, and back."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

Section = TypeVar("Section", bound="tuple[Any, ...]")
Words2 = Annotated[tuple[int, ...], 2]
Words6 = Annotated[tuple[int, ...], 6]
Words16 = Annotated[tuple[int, ...], 16]


def pack(*sections: Iterable[Any]) -> bytes:
    """Return push constants: whole numbers become unsigned words, other numbers float32; tuples are spread."""
    form = "="
    values: list[float] = []
    for each in sections:
        for value in each:
            if isinstance(value, tuple):
                values += value
                form += f"{len(value)}I"
            else:
                values.append(value)
                form += "I" if isinstance(value, int) else "f"
    return struct.pack(form, *values)


def padded(values: Sequence[int], number: int, empty: int = 0) -> tuple[int, ...]:
    """Return so many values, as an array of a block has, the last of them ``empty``."""
    return (*values, *[empty] * (number - len(values)))


def read(section: type[Section], push: bytes, first: int = 0) -> Section:
    """Return a section that begins at word ``first``, of single whole numbers; a float comes as its bits."""
    return section(*struct.unpack_from(f"={width(section)}I", push, 4 * first))


def section(kind: type[Section], constants: Sequence[int], *before: Any) -> Section:
    """Return a section of specialization constants, behind those of other classes; what is not given is 0."""
    first, number = width(*before), width(kind)
    make: Any = kind
    found: Section = make(*padded(constants[first : first + number], number))
    return found


def width(*sections: Any) -> int:
    """Return how many words some sections have, given as classes."""
    return sum(number for section in sections for _, number in members(section))


def members(section: Any) -> Iterator[tuple[str, int]]:
    """Yield the fields of a section as the shader calls them, and how many words each has."""
    kinds = get_type_hints(section, include_extras=True)
    for name in section._fields:
        lengths = get_args(kinds[name])[1:] if hasattr(kinds[name], "__metadata__") else (1,)
        yield name.rstrip("_"), lengths[0]
