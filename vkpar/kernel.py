"""The user's own compute kernels, from GLSL or SPIR-V."""

from __future__ import annotations

import hashlib
import math
import operator
import os
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.layout import WIDE
from vkpar.arrays.views import overlaps
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.plans import Plans, form_of
from vkpar.plans import make as make_plan
from vkpar.vulkan import queue
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.pool import round_up
from vkpar.vulkan.physical import ALIGNMENT
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pipelines.interface import OF_DEVICES, Entry, Interface, missing, reflect
from vkpar.vulkan.pipelines.kernel import Pipeline

_SUFFIXES = (".comp", ".glsl", ".spv", ".cs", ".frag", ".vert", ".hlsl", ".slang")
_READ_IT = "pass what it holds, Path(...).read_text() for GLSL, .read_bytes() for SPIR-V"
_PIECE = 256  # elements: at multiples every device can bind, if it can at the array's own begin

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Kernel:
    """A compute kernel on one device.

    Storage buffers are in set 0; binding i is the i-th array of a call: exactly the array's bytes, so that a kernel
    given a view cannot reach its neighbours. Only where an array ends its memory (any array but a view does) up to 15
    bytes of padding follow, which make the length a multiple of 16.

    Devices bind buffers at multiples of 4 to 256 bytes, each its own, and views begin anywhere. A kernel whose last
    push constants are named ``vkpar_offset_<binding>`` (uint or int) takes views on every device: vkpar binds from a
    multiple of 256 bytes on and fills in the index of the array's first element (SPIR-V keeps its names for that)::

        layout(binding = 0) buffer A { float a[]; };
        layout(push_constant) uniform P { uint n; uint vkpar_offset_0; };   // push=struct.pack("I", n)
        void main() { if (gl_GlobalInvocationID.x < n) a[vkpar_offset_0 + gl_GlobalInvocationID.x] = 1.0; }

    Without them, a view that the device cannot bind is copied aside where the kernel declares its binding ``readonly``,
    and refused elsewhere.

    It is a context manager. Kernels that are dropped or closed free their pipelines once the device is done with them;
    SPIR-V made of GLSL is kept in the process and in ``VKPAR_CACHE_DIR``.

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
        InvalidUsageError: neither text nor SPIR-V, the name of a file, no such entry point, bindings with gaps.
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
            _refuse_file(source)
            spirv = shader.compile_glsl(source, {str(key): str(value) for key, value in (defines or {}).items()})
        elif defines:
            raise InvalidUsageError("defines apply to GLSL, not to SPIR-V")
        else:
            hint = f" ({_READ_IT})" if isinstance(source, os.PathLike) else ""
            spirv = _as_bytes(source, f"a kernel is GLSL text or SPIR-V bytes{hint}")
        interface = reflect(spirv)
        _check_interface(interface, entry)
        _check_features(device, interface)
        _check_limits(device, interface, interface.entries[entry])
        self._spirv, self._entry, self._interface = spirv, entry, interface
        self._key = hashlib.sha256(spirv).hexdigest()
        self._pipeline: Pipeline | None = None
        self._plans = Plans()
        self.closed = False

    def close(self) -> None:
        """Free the pipeline once the work submitted so far is done; a second call does nothing."""
        self.closed = True
        self._pipeline = None
        self._plans = Plans()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __call__(self, groups: int | tuple[int, ...], *arrays: Array, push: ReadableBuffer = b"") -> None:
        """Run it on ``arrays``, after all earlier work on the device; returns at once.

        Args:
            groups: numbers of work-groups in x, y and z (trailing ones may be left out).
            arrays: one per binding, all on the kernel's device.
            push: the push constants, exactly as many bytes as the kernel declares: bytes, a NumPy array or anything
                else with the buffer protocol.

        Raises:
            InvalidUsageError: a closed kernel, a wrong number of arrays or push bytes, an array of another device,
                without elements or at an offset that the device cannot bind, or bad group numbers.
            UnsupportedError: an array larger than the device can bind.
        """
        if self.closed:
            raise InvalidUsageError("this Kernel was closed")
        if type(push) is bytes and len(push) == self._interface.push_nbytes and self._run_plan(groups, arrays, push):
            return
        dims = _groups(groups)
        _check_groups(self.device, dims)
        constants = _as_bytes(push, "push constants are bytes or an array of plain numbers")
        self._check_call(arrays, constants)
        logical = self.device.logical
        ranges, constants = self._bound(arrays, constants)
        pipeline = self._pipeline
        if pipeline is None:
            pushes = logical.pushes(len(arrays))
            pipeline = logical.pipelines.lease(
                self._key, self._spirv, self._entry, len(arrays), len(constants), pushes=pushes
            )
            self._pipeline = None if self.closed else pipeline
        logical.dispatch("Kernel", pipeline, ranges, constants, dims)
        if arrays and not self._interface.offsets and all(_can_begin(array, 0) for array in arrays):
            plan = make_plan(self.device, "Kernel", pipeline, arrays, ranges, dims)
            if plan is not None and not self.closed:
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

    def _bound(self, arrays: tuple[Array, ...], push: bytes) -> tuple[list[BufferRange], bytes]:
        """Return what each binding is given, and the push constants with the offsets that the kernel asks for."""
        offsets, constants = dict(self._interface.offsets), bytearray(push)
        constants += bytes(self._interface.push_nbytes - len(push))
        aside = {number for number in range(len(arrays)) if number not in offsets and self._is_aside(number, arrays)}
        ranges = []
        for number, array in enumerate(arrays):
            if number in offsets:
                block, first = _block(array)
                struct.pack_into("=I", constants, offsets[number], first)
                ranges.append(block)
            else:
                ranges.append(_range(array.copy() if number in aside else array))
        return ranges, bytes(constants)

    def _is_aside(self, number: int, arrays: tuple[Array, ...]) -> bool:
        """Say whether a binding must be given a copy of its array.

        Raises:
            InvalidUsageError: the device cannot bind the array where it begins, and a copy would not do.
        """
        array = arrays[number]
        if _can_begin(array, 0):
            return False
        only_read = self._interface.readonly
        if number in only_read and array.nbytes <= self.device.limits.max_storage_buffer_range:
            written = (other for place, other in enumerate(arrays) if place not in only_read)
            if not any(overlaps(array, other) for other in written):
                return True
            why = "the kernel writes the same memory through another binding"
        else:
            why = "the kernel may write it (it is not declared readonly)"
        raise InvalidUsageError(
            f"binding {number}: {array!r} is a view that begins at byte {array.byte_offset} of its memory, which "
            f"{self.device} can bind at a multiple of {self.device.limits.min_storage_buffer_offset_alignment} "
            f"(minStorageBufferOffsetAlignment) only, and {why}: declare a push constant vkpar_offset_{number} (see "
            "vkpar.Kernel), or run the kernel on a.copy() and vkpar.copy() the result back"
        )

    def _check_call(self, arrays: tuple[Array, ...], push: bytes) -> None:
        declared = self._interface
        if len(arrays) != len(declared.bindings):
            raise InvalidUsageError(f"the kernel has {len(declared.bindings)} bindings; got {len(arrays)} arrays")
        if len(push) != declared.given_nbytes:
            own = " beside its vkpar_offset_<binding>" if declared.offsets else ""
            raise InvalidUsageError(
                f"the kernel takes {declared.given_nbytes} bytes of push constants{own}; got {len(push)}"
            )
        if arrays:
            check_same_device(*arrays)
            if arrays[0].device is not self.device:
                raise InvalidUsageError(f"the kernel is on {self.device!r}, the arrays are on {arrays[0].device!r}")
        for number, array in enumerate(arrays):
            if not array.size:
                raise InvalidUsageError("a kernel cannot bind an array without elements")
            array.check_contiguous(f"binding {number}")
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
    for number, array in enumerate(arrays):
        array.check_contiguous(f"array {number} of pieces()")
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
                "ends where another cannot be bound; take view.copy() of those that are views"
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


def _block(array: Array) -> tuple[BufferRange, int]:
    """Return what a kernel that takes an offset may touch, from a multiple of 256 bytes on, and the first element."""
    bound, before = _range(array), array.byte_offset % ALIGNMENT
    whole = array.memory.range(array.byte_offset - before, before + bound.nbytes)
    return whole, before // array.dtype.itemsize


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
    beyond = [binding for binding, _ in interface.offsets if binding not in interface.bindings]
    if beyond:
        raise InvalidUsageError(f"the push constant vkpar_offset_{beyond[0]} is for a binding that the kernel lacks")
    if not all(interface.entries[entry].local_size):
        raise InvalidUsageError(f"the entry point {entry!r} declares no local size")


def _check_features(device: Device, interface: Interface) -> None:
    newest = (1, 6) if device.info.api_version >= (1, 3, 0) else (1, 5)
    if interface.version > newest:
        raise UnsupportedError(f"SPIR-V {_dotted(interface.version)}; {device} takes {_dotted(newest)} at most")
    lacking = missing(interface.capabilities, device.info.features)
    if lacking:
        raise UnsupportedError(_lacking(device, lacking))


def _lacking(device: Device, names: list[str]) -> str:
    """Say which capabilities the kernel must do without, and where it need not."""
    refused = [name for name in names if name not in OF_DEVICES]
    if refused:
        return (
            f"the kernel needs {', '.join(refused)} (SPIR-V capabilities), which vkpar turns on for no device, "
            f"{device} included: write the kernel without them"
        )
    return (
        f"the kernel needs {', '.join(names)} (SPIR-V capabilities), which {device} does not have: write the kernel "
        "without them, or run it on a device that has them (vkpar devices -v)"
    )


def _check_limits(device: Device, interface: Interface, entry: Entry) -> None:
    limits, size = device.limits, entry.local_size
    if any(wanted > most for wanted, most in zip(size, limits.max_workgroup_size, strict=True)):
        raise UnsupportedError(f"a local size of {size}; {device} allows {limits.max_workgroup_size}")
    buffers = min(limits.max_storage_buffers, queue.DESCRIPTORS_PER_FRAME)
    for what, wanted, most in (
        ("storage buffers", len(interface.bindings), buffers),
        ("invocations in a work-group", math.prod(size), limits.max_workgroup_invocations),
        ("bytes of shared memory", entry.shared_nbytes, limits.max_shared_memory),
        ("bytes of push constants", interface.push_nbytes, limits.max_push_constants),
    ):
        if wanted > most:
            raise UnsupportedError(f"{wanted} {what}; {device} allows {most}")
    if interface.push_nbytes % 4:
        raise UnsupportedError(f"{interface.push_nbytes} bytes of push constants; their number is a multiple of 4")


def _refuse_file(source: str) -> None:
    """Refuse the name of a file in place of GLSL: compilers' messages about that say nothing."""
    if any(sign in source for sign in "\n;{}#") or not source.strip():
        return
    if source.lower().endswith(_SUFFIXES) or os.path.exists(source):
        raise InvalidUsageError(f"{source!r} is the name of a file, not GLSL: {_READ_IT}")


def _check_groups(device: Device, groups: tuple[int, int, int]) -> None:
    """Refuse more work-groups than the device runs in a call."""
    most = device.limits.max_workgroup_count
    if all(wanted <= allowed for wanted, allowed in zip(groups, most, strict=True)):
        return
    total = math.prod(groups)
    rows = -(-total // most[0])
    how = f"({-(-total // rows)}, {rows})" if rows <= most[1] else "several dimensions or calls"
    raise InvalidUsageError(
        f"{groups} work-groups; {device} allows {most} in x, y and z. Spread them over two dimensions, such as {how}, "
        "and count in the kernel with gl_GlobalInvocationID.y * gl_NumWorkGroups.x * gl_WorkGroupSize.x + "
        "gl_GlobalInvocationID.x; leave out what is beyond the last element"
    )


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
