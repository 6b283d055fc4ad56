"""SPIR-V modules made of words, for tests of what reads them."""

from __future__ import annotations

import struct

MAGIC = 0x07230203


def module(*instructions: tuple[int, ...], version: int = 0x00010500) -> bytes:
    """Return a module of (opcode, operands...) instructions, and functions 1 and 2."""
    words = [MAGIC, version, 0, 100, 0]
    for opcode, *operands in (*instructions, (54, 90, 1, 0, 91), (56,), (54, 90, 2, 0, 91), (56,)):
        words += [(len(operands) + 1) << 16 | opcode, *operands]
    return struct.pack(f"<{len(words)}I", *words)


def name(text: str) -> tuple[int, ...]:
    """Return a string as SPIR-V words."""
    raw = text.encode() + b"\0"
    raw += b"\0" * (-len(raw) % 4)
    return struct.unpack(f"<{len(raw) // 4}I", raw)
