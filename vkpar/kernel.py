"""The user's own compute kernels, from GLSL or SPIR-V."""

from __future__ import annotations

import hashlib

from vkpar.array import Array, check_same_device
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan import shader


class Kernel:
    """A compute kernel on one device.

    Storage buffers are in set 0; binding i is the i-th array of a call, a buffer of at least its bytes, padded to a
    multiple of 16. Push constants are passed as bytes.

    Args:
        device: where it runs.
        source: GLSL text (``#version 450``, a compute shader), or SPIR-V bytes.
        entry: the entry point's name.
        defines: macros for the GLSL, by name.

    Raises:
        ShaderCompileError: GLSL with errors; the message holds the compiler's log.
        UnsupportedError: no GLSL compiler on this machine, or a kernel that needs more than storage buffers.
        InvalidUsageError: bytes that are not SPIR-V, no such entry point, bindings with gaps.
    """

    def __init__(
        self, device: Device, source: str | bytes, *, entry: str = "main", defines: dict[str, str] | None = None
    ) -> None:
        self.device = device
        device.logical.check_open()
        if isinstance(source, str):
            spirv = shader.compile_glsl(source, entry, {key: str(value) for key, value in (defines or {}).items()})
        elif defines:
            raise InvalidUsageError("defines apply to GLSL, not to SPIR-V")
        else:
            spirv = bytes(source)
        interface = shader.reflect(spirv)
        _check_interface(interface, entry)
        _check_push(device, interface.push_nbytes)
        self._spirv, self._entry, self._interface = spirv, entry, interface
        self._key = hashlib.sha256(spirv).hexdigest()

    def __call__(self, groups: int | tuple[int, ...], *arrays: Array, push: bytes = b"") -> None:
        """Run it on ``arrays``, after all earlier work on the device; returns at once.

        Args:
            groups: numbers of work-groups in x, y and z (trailing ones may be left out).
            arrays: one per binding, all on the kernel's device.
            push: the push constants, exactly as many bytes as the kernel declares.

        Raises:
            InvalidUsageError: a wrong number of arrays or push bytes, an array of another device, without elements
                or at an offset that the device cannot bind, or bad group numbers.
            UnsupportedError: an array larger than the device can bind.
        """
        dims = _groups(groups)
        self._check_call(arrays, push)
        logical = self.device.logical
        ranges = [
            array.bytes_range() if array.byte_offset else array.buffer.range(0, _padded(array)) for array in arrays
        ]
        pipeline = logical.pipelines.get(self._key, self._spirv, self._entry, len(arrays), len(push))
        logical.dispatch(pipeline, ranges, push, dims)

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
        for array in arrays:
            if not array.size:
                raise InvalidUsageError("a kernel cannot bind an array without elements")


def _padded(array: Array) -> int:
    return min(-(-array.nbytes // 16) * 16, array.buffer.reserved)


def _check_interface(interface: shader.Interface, entry: str) -> None:
    if entry not in interface.entries:
        raise InvalidUsageError(f"no compute entry point {entry!r}; there are: {sorted(interface.entries)}")
    if interface.foreign:
        raise UnsupportedError("a kernel may use storage buffers of set 0 and push constants only")
    if interface.bindings != frozenset(range(len(interface.bindings))):
        raise InvalidUsageError(f"bindings must be 0, 1, 2, ... without gaps, not {sorted(interface.bindings)}")


def _check_push(device: Device, nbytes: int) -> None:
    most = device.limits.max_push_constants
    if nbytes > most:
        raise UnsupportedError(f"{nbytes} bytes of push constants; {device.name} allows {most}")


def _groups(groups: int | tuple[int, ...]) -> tuple[int, int, int]:
    dims = (groups,) if isinstance(groups, int) else tuple(groups)
    if not 1 <= len(dims) <= 3 or not all(isinstance(dim, int) and dim >= 0 for dim in dims):
        raise InvalidUsageError(f"work-groups are one to three whole numbers, not {groups!r}")
    x, y, z = (*dims, 1, 1)[:3]
    return (x, y, z)
