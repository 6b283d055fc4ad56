"""What a kernel reads of its surroundings: the components of its place, and the lengths of its arrays."""

from __future__ import annotations

import struct
from typing import Final

from vkpar.vulkan.pipelines.opcodes import HEADER

_ALL: Final = frozenset({0, 1, 2})
_BUILT_IN, _WORKGROUP_ID, _GLOBAL_ID, _BINDING = 11, 26, 28, 33
_CONSTANT, _FUNCTION, _VARIABLE, _DECORATE = 43, 54, 59, 71
_LOAD, _STORE, _ACCESS, _IN_BOUNDS_ACCESS, _ARRAY_LENGTH = 61, 62, 65, 66, 68
_SHUFFLE, _EXTRACT = 79, 81
_SAME_COMPONENTS: Final = frozenset({83, 113, 114, 124, 400})  # copies, conversions and other signs of whole vectors


def measured(spirv: bytes) -> frozenset[int]:
    """Return the bindings whose arrays a module asks for their lengths; all of them in doubt.

    Args:
        spirv: a module that :func:`vkpar.vulkan.pipelines.interface.reflect` has read.
    """
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    bindings, asked = dict[int, int](), set[int]()
    at = HEADER
    while at < len(words):
        opcode, operands = words[at] & 0xFFFF, words[at + 1 : at + (words[at] >> 16)]
        if opcode == _DECORATE and operands[1] == _BINDING:
            bindings[operands[0]] = operands[2]
        elif opcode == _ARRAY_LENGTH:
            asked.add(operands[2])
        at += words[at] >> 16
    known = asked <= bindings.keys()  # a pointer that was handed on may be that of any
    return frozenset(bindings[each] for each in asked) if known else frozenset(bindings.values())


def read_of_places(spirv: bytes) -> frozenset[int]:
    """Return the components of gl_WorkGroupID and gl_GlobalInvocationID that a module reads; all of them in doubt.

    Args:
        spirv: a module that :func:`vkpar.vulkan.pipelines.interface.reflect` has read.
    """
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    carriers, constants, body = set[int](), dict[int, int](), list[tuple[int, tuple[int, ...]]]()
    at = HEADER
    while at < len(words):
        opcode, operands = words[at] & 0xFFFF, words[at + 1 : at + (words[at] >> 16)]
        if opcode == _DECORATE and operands[1:] in ((_BUILT_IN, _WORKGROUP_ID), (_BUILT_IN, _GLOBAL_ID)):
            carriers.add(operands[0])
        elif opcode == _CONSTANT:
            constants[operands[1]] = operands[2]
        elif (body or opcode == _FUNCTION) and opcode != _VARIABLE:
            body.append((opcode, operands))
        at += words[at] >> 16
    known = -1
    while known != len(carriers):  # what is stored in a loop is read before
        known = len(carriers)
        read = frozenset[int]().union(*(_read(*instruction, carriers, constants) for instruction in body))
    return read


def _read(opcode: int, operands: tuple[int, ...], carriers: set[int], constants: dict[int, int]) -> frozenset[int]:
    """Return the components that an instruction reads of the vectors, and pointers to such, that are ``carriers``.

    What it hands them on to joins them. Words that are no ids may look like one of them: then all count as read.
    """
    if carriers.isdisjoint(operands):
        return frozenset()
    if opcode == _STORE:
        if operands[1] in carriers:  # else something is stored over it
            carriers.add(operands[0])
        return frozenset()
    if opcode == _LOAD or opcode in _SAME_COMPONENTS:
        carriers.add(operands[1])
        return frozenset()
    if opcode in (_ACCESS, _IN_BOUNDS_ACCESS) and operands[2] in carriers and operands[3] in constants:
        return frozenset({constants[operands[3]]})
    if opcode == _EXTRACT and operands[2] in carriers:
        return frozenset(operands[3:])
    if opcode == _SHUFFLE and operands[2] == operands[3]:
        return frozenset(word % 3 for word in operands[4:])
    return _ALL
