"""What a module's specialization constants make of it: the bytes of its shared memory, and plain constants."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vkpar.vulkan.pipelines.opcodes import GIVEN, HEADER, TIMES, Mark, Op, Size, Storage, computed, fold, made, total

_FALSE, _WORD = 42, 32
# What is the same of words with and without a sign; of division, remainders, comparisons and shifts those without one.
_FOLDED: Final = frozenset({128, 130, 132, 134, 137, *range(164, 173), 174, 176, 178, 194, *range(196, 201)})
_DIVIDE: Final = frozenset({134, 137})


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


def frozen(spirv: bytes, given: Mapping[int, int]) -> bytes:
    """Return a module with plain constants in place of specialization constants, and of what is computed from these.

    Args:
        spirv: the module.
        given: values of its specialization constants by number; the others have the module's own.
    """
    kept: list[int] = []
    plain, at = _Frozen(given), HEADER
    for opcode, words in _declarations(spirv):
        at += 1 + len(words)
        for code, *operands in plain.taken(opcode, words):
            kept += ((len(operands) + 1) << 16 | code, *operands)
    return spirv[: 4 * HEADER] + struct.pack(f"<{len(kept)}I", *kept) + spirv[4 * at :]


class _Frozen:
    """The constants of a module that are known by their words."""

    def __init__(self, given: Mapping[int, int]) -> None:
        self._given = given
        self._numbers: dict[int, int] = {}
        self._words: set[int] = set()  # types of a word
        self._truths: set[int] = set()
        self._values: dict[int, int] = {}
        self._left: set[int] = set()  # constants that hang on specialization constants still

    def taken(self, opcode: int, words: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield what an instruction before the first function becomes."""
        if opcode == Op.DECORATE and words[1] == Mark.SPEC_ID:
            self._numbers[words[0]] = words[2]
            return
        if opcode == Op.BOOL:
            self._truths.add(words[0])
        elif opcode in (Op.INT, Op.FLOAT) and words[1] == _WORD:
            self._words.add(words[0])
        elif opcode in (*Op.TRUTHS, Op.CONSTANT, Op.SPEC_CONSTANT):
            yield self._constant(opcode, words)
            return
        elif opcode == Op.SPEC_OP:
            yield self._computed(words)
            return
        elif opcode == Op.SPEC_COMPOSITE and self._left.isdisjoint(words[2:]):
            opcode = Op.COMPOSITE
        elif opcode == Op.SPEC_COMPOSITE:
            self._left.add(words[1])
        yield (opcode, *words)

    def _constant(self, opcode: int, words: tuple[int, ...]) -> tuple[int, ...]:
        kind, number, *own = words
        given = self._given.get(self._numbers.get(number, -1))
        if kind in self._truths:
            return self._plain(kind, number, int(opcode in Op.TRUE) if given is None else given)
        if kind in self._words:
            return self._plain(kind, number, own[0] if given is None else given)
        return Op.CONSTANT, *words  # none of these is given

    def _computed(self, words: tuple[int, ...]) -> tuple[int, ...]:
        kind, number, opcode, *operands = words
        values = [self._values.get(each) for each in operands]
        known = [value for value in values if value is not None]
        whole = kind in self._truths or kind in self._words
        if len(known) < len(values) or not whole or opcode not in _FOLDED or (opcode in _DIVIDE and not known[1]):
            self._left.add(number)
            return (Op.SPEC_OP, *words)
        return self._plain(kind, number, fold(opcode, known))

    def _plain(self, kind: int, number: int, value: int) -> tuple[int, ...]:
        if kind in self._truths:
            self._values[number] = int(value != 0)
            return min(Op.TRUE) if value else _FALSE, kind, number
        self._values[number] = value & 0xFFFFFFFF
        return Op.CONSTANT, kind, number, value & 0xFFFFFFFF
