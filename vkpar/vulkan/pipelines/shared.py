"""How many bytes of shared memory a module takes once it is specialized: read from what it declares."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from vkpar.errors import UnsupportedError
from vkpar.vulkan.pipelines.opcodes import HEADER, Mark, Op, Storage

_BITS: Final = 0xFFFFFFFF
_FOLDS: Final[Mapping[int, Callable[..., int]]] = {
    128: lambda a, b: a + b,
    130: lambda a, b: a - b,
    132: lambda a, b: a * b,
    134: lambda a, b: a // b if b else 0,
    135: lambda a, b: a // b if b else 0,  # sizes are not negative
    137: lambda a, b: a % b if b else 0,
    138: lambda a, b: a % b if b else 0,
    139: lambda a, b: a % b if b else 0,
    164: lambda a, b: a == b,
    165: lambda a, b: a != b,
    166: lambda a, b: a or b,
    167: lambda a, b: a and b,
    168: lambda a: not a,
    169: lambda a, b, c: b if a else c,
    170: lambda a, b: a == b,
    171: lambda a, b: a != b,
    **dict.fromkeys((172, 173), lambda a, b: a > b),
    **dict.fromkeys((174, 175), lambda a, b: a >= b),
    **dict.fromkeys((176, 177), lambda a, b: a < b),
    **dict.fromkeys((178, 179), lambda a, b: a <= b),
    194: lambda a, b: a >> (b & 31),
    195: lambda a, b: a >> (b & 31),
    196: lambda a, b: a << (b & 31),
    197: lambda a, b: a | b,
    198: lambda a, b: a ^ b,
    199: lambda a, b: a & b,
    200: lambda a: ~a,
}
"""By opcode, what specialization constants that are computed from others are: of integers and truths."""


def fold(opcode: int, operands: Sequence[int]) -> int:
    """Return the value of a constant that is computed from others; 0 for what sizes are not made with."""
    made = _FOLDS.get(opcode)
    return int(made(*operands)) & _BITS if made else 0


def check_shared(label: str, name: str, spirv: bytes, given: Mapping[int, int], most: int) -> None:
    """Refuse a kernel that takes more shared memory than a device has: some drivers end the process by it.

    Args:
        label: what messages call the device.
        name: of the kernel, empty for a user's.
        spirv: its module.
        given: the values of specialization constants, by number.
        most: bytes of shared memory of a work-group.

    Raises:
        UnsupportedError: it takes more.
    """
    nbytes = shared_nbytes(spirv, given)
    if nbytes > most:
        raise UnsupportedError(f"{name or 'the kernel'}: {nbytes} bytes of shared memory; {label} allows {most}")


def shared_nbytes(spirv: bytes, given: Mapping[int, int]) -> int:
    """Return the bytes of all shared variables of a module, with the specialization constants ``given`` by number."""
    declared = _Declared(given)
    for opcode, words in _declarations(spirv):
        declared.take(opcode, words)
    return sum(declared.sizes.get(declared.pointers.get(pointer, 0), 0) for pointer in declared.shared)


def _declarations(spirv: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the instructions before the first function, with their words."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    at = HEADER
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        if opcode == Op.FUNCTION or not count:
            return
        yield opcode, words[at + 1 : at + count]
        at += count


class _Declared:
    """Constants, the sizes of types, and pointers to shared variables."""

    def __init__(self, given: Mapping[int, int]) -> None:
        self._given = given
        self._numbers: dict[int, int] = {}
        self._strides: dict[int, int] = {}
        self._constants: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.pointers: dict[int, int] = {}
        self.shared: list[int] = []

    def take(self, opcode: int, words: tuple[int, ...]) -> None:
        """Note an instruction."""
        if opcode == Op.DECORATE and words[1] == Mark.SPEC_ID:
            self._numbers[words[0]] = words[2]
        elif opcode == Op.DECORATE and words[1] == Mark.ARRAY_STRIDE:
            self._strides[words[0]] = words[2]
        elif opcode in (*Op.TRUTHS, Op.CONSTANT, Op.SPEC_CONSTANT):
            value = int(opcode in Op.TRUE) if opcode in Op.TRUTHS else words[2]
            self._constants[words[1]] = self._given.get(self._numbers.get(words[1], -1), value)
        elif opcode == Op.SPEC_OP:
            self._constants[words[1]] = fold(words[2], [self._constants.get(word, 0) for word in words[3:]])
        elif opcode == Op.POINTER:
            self.pointers[words[0]] = words[2]
        elif opcode == Op.VARIABLE and words[2] == Storage.WORKGROUP:
            self.shared.append(words[0])
        elif opcode in Op.TYPES:
            self.sizes[words[0]] = self._size(opcode, words)

    def _size(self, opcode: int, words: Any) -> int:
        """Return the bytes of a type, as drivers lay it out in shared memory."""
        if opcode in (Op.INT, Op.FLOAT):
            return int(words[1]) // 8
        if opcode == Op.BOOL:
            return 4
        if opcode in (Op.VECTOR, Op.MATRIX):
            return self.sizes.get(words[1], 0) * int(words[2])
        if opcode == Op.ARRAY:
            return (self._strides.get(words[0]) or self.sizes.get(words[1], 0)) * self._constants.get(words[2], 0)
        return sum(self.sizes.get(member, 0) for member in words[1:]) if opcode == Op.STRUCT else 0
