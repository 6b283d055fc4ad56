"""Host memory that NumPy and devices share, and elements from and to other libraries."""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkpar import dtypes
from vkpar.device import Device, Shaped, dimensions
from vkpar.dtypes import DType
from vkpar.errors import DLPackError, InvalidUsageError, OutOfMemoryError, UnsupportedError
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.imports import HostWindow
from vkpar.vulkan.memory.memory import HostArena, HostBlock, check_size
from vkpar.vulkan.memory.pool import round_up

if TYPE_CHECKING:
    from vkpar.arrays.array import Array

_CPU = 1  # kDLCPU
_HOST_DEVICES = {_CPU, 3, 11, 13}  # what NumPy can read in place: kDLCUDAHost, kDLROCMHost and kDLCUDAManaged too
# NumPy 2.1 is the first whose arrays take max_version, dl_device and copy.
_NUMPY_HAS_VERSIONS = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)

_Windows = list[tuple[LogicalDevice, HostWindow]]


def _retire(windows: _Windows) -> None:
    for _, window in windows:
        window.retired = True


class _Memory:
    """The bytes behind a :class:`HostArray`: base of all NumPy arrays over them; imported until no one has one."""

    def __init__(self, block: HostBlock, shape: tuple[int, ...], dtype: np.dtype[Any], devices: list[Device]) -> None:
        self.block = block
        self.windows: _Windows = []
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (block.address, False),
            "version": 3,
        }
        weakref.finalize(self, _retire, self.windows).atexit = False
        try:
            for device in devices if block.nbytes else ():
                self.windows.append((device.logical, device.logical.import_host(block)))
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Drop the imports once their copies are done; an interrupted call is gone on with by the next one."""
        while self.windows:
            logical, window = self.windows[-1]
            logical.drop_import(window)
            self.windows.pop()


class HostArray(Shaped):
    """An n-dimensional array in host memory that devices have imported; see :func:`host_array`.

    ``Array.write(h)``, ``array.read(out=h)`` and ``device.array(h)`` make the device copy straight from and to this
    memory, and so do copies from and to contiguous parts of it, such as ``h.numpy()[2:5]``. NumPy takes it wherever it
    takes an array, ``memoryview(h)`` works from Python 3.12 on, and DLPack consumers get it without a copy.

    It is a context manager. NumPy arrays over it keep it imported, unless it is closed; they stay valid after that.

    Attributes:
        shape: its dimensions; ``size`` elements, ``nbytes`` bytes.
        dtype: a :class:`vkpar.dtypes.DType`; NumPy sees bfloat16 as uint16.
    """

    def __init__(self, memory: _Memory, shape: tuple[int, ...], dtype: DType, devices: list[Device]) -> None:
        self._memory: _Memory | None = memory
        self._exposed: _Memory | None = None  # kept where a reader of __array_interface__ may know the address
        self._devices = devices
        self._process = os.getpid()
        self.shape = shape
        self.dtype = dtype

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that it is imported into; one that was closed is not."""
        return tuple(device for device in self._devices if not device.closed) if not self.closed else ()

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._memory is None

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"for {', '.join(map(str, self.devices)) or 'no device'}"
        return f"<vkpar.HostArray {self.shape} {self.dtype} {state}>"

    def _open(self) -> _Memory:
        if os.getpid() != self._process:
            raise InvalidUsageError("this host memory was made before a fork; make it in the child, a spawned process")
        if self._memory is None:
            raise InvalidUsageError("this HostArray is closed")
        return self._memory

    # --- for NumPy and others ---

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a writable NumPy array over the memory, without a copy (bfloat16 comes as uint16).

        What is written to it is seen by the next copy, and what a copy wrote is there when its call returns.

        Raises:
            InvalidUsageError: closed, or made before a fork.
        """
        return np.asarray(self._open())

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What NumPy needs to see the memory; raises as :meth:`numpy` does."""
        self._exposed = self._open()
        return dict(self._exposed.__array_interface__)

    def __buffer__(self, flags: int) -> memoryview:
        """Return what ``memoryview(h)`` is from Python 3.12 on; raises as :meth:`numpy` does."""
        return self.numpy().data

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's name for host memory, ``(kDLCPU, 0)``."""
        return (_CPU, 0)

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule over the memory (over a copy with ``copy=True``); bfloat16 goes as uint16.

        Args:
            stream: None: there are no streams on the host.
            max_version: the highest version of DLPack that the consumer knows; None for those before 1.0.
            dl_device: where the consumer wants it: None or ``(kDLCPU, 0)``.
            copy: True for a copy; False and None share the memory.

        Raises:
            DLPackError: another device, or a dtype that DLPack does not have.
            InvalidUsageError: a stream; closed, or made before a fork.
        """
        values = self.numpy()
        if stream is not None:
            raise InvalidUsageError(f"host memory has no streams: stream must be None, not {stream!r}")
        if dl_device is not None and tuple(dl_device) != (_CPU, 0):
            raise DLPackError(f"host memory can be handed over on the CPU, (1, 0), not on DLPack device {dl_device}")
        if copy:
            values = values.copy()
        try:
            return values.__dlpack__(max_version=max_version) if _NUMPY_HAS_VERSIONS else values.__dlpack__()
        except BufferError as error:
            raise DLPackError(f"DLPack cannot hand over {self.dtype}: {error}") from error

    # --- end ---

    def close(self) -> None:
        """Wait for pending copies and let the devices forget the memory; a second call does nothing.

        NumPy arrays over it stay valid: the memory goes when the last of them does. In a forked child nothing is
        touched.
        """
        memory = self._memory
        if memory is None:
            return
        if os.getpid() == self._process:
            memory.drop()
        self._memory = None

    def __enter__(self) -> HostArray:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def host_array(shape: int | Sequence[int], dtype: object, devices: Device | Iterable[Device]) -> HostArray:
    """Return a new array of zeros in host memory that NumPy and all ``devices`` share.

    The memory is private, page-aligned and not there in forked children; drivers pin it as long as it is imported.

    Args:
        shape: its dimensions, 0 included.
        dtype: what ``np.dtype`` takes, or ``"bfloat16"``.
        devices: opened devices, at least one.

    Raises:
        InvalidUsageError: no shape, dtype or opened device.
        UnsupportedError: a device whose driver cannot import host memory, or not so much; the message names it.
        OutOfMemoryError: no memory is left.
    """
    dims, kind = dimensions(shape), dtypes.resolve(dtype)
    opened = _opened(devices)
    nbytes = math.prod(dims) * kind.itemsize
    alignment = _alignment(opened)
    for device in opened:
        check_size(device.info, nbytes, round_up(nbytes, alignment))
    block = _allocate(nbytes, alignment) if nbytes else _nothing()
    return HostArray(_Memory(block, dims, kind.numpy, opened), dims, kind, opened)


def register_host(array: np.ndarray[Any, Any], devices: Device | Iterable[Device]) -> HostArray:
    """Let ``devices`` import the memory of a NumPy array that exists already, and keep it alive.

    Its address and length in bytes must be multiples of what the drivers ask for, mostly 4096. After a fork the child
    has the memory, too; a write of either side may then part the two, as for any private memory.

    Args:
        array: writable and C-contiguous, of plain numbers in native byte order.
        devices: opened devices, at least one.

    Raises:
        InvalidUsageError: an array that is not like that; the message names the alignment and what is over.
        UnsupportedError: a device whose driver cannot import host memory, or not this; the message names it.
        OutOfMemoryError: a driver cannot pin so much.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidUsageError(f"cannot register a {type(array).__name__}; it takes a NumPy array")
    kind = dtypes.resolve(array.dtype)
    if kind == dtypes.bfloat16:
        array = array.view(kind.numpy)
    if array.dtype != kind.numpy:
        raise InvalidUsageError(f"cannot register {array.dtype}: it is not in native byte order")
    if not array.flags.writeable:
        raise InvalidUsageError("cannot register a read-only array")
    if not array.flags.c_contiguous:
        raise InvalidUsageError("cannot register an array that is not C-contiguous")
    opened = _opened(devices)
    alignment = _alignment(opened)
    address = array.__array_interface__["data"][0]
    if array.nbytes and (address % alignment or array.nbytes % alignment):
        raise InvalidUsageError(
            f"address and length must be multiples of {alignment} bytes (minImportedHostPointerAlignment): the address "
            f"0x{address:x} is {address % alignment} bytes past one, the length {array.nbytes} is "
            f"{array.nbytes % alignment} past one"
        )
    for device in opened:
        check_size(device.info, array.nbytes, array.nbytes)
    block = HostBlock(address, array.nbytes, array) if array.nbytes else _nothing()
    return HostArray(_Memory(block, array.shape, kind.numpy, opened), array.shape, kind, opened)


def _opened(devices: Device | Iterable[Device]) -> list[Device]:
    """Return the devices, each once, checked to be open and able to import host memory."""
    found = list(devices) if isinstance(devices, Iterable) else [devices]
    for device in found:
        if not isinstance(device, Device):
            raise InvalidUsageError(f"expected an opened vkpar.Device, not {type(device).__name__}")
        if not device.logical.info.features.host_import:
            raise UnsupportedError(f"{device} cannot import host memory (VK_EXT_external_memory_host)")
    if not found:
        raise InvalidUsageError("name at least one opened device")
    return list(dict.fromkeys(found))


def _alignment(devices: list[Device]) -> int:
    return max(1, *(device.limits.host_import_alignment for device in devices))


def _allocate(nbytes: int, alignment: int) -> HostBlock:
    try:
        arena = HostArena(nbytes, alignment)
    except (OSError, OverflowError) as error:
        raise OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", "mmap", f"{nbytes} bytes: {error}") from error
    return HostBlock(arena.address, arena.nbytes, arena)


def _nothing() -> HostBlock:
    """Return an address without bytes."""
    owner = np.empty(1, np.complex128)
    return HostBlock(owner.__array_interface__["data"][0], 0, owner)


# ---- DLPack ----


class _Capsule:
    """A bare DLPack capsule, as older exporters hand it out, in the form that NumPy takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0)  # a bare capsule does not say; NumPy looks inside

    def __dlpack__(self, **how: Any) -> Any:
        return self._capsule


def from_dlpack(x: Any, device: Device) -> Array:
    """Return a new array on ``device`` with a copy of the elements of another library's array.

    Args:
        x: what has ``__dlpack__`` and ``__dlpack_device__`` and lies in host memory, such as a NumPy array, a torch
            tensor on the CPU or a :class:`HostArray`; a DLPack capsule that nobody has used. Any strides; bfloat16
            where ``x`` has a ``view`` as 16-bit integers, as torch's tensors do.
        device: an opened device.

    Raises:
        InvalidUsageError: not an exporter, or a capsule that was used already; a closed device.
        DLPackError: elements on another device than the host, or of a dtype that NumPy does not have.
        OutOfMemoryError: the device has no room.
    """
    if not isinstance(device, Device):
        raise InvalidUsageError(f"expected an opened vkpar.Device, not {type(device).__name__}")
    device.logical.check_open()
    if isinstance(x, HostArray):
        return device.array(x)
    if type(x).__name__ == "PyCapsule":
        x = _Capsule(x)
    _check_on_host(x)
    if str(getattr(x, "dtype", "")).endswith("bfloat16"):
        return device.array(_import(_as_bits(x)).view(np.uint16), dtypes.bfloat16)
    return device.array(_import(x))


def _check_on_host(x: Any) -> None:
    if not hasattr(type(x), "__dlpack__") or not hasattr(type(x), "__dlpack_device__"):
        raise InvalidUsageError(f"a {type(x).__name__} does not export by DLPack (__dlpack__ and __dlpack_device__)")
    kind = int(x.__dlpack_device__()[0])
    if kind not in _HOST_DEVICES:
        raise DLPackError(f"elements on a device of DLPack's type {kind} cannot be read; copy them to the CPU first")


def _as_bits(x: Any) -> Any:
    """Return a bfloat16 array as one of 16-bit integers, over the same elements."""
    library = sys.modules.get(type(x).__module__.partition(".")[0])
    for kind in (getattr(library, "int16", None), np.int16):
        try:
            return x.view(kind)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            continue
    raise DLPackError(f"NumPy has no bfloat16, and this {type(x).__name__} has no view as 16-bit integers")


def _import(x: Any) -> np.ndarray[Any, Any]:
    """Return what NumPy sees of an exporter on the host."""
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        raise DLPackError(f"NumPy cannot take this {type(x).__name__}: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidUsageError(f"no DLPack capsule to be had of this {type(x).__name__}: {error}") from error
