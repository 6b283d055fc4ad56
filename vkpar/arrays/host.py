"""Arrays in host memory that NumPy and devices share."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from vkpar.arrays.shape import Shaped
from vkpar.dtypes import DType
from vkpar.errors import DLPackError, InvalidUsageError
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.hostmemory import HostBlock
from vkpar.vulkan.memory.imports import HostWindow

if TYPE_CHECKING:
    from vkpar.device import Device

CPU = 1  # kDLCPU
# NumPy 2.1 is the first whose arrays take max_version, dl_device and copy.
_NUMPY_HAS_VERSIONS = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)

_Windows = list[tuple[LogicalDevice, HostWindow]]


def _retire(windows: _Windows) -> None:
    for _, window in windows:
        window.retired = True


class HostMemory:
    """The bytes behind a :class:`HostArray`, base of all NumPy arrays over them, imported until the last one goes."""

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
        """Drop the imports once their copies are done; what an interrupted call leaves, the next call drops."""
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

    def __init__(self, memory: HostMemory, shape: tuple[int, ...], dtype: DType, devices: list[Device]) -> None:
        self._memory: HostMemory | None = memory
        self._exposed: HostMemory | None = None  # kept where a reader of __array_interface__ may know the address
        self._devices = devices
        self._process = os.getpid()
        self.shape = shape
        self.dtype = dtype

    @property
    def devices(self) -> tuple[Device, ...]:
        """The open devices that have imported the memory."""
        return tuple(device for device in self._devices if not device.closed) if not self.closed else ()

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._memory is None

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"for {', '.join(map(str, self.devices)) or 'no device'}"
        return f"<vkpar.HostArray {self.shape} {self.dtype} {state}>"

    def _open(self) -> HostMemory:
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
        """The address, shape and type for NumPy; raises as :meth:`numpy` does."""
        self._exposed = self._open()
        return dict(self._exposed.__array_interface__)

    def __buffer__(self, flags: int) -> memoryview:
        """Return what ``memoryview(h)`` is from Python 3.12 on; raises as :meth:`numpy` does."""
        return self.numpy().data

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's name for host memory, ``(kDLCPU, 0)``."""
        return (CPU, 0)

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
        if dl_device is not None and tuple(dl_device) != (CPU, 0):
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
