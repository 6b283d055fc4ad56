"""Push constants by name: the members of a kernel's block, and how values of Python's become its bytes."""

from __future__ import annotations

import difflib
import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkpar.errors import InvalidUsageError

WORDS: Final = {
    "b": "int8_t",
    "B": "uint8_t",
    "h": "int16_t",
    "H": "uint16_t",
    "i": "int",
    "I": "uint",
    "q": "int64_t",
    "Q": "uint64_t",
    "e": "float16_t",
    "f": "float",
    "d": "double",
}
"""GLSL's scalar types by their codes in :mod:`struct`."""

VECTORS: Final = {
    "b": "i8vec",
    "B": "u8vec",
    "h": "i16vec",
    "H": "u16vec",
    "i": "ivec",
    "I": "uvec",
    "q": "i64vec",
    "Q": "u64vec",
    "e": "f16vec",
    "f": "vec",
    "d": "dvec",
}
"""What GLSL calls vectors of them, without the number of components."""

_FLOATS: Final = "efd"
_LONGEST: Final = 80  # characters of a value in a message


@dataclass(frozen=True)
class Member:
    """A member of a push-constant block.

    Attributes:
        name: as the source has it; empty where the module was stripped of names.
        text: its declaration, such as ``vec3 origin[4]``.
        offset: of its first byte in the block.
        code: of its numbers in :mod:`struct`; empty for structs and matrices.
        shape: dimensions of arrays, then the components of a vector; empty for a single number.
        strides: bytes from one to the next, by dimension.
    """

    name: str
    text: str
    offset: int
    code: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def places(self) -> list[int]:
        """Return the byte at which each of its numbers begins, in C order."""
        steps = [range(0, count * stride, stride) for count, stride in zip(self.shape, self.strides, strict=True)]
        return [self.offset + sum(at) for at in itertools.product(*steps)]


class Packer:
    """Makes the bytes of a push-constant block of values by name.

    Args:
        members: of the block, those that vkpar fills left out.
        nbytes: of these members, padding included.
    """

    def __init__(self, members: Sequence[Member], nbytes: int) -> None:
        self._members = sorted(members, key=lambda member: member.offset)
        self._names = [member.name for member in self._members]
        self._plain = not any(member.shape for member in self._members)
        self._lack = self._not_packable()
        self._pack = struct.Struct("=" if self._lack else self._format(nbytes)).pack

    def _not_packable(self) -> str:
        """Say why values cannot be given by name; nothing where they can."""
        if not all(self._names):
            return "its SPIR-V holds no names (it was stripped, or compiled without debug information)"
        other = [member.text for member in self._members if not member.code]
        return f"{other[0]} is neither a number nor a vector, nor an array of these" if other else ""

    def _format(self, nbytes: int) -> str:
        text, end = "=", 0
        for member in self._members:
            size = struct.calcsize("=" + member.code)
            for place in member.places():
                if place < end:
                    self._lack = "its members overlap"
                    return "="
                text += f"{place - end}x{member.code}"
                end = place + size
        return f"{text}{max(nbytes - end, 0)}x"

    def __call__(self, values: Mapping[str, Any]) -> bytes:
        """Return the block's bytes.

        Raises:
            InvalidUsageError: names that are missing or too many, values of the wrong type, shape or range, or a block
                that takes bytes only; the message lists the block's members.
        """
        if len(values) == len(self._names) and not self._lack:
            try:
                if self._plain:
                    return self._pack(*[values[name] for name in self._names])
                return self._pack(*itertools.chain.from_iterable(_flat(values[m.name], m.shape) for m in self._members))
            except (LookupError, TypeError, ValueError, OverflowError, struct.error):
                pass
        raise InvalidUsageError(self._refusal(values))

    def _refusal(self, values: Mapping[str, Any]) -> str:
        """Say what is wrong with ``values``."""
        listed = "; ".join(member.text for member in self._members)
        block = f"the kernel's push constants are: {listed}" if listed else "the kernel declares no push constants"
        if self._lack:
            return f"push constants by name: {self._lack}; pass them as bytes"
        missing = [name for name in self._names if name not in values]
        extra = [name for name in values if name not in self._names]
        if extra:
            near = difflib.get_close_matches(str(extra[0]), missing or self._names, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            return f"push: no push constant is named {extra[0]!r}{hint}; {block}"
        if missing:
            return f"push: {', '.join(missing)} missing; {block}"
        return (
            f"push: {next(filter(None, (_wrong(m, values[m.name]) for m in self._members)), 'wrong values')}; {block}"
        )


def _flat(value: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return the numbers of ``value`` in C order; a ValueError where it has another shape."""
    if not shape:
        return [value]
    if hasattr(value, "tolist"):  # NumPy's arrays, whose items take longer one by one
        value = value.tolist()
    if isinstance(value, (str, bytes)) or len(value) != shape[0]:
        raise ValueError("another length")
    if len(shape) == 1:
        return list(value)
    return [number for item in value for number in _flat(item, shape[1:])]


def _wrong(member: Member, value: Any) -> str:
    """Say what is wrong with the value of a member; nothing where it will do."""
    try:
        numbers = _flat(value, member.shape)
    except (TypeError, ValueError, LookupError):
        shape = " x ".join(map(str, member.shape))
        return f"{member.name} takes {shape} numbers ({member.text}), not {_shown(value)}"
    for number in numbers:
        try:
            struct.pack("=" + member.code, number)
        except (struct.error, OverflowError, TypeError, ValueError):
            return f"{member.name} is {_range(member.code)}, not {number!r}"
    return ""


def _shown(value: Any) -> str:
    """Return a value on one short line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _range(code: str) -> str:
    """Say in words what a number may be."""
    if code in _FLOATS:
        return f"a {WORDS[code]}, a number that it can hold"
    bits = 8 * struct.calcsize("=" + code)
    low, high = (0, (1 << bits) - 1) if code.isupper() else (-1 << (bits - 1), (1 << (bits - 1)) - 1)
    return f"{'an' if code == 'i' else 'a'} {WORDS[code]}, a whole number from {low} to {high}"
