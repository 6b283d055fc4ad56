"""What the bindings of a user's kernel are given: the arrays of a call, checked, or copies of them."""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

from vkpar.arrays.array import Array
from vkpar.arrays.layout import WIDE
from vkpar.arrays.storage import GUARD
from vkpar.arrays.views import overlaps
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.pool import round_up
from vkpar.vulkan.pipelines.elements import glsl_types, takes
from vkpar.vulkan.pipelines.interface import Interface


def _block(array: Array, guards: bool) -> tuple[BufferRange, int]:
    """Return what a kernel that takes an offset may touch, from a multiple of 256 bytes on, and the first element."""
    bound, before = _range(array, guards), array.byte_offset % ALIGNMENT + (GUARD if guards else 0)
    before = min(before, array.byte_offset)
    whole = array.memory.range(array.byte_offset - before, before + bound.nbytes)
    return whole, before // array.dtype.itemsize


def _range(array: Array, guards: bool) -> BufferRange:
    """Return what a kernel may touch: the array's bytes, and the padding where no other array can follow.

    With ``guards`` it is the guard words behind, too: drivers drop what is written beyond a binding, or do not.
    """
    memory = array.memory
    if guards:
        return memory.range(array.byte_offset, array.nbytes + GUARD)
    if array.byte_offset + array.nbytes < array.storage.nbytes:
        return memory.range(array.byte_offset, array.nbytes)
    padded = min(round_up(array.nbytes, WIDE), memory.reach(array.byte_offset))
    most = array.device.limits.max_storage_buffer_range
    return memory.range(array.byte_offset, max(array.nbytes, min(padded, most)))


def operands(first: Any, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the arrays of a call with ``elements=``: there the first one stands where ``groups`` does elsewhere."""
    if first is None:
        return arrays
    if not isinstance(first, Array):
        if isinstance(first, (int, tuple)):
            raise InvalidUsageError(
                "elements= stands for the numbers of work-groups: kernel(*arrays, elements=n), "
                f"without {first!r} before"
            )
        raise InvalidUsageError(
            f"binding 0 has to be a vkpar.Array, not {type(first).__name__}; write device.array(x) first"
        )
    return (first, *arrays)


def check(declared: Interface, arrays: tuple[Array, ...], push: bytes) -> None:
    """Refuse arrays and push constants that are not what a kernel declares.

    Raises:
        InvalidUsageError: another number of arrays or bytes; an array of another type, without elements, whose
            elements do not lie side by side, or of fewer bytes than its uniform block.
        UnsupportedError: an array in several buffers.
    """
    if len(arrays) != len(declared.bindings):
        raise InvalidUsageError(f"the kernel has {len(declared.bindings)} bindings; got {len(arrays)} arrays")
    if len(push) != declared.given_nbytes:
        own = " beside its vkpar_offset_<binding>" if declared.offsets else ""
        named = "; ".join(member.text for member in declared.members if member.name)
        raise InvalidUsageError(
            f"the kernel takes {declared.given_nbytes} bytes of push constants{own}; got {len(push)}"
            + (f" ({named}: a dict names them)" if named else "")
        )
    uniforms, held, padded = dict(declared.uniforms), dict(declared.elements), dict(declared.padded)
    for number, array in enumerate(arrays):
        if not array.size:
            raise InvalidUsageError("a kernel cannot bind an array without elements")
        array.check_contiguous(f"binding {number}")
        if number in held and not takes(held[number], array.dtype.name, array.dtype.itemsize):
            raise InvalidUsageError(
                f"binding {number} is declared to hold {glsl_types(held[number])}, not {array.dtype} as {array!r} "
                "does: give an array of the declared type, or declare uint, which reads the bits of any"
            )
        if number in padded and not padded[number].lies_in(array.shape, array.dtype.itemsize):
            nbytes, stride, text = padded[number]
            raise InvalidUsageError(
                f"binding {number} is declared to hold {text}, one every {stride} bytes, and {array!r} lacks the "
                f"{stride - nbytes} bytes of padding behind each: pad it to {stride // array.dtype.itemsize} numbers "
                f"along its last axis, or declare a buffer (std430) of {glsl_types(held[number])}[], without gaps"
            )
        if array.nbytes < uniforms.get(number, 0):
            raise InvalidUsageError(
                f"binding {number} is a uniform block of {uniforms[number]} bytes; {array!r} has {array.nbytes}"
            )
        if array.memory.reach(array.byte_offset) < array.nbytes:
            raise UnsupportedError(
                f"binding {number}: {array!r} lies in several buffers of at most {array.device.limits.max_buffer} "
                "bytes each, and a kernel sees one; run it on each part that vkpar.pieces() gives"
            )


def bound(
    declared: Interface, device: Device, arrays: tuple[Array, ...], push: bytes, measured: Collection[int]
) -> tuple[list[BufferRange], bytes]:
    """Return what each binding is given, and the push constants with the offsets that the kernel asks for.

    Bindings ``measured``, whose length the kernel asks for, are given no guard words.
    """
    offsets, constants = dict(declared.offsets), bytearray(push)
    constants += bytes(declared.push_nbytes - len(push))
    aside = {
        number for number in range(len(arrays)) if number not in offsets and _is_aside(declared, device, number, arrays)
    }
    ranges = []
    for number, array in enumerate(arrays):
        guards = array.storage.guards is not None and number not in measured
        if number in offsets:
            block, first = _block(array, guards)
            struct.pack_into("=I", constants, offsets[number], first)
            ranges.append(block)
        else:
            ranges.append(_range(array.copy(), False) if number in aside else _range(array, guards))
    return ranges, bytes(constants)


def _is_aside(declared: Interface, device: Device, number: int, arrays: tuple[Array, ...]) -> bool:
    """Say whether a binding must be given a copy of its array; an InvalidUsageError where a copy would not do."""
    array = arrays[number]
    if can_begin(array, 0):
        return False
    only_read = declared.readonly
    if number in only_read and array.nbytes <= device.limits.max_storage_buffer_range:
        written = (other for place, other in enumerate(arrays) if place not in only_read)
        if not any(overlaps(array, other) for other in written):
            return True
        why = "the kernel writes the same memory through another binding"
    else:
        why = "the kernel may write it (it is not declared readonly)"
    raise InvalidUsageError(
        f"binding {number}: {array!r} is a view that begins at byte {array.byte_offset} of its memory, which "
        f"{device} can bind at a multiple of {device.limits.min_storage_buffer_offset_alignment} "
        f"(minStorageBufferOffsetAlignment) only, and {why}: declare a push constant vkpar_offset_{number} (see "
        "vkpar.Kernel), or run the kernel on a.copy() and vkpar.copy() the result back"
    )


def can_begin(array: Array, start: int) -> bool:
    """Say whether the device can bind the array from element ``start`` on."""
    at = array.byte_offset + start * array.dtype.itemsize
    return at % array.device.limits.min_storage_buffer_offset_alignment == 0
