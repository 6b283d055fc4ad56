"""How many bytes of shared memory a module takes: read from what it declares."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from vkpar.vulkan.pipelines.opcodes import GIVEN, HEADER, TIMES, Mark, Op, Size, Storage, computed, made, total


def shared_nbytes(spirv: bytes, given: Mapping[int, int]) -> int:
    """Return the bytes of all shared variables of a module, with the specialization constants ``given`` by number."""
    return computed(size_of(spirv), given)


def size_of(spirv: bytes) -> Size:
    """Return the bytes of all shared variables of a module, as they are computed from specialization constants."""
    declared = _Declared()
    for opcode, words in _declarations(spirv):
        declared.take(opcode, words)
    return total([declared.sizes.get(declared.pointers.get(pointer, 0), 0) for pointer in declared.shared])


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

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._strides: dict[int, int] = {}
        self._constants: dict[int, Size] = {}
        self.sizes: dict[int, Size] = {}
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
            number = self._numbers.get(words[1])
            self._constants[words[1]] = value if number is None else [GIVEN, number, value]
        elif opcode == Op.SPEC_OP:
            self._constants[words[1]] = made(words[2], *(self._constants.get(word, 0) for word in words[3:]))
        elif opcode == Op.POINTER:
            self.pointers[words[0]] = words[2]
        elif opcode == Op.VARIABLE and words[2] == Storage.WORKGROUP:
            self.shared.append(words[0])
        elif opcode in Op.TYPES:
            self.sizes[words[0]] = self._size(opcode, words)

    def _size(self, opcode: int, words: Any) -> Size:
        """Return the bytes of a type, as drivers lay it out in shared memory."""
        if opcode in (Op.INT, Op.FLOAT):
            return int(words[1]) // 8
        if opcode == Op.BOOL:
            return 4
        if opcode in (Op.VECTOR, Op.MATRIX):
            return made(TIMES, self.sizes.get(words[1], 0), int(words[2]))
        if opcode == Op.ARRAY:
            stride = self._strides.get(words[0]) or self.sizes.get(words[1], 0)
            return made(TIMES, stride, self._constants.get(words[2], 0))
        return total([self.sizes.get(member, 0) for member in words[1:]]) if opcode == Op.STRUCT else 0
