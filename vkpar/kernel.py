"""The user's own compute kernels, from GLSL or SPIR-V."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vkpar.array import WIDE, Array, check_same_device
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.plans import Plans, form_of
from vkpar.plans import make as make_plan
from vkpar.vulkan import queue, shader
from vkpar.vulkan.buffer import BufferRange
from vkpar.vulkan.interface import Entry, Interface, missing, reflect
from vkpar.vulkan.pool import round_up

_PIECE = 256  # elements: at multiples every device can bind, if it can at the array's own begin

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Kernel:
    """A compute kernel on one device.

    Storage buffers are in set 0; binding i is the i-th array of a call: exactly the array's bytes, so that a kernel
    given a view cannot reach its neighbours. Only where an array ends its memory (any array but a view does) up to 15
    bytes of padding follow, which make the length a multiple of 16.

    Args:
        device: where it runs.
        source: GLSL text (``#version 450``, a compute shader), or SPIR-V bytes (anything with the buffer protocol).
        entry: the entry point's name; that of GLSL is ``main``.
        defines: macros for the GLSL, by name.

    Raises:
        ShaderCompileError: GLSL with errors; the message holds the compiler's log.
        UnsupportedError: no GLSL compiler on this machine, or a kernel that needs more than the device has or vkpar
            offers: storage buffers and push constants; 8- and 16-bit storage, small and 64-bit integers, float16 and
            subgroup operations where the device has them.
        InvalidUsageError: neither text nor SPIR-V, no such entry point, bindings with gaps.
    """

    def __init__(
        self,
        device: Device,
        source: str | ReadableBuffer,
        *,
        entry: str = "main",
        defines: dict[str, str] | None = None,
    ) -> None:
        self.device = device
        device.logical.check_open()
        if isinstance(source, str):
            if entry != "main":
                raise InvalidUsageError(f"the entry point of GLSL is 'main', not {entry!r}; entry is for SPIR-V")
            spirv = shader.compile_glsl(source, {str(key): str(value) for key, value in (defines or {}).items()})
        elif defines:
            raise InvalidUsageError("defines apply to GLSL, not to SPIR-V")
        else:
            spirv = _as_bytes(source, "a kernel is GLSL text or SPIR-V bytes")
        interface = reflect(spirv)
        _check_interface(interface, entry)
        _check_features(device, interface)
        _check_limits(device, interface, interface.entries[entry])
        self._spirv, self._entry, self._interface = spirv, entry, interface
        self._key = hashlib.sha256(spirv).hexdigest()
        self._plans = Plans()

    def __call__(self, groups: int | tuple[int, ...], *arrays: Array, push: ReadableBuffer = b"") -> None:
        """Run it on ``arrays``, after all earlier work on the device; returns at once.

        Args:
            groups: numbers of work-groups in x, y and z (trailing ones may be left out).
            arrays: one per binding, all on the kernel's device.
            push: the push constants, exactly as many bytes as the kernel declares: bytes, a NumPy array or anything
                else with the buffer protocol.

        Raises:
            InvalidUsageError: a wrong number of arrays or push bytes, an array of another device, without elements
                or at an offset that the device cannot bind, or bad group numbers.
            UnsupportedError: an array larger than the device can bind.
        """
        if type(push) is bytes and len(push) == self._interface.push_nbytes and self._run_plan(groups, arrays, push):
            return
        dims = _groups(groups)
        constants = _as_bytes(push, "push constants are bytes or an array of plain numbers")
        self._check_call(arrays, constants)
        logical = self.device.logical
        ranges = [_range(array) for array in arrays]
        pushes = logical.pushes(len(arrays))
        pipeline = logical.pipelines.get(
            self._key, self._spirv, self._entry, len(arrays), len(constants), pushes=pushes
        )
        logical.dispatch("Kernel", pipeline, ranges, constants, dims)
        if arrays:
            plan = make_plan(self.device, "Kernel", pipeline, arrays, ranges, dims)
            if plan is not None:
                self._plans.keep((dims, *map(form_of, arrays)), plan)

    def _run_plan(self, groups: int | tuple[int, ...], arrays: tuple[Array, ...], push: bytes) -> bool:
        """Run it by the plan of an earlier call; False, and nothing done, where there is none."""
        dims = (groups, 1, 1) if type(groups) is int else _groups(groups)
        try:
            forms = [array.form or form_of(array) for array in arrays]
        except AttributeError:  # not arrays: the long way says so
            return False
        plan = self._plans.known.get((dims, *forms))
        return plan is not None and plan.run(arrays, push)

    def _check_call(self, arrays: tuple[Array, ...], push: bytes) -> None:
        declared = self._interface
        if len(arrays) != len(declared.bindings):
            raise InvalidUsageError(f"the kernel has {len(declared.bindings)} bindings; got {len(arrays)} arrays")
        if len(push) != declared.push_nbytes:
            raise InvalidUsageError(f"the kernel takes {declared.push_nbytes} bytes of push constants; got {len(push)}")
        if arrays:
            check_same_device(*arrays)
            if arrays[0].device is not self.device:
                raise InvalidUsageError(f"the kernel is on {self.device!r}, the arrays are on {arrays[0].device!r}")
        for number, array in enumerate(arrays):
            if not array.size:
                raise InvalidUsageError("a kernel cannot bind an array without elements")
            if array.memory.reach(array.byte_offset) < array.nbytes:
                raise UnsupportedError(
                    f"binding {number}: {array!r} lies in several buffers of at most {array.device.limits.max_buffer} "
                    "bytes each, and a kernel sees one; run it on each part that vkpar.pieces() gives"
                )


def pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Cut arrays of one size into flat views that kernels can bind, all at the same elements.

    An array of more bytes than the device has in one buffer, or binds at once, cannot be given to a :class:`Kernel`
    whole. What works element by element runs on the pieces instead::

        for x, y in vkpar.pieces(a, b):
            kernel(-(-x.size // 256), x, y)

    Args:
        arrays: of the same size, on one device; arrays that can be bound as they are come in one piece.

    Raises:
        InvalidUsageError: other sizes, arrays of several devices, or closed ones.
        UnsupportedError: views that no cut suits: a buffer of one ends where another cannot be bound.
    """
    check_same_device(*arrays)
    for array in arrays:
        array.check_free()
    total = arrays[0].size if arrays else 0
    if any(array.size != total for array in arrays):
        raise InvalidUsageError(f"pieces of arrays of different sizes: {', '.join(str(a.size) for a in arrays)}")
    flat = [array.reshape(-1) for array in arrays]
    return iter([tuple(array[start:stop] for array in flat) for start, stop in _cuts(flat, total)])


def _cuts(arrays: Sequence[Array], total: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < total:
        count = min(_bindable(array, start) for array in arrays)
        if count < total - start and not all(_can_begin(array, start + count) for array in arrays):
            count = count // _PIECE * _PIECE
        if not count:
            raise UnsupportedError(
                f"no piece from element {start} on suits all of {', '.join(map(repr, arrays))}: a sub-buffer of one "
                "ends where another cannot be bound; take view.contiguous_copy() of those that are views"
            )
        yield start, start + count
        start += count


def _can_begin(array: Array, start: int) -> bool:
    """Say whether the device can bind the array from element ``start`` on."""
    at = array.byte_offset + start * array.dtype.itemsize
    return at % array.device.limits.min_storage_buffer_offset_alignment == 0


def _bindable(array: Array, start: int) -> int:
    """Return how many elements from ``start`` on a kernel can bind."""
    room = array.memory.reach(array.byte_offset + start * array.dtype.itemsize)
    return min(array.size - start, min(room, array.device.limits.max_storage_buffer_range) // array.dtype.itemsize)


def _as_bytes(source: ReadableBuffer, what: str) -> bytes:
    try:
        return memoryview(source).tobytes()
    except (TypeError, ValueError) as error:
        raise InvalidUsageError(f"{what}, not {type(source).__name__}") from error


def _range(array: Array) -> BufferRange:
    """Return what a kernel may touch: the array's bytes, and the padding where no other array can follow."""
    memory = array.memory
    if array.byte_offset + array.nbytes < array.storage.nbytes:
        return memory.range(array.byte_offset, array.nbytes)
    padded = min(round_up(array.nbytes, WIDE), memory.reach(array.byte_offset))
    most = array.device.limits.max_storage_buffer_range
    return memory.range(array.byte_offset, max(array.nbytes, min(padded, most)))


def _check_interface(interface: Interface, entry: str) -> None:
    if not isinstance(entry, str) or entry not in interface.entries:
        raise InvalidUsageError(f"no compute entry point {entry!r}; there are: {sorted(interface.entries)}")
    if interface.foreign:
        raise UnsupportedError(
            f"a kernel may use storage buffers of set 0 and push constants only, not {interface.foreign}"
        )
    if interface.bindings != frozenset(range(len(interface.bindings))):
        raise InvalidUsageError(f"bindings must be 0, 1, 2, ... without gaps, not {sorted(interface.bindings)}")
    if not all(interface.entries[entry].local_size):
        raise InvalidUsageError(f"the entry point {entry!r} declares no local size")


def _check_features(device: Device, interface: Interface) -> None:
    newest = (1, 6) if device.info.api_version >= (1, 3, 0) else (1, 5)
    if interface.version > newest:
        raise UnsupportedError(f"SPIR-V {_dotted(interface.version)}; {device.name} takes {_dotted(newest)} at most")
    lacking = missing(interface.capabilities, device.info.features)
    if lacking:
        raise UnsupportedError(
            f"the kernel needs the SPIR-V capabilities {', '.join(lacking)}, which {device.name} or vkpar lacks"
        )


def _check_limits(device: Device, interface: Interface, entry: Entry) -> None:
    limits, size = device.limits, entry.local_size
    if any(wanted > most for wanted, most in zip(size, limits.max_workgroup_size, strict=True)):
        raise UnsupportedError(f"a local size of {size}; {device.name} allows {limits.max_workgroup_size}")
    buffers = min(limits.max_storage_buffers, queue.DESCRIPTORS_PER_FRAME)
    for what, wanted, most in (
        ("storage buffers", len(interface.bindings), buffers),
        ("invocations in a work-group", math.prod(size), limits.max_workgroup_invocations),
        ("bytes of shared memory", entry.shared_nbytes, limits.max_shared_memory),
        ("bytes of push constants", interface.push_nbytes, limits.max_push_constants),
    ):
        if wanted > most:
            raise UnsupportedError(f"{wanted} {what}; {device.name} allows {most}")
    if interface.push_nbytes % 4:
        raise UnsupportedError(f"{interface.push_nbytes} bytes of push constants; their number is a multiple of 4")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _groups(groups: int | tuple[int, ...]) -> tuple[int, int, int]:
    items = groups if isinstance(groups, (tuple, list)) else (groups,)
    try:
        dims = [operator.index(item) for item in items]
    except TypeError:
        dims = []
    if not 1 <= len(dims) <= 3 or min(dims) < 0:
        raise InvalidUsageError(f"work-groups are one to three whole numbers, not {groups!r}")
    x, y, z = (*dims, 1, 1)[:3]
    return (x, y, z)
