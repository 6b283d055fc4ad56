"""Uniform buffers as storage buffers that a kernel only reads: the same bytes at the same places, bound in one way.

A block that is declared ``uniform`` differs from one that is declared ``readonly buffer`` in its storage class alone;
its members' offsets stand in the module. So the module is rewritten: the arrays' buffers need no further usage, a
block may be as large as a storage buffer, and it may begin wherever a storage buffer may.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from vkpar.vulkan.pipelines.opcodes import HEADER

_VERSION_1_3 = 0x00010300
_POINTER, _FORWARD_POINTER, _VARIABLE, _DECORATE = 32, 39, 59, 71
_UNIFORM, _STORAGE_BUFFER = 2, 12
_BLOCK, _BUFFER_BLOCK, _NON_WRITABLE, _BINDING = 2, 3, 24, 33


def as_storage(spirv: bytes) -> bytes:
    """Return a module whose uniform buffers are storage buffers that are not written.

    Args:
        spirv: a module that :func:`vkpar.vulkan.pipelines.interface.reflect` has read.
    """
    words = list(struct.unpack(f"<{len(spirv) // 4}I", spirv))
    old = {words[at + 1] for at, opcode in _instructions(words) if _is(words, at, opcode, _BUFFER_BLOCK)}
    kinds = {words[at + 1]: words[at + 3] for at, opcode in _instructions(words) if opcode == _POINTER}
    read = {
        words[at + 2]
        for at, opcode in _instructions(words)
        if opcode == _VARIABLE and words[at + 3] == _UNIFORM and kinds[words[at + 1]] not in old
    }
    made = words[:HEADER]
    made[1] = max(made[1], _VERSION_1_3)  # the first with the storage class, and the last with BufferBlock
    for at, opcode in _instructions(words):
        instruction = words[at : at + (words[at] >> 16)]
        if opcode in (_POINTER, _FORWARD_POINTER) and instruction[2] == _UNIFORM:
            instruction[2] = _STORAGE_BUFFER
        elif opcode == _VARIABLE and instruction[3] == _UNIFORM:
            instruction[3] = _STORAGE_BUFFER
        elif _is(words, at, opcode, _BUFFER_BLOCK):
            instruction[2] = _BLOCK
        made += instruction
        if _is(words, at, opcode, _BINDING) and words[at + 1] in read:
            made += [3 << 16 | _DECORATE, words[at + 1], _NON_WRITABLE]
    return struct.pack(f"<{len(made)}I", *made)


def _instructions(words: list[int]) -> Iterator[tuple[int, int]]:
    """Yield where each instruction begins, and its opcode."""
    at = HEADER
    while at < len(words):
        yield at, words[at] & 0xFFFF
        at += words[at] >> 16


def _is(words: list[int], at: int, opcode: int, mark: int) -> bool:
    """Say whether an instruction decorates an id with ``mark``."""
    return opcode == _DECORATE and words[at + 2] == mark
