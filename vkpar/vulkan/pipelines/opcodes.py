"""Words of SPIR-V that are looked for in modules: opcodes, decorations, storage classes."""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = 5
"""Words before a module's first instruction."""


class Op:
    """Opcodes."""

    MEMBER_NAME, ENTRY, MODE, CAPABILITY = 6, 15, 16, 17
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
