"""Words of SPIR-V that are looked for in modules: opcodes, decorations, storage classes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

HEADER: Final = 5
"""Words before a module's first instruction."""


class Op:
    """Opcodes."""

    NAME, MEMBER_NAME, ENTRY, MODE, CAPABILITY = 5, 6, 15, 16, 17
    BOOL, INT, FLOAT, VECTOR, MATRIX, ARRAY, RUNTIME_ARRAY, STRUCT = 20, 21, 22, 23, 24, 28, 29, 30
    POINTER, FORWARD_POINTER = 32, 39
    TYPES = frozenset({*range(19, 33), FORWARD_POINTER, 4456, 4472, 5341, 5358, 5370, 5371})
    TRUE = frozenset({41, 48})
    TRUTHS = frozenset({*TRUE, 42, 49})
    CONSTANT, COMPOSITE, SPEC_CONSTANT, SPEC_COMPOSITE, SPEC_OP = 43, 44, 50, 51, 52
    FUNCTION, FUNCTION_END, CALL, VARIABLE = 54, 56, 57, 59
    DECORATE, MEMBER_DECORATE, MODE_ID = 71, 72, 331
    PARAMETER, ACCESS, IN_BOUNDS_ACCESS = 55, 65, 66
    LOAD, STORE, EXCHANGE, FADD, FMIN, FMAX = 227, 228, 229, 6035, 5614, 5615  # of atomics on floats


class Mark:
    """Decorations."""

    SPEC_ID, BUFFER_BLOCK, ROW_MAJOR, ARRAY_STRIDE, MATRIX_STRIDE, BUILT_IN = 1, 3, 4, 6, 7, 11
    NON_WRITABLE, NON_READABLE, BINDING, SET, OFFSET = 24, 25, 33, 34, 35


class Storage:
    """Storage classes."""

    UNIFORM_CONSTANT, UNIFORM, WORKGROUP, PUSH, BUFFER = 0, 2, 4, 9, 12


def text_of(words: tuple[int, ...]) -> tuple[str, int]:
    """Return the text that ``words`` begin with, and how many of them it takes."""
    raw = struct.pack(f"<{len(words)}I", *words)
    end = raw.index(b"\0")
    return raw[:end].decode(), end // 4 + 1


def scalar(opcode: int, words: tuple[int, ...]) -> str:
    """Return the code, in the module struct, of an integer or float type; nothing where there is none."""
    if opcode == Op.FLOAT:
        return {16: "e", 32: "f", 64: "d"}.get(words[0], "") if len(words) == 1 else ""
    code = {8: "b", 16: "h", 32: "i", 64: "q"}.get(words[0], "")
    return code if words[1] else code.upper()


# ---- constants that hang on specialization constants ----

Size = int | Sequence[Any]
"""A number, or what it is computed from: an opcode and its operands; JSON keeps it. Negative opcodes do not wrap."""

_BITS: Final = 0xFFFFFFFF
GIVEN: Final = 0  # the number of a specialization constant, and its value where none is given
_PLUS, TIMES = -128, -132
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


def computed(size: Size, given: Mapping[int, int]) -> int:
    """Return the value of a size with the specialization constants ``given`` by number."""
    if isinstance(size, int):
        return size
    opcode, *operands = size
    if opcode == GIVEN:
        number, value = operands
        return given.get(number, value)
    values = [computed(each, given) for each in operands]
    return int(_FOLDS[-opcode](*values)) if opcode < 0 else fold(opcode, values)


def made(opcode: int, *operands: Size) -> Size:
    """Return what is computed from operands: the number itself where all of them are numbers."""
    size = [opcode, *operands]
    return computed(size, {}) if all(isinstance(each, int) for each in operands) else size


def total(sizes: Iterable[Size]) -> Size:
    """Return the sum of sizes."""
    whole: Size = 0
    for size in sizes:
        whole = made(_PLUS, whole, size)
    return whole
