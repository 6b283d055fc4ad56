"""Arrays in host memory that NumPy and devices share."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkpar.arrays.dlpack import CPU, exported
from vkpar.arrays.shape import Shaped
from vkpar.arrays.storage import Owner
from vkpar.dtypes import DType, bfloat16
from vkpar.errors import DLPackError, InvalidUsageError
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.hostmemory import HostBlock
from vkpar.vulkan.memory.imports import HostWindow

_Windows = list[tuple[LogicalDevice, HostWindow]]


def _retire(windows: _Windows) -> None:
    for _, window in windows:
        window.retired = True


class HostMemory:
    """The bytes behind a :class:`HostArray`, base of all NumPy arrays over them, imported until the last one goes."""

    def __init__(self, block: HostBlock, shape: tuple[int, ...], dtype: DType, devices: Sequence[Owner]) -> None:
        self.block = block
        self.windows: _Windows = []
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.numpy.str,
            "data": (block.address, False),
            "version": 3,
        }
        weakref.finalize(self, _retire, self.windows).atexit = False
        try:
            for device in devices if block.nbytes else ():
                self.windows.append((device.logical, device.logical.host.add(block)))
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Drop the imports once their copies are done; what an interrupted call leaves, the next call drops."""
        while self.windows:
            logical, window = self.windows[-1]
            logical.host.drop(window)
            self.windows.pop()


class HostArray(Shaped):
    """An n-dimensional array in host memory that devices have imported; see :func:`host_array`.

    ``Array.write(h)``, ``array.read(out=h)`` and ``device.array(h)`` make the device copy straight from and to this
    memory, and so do copies from and to contiguous parts of it, such as ``h.numpy()[2:5]``. NumPy takes it wherever it
    takes an array, ``memoryview(h)`` works from Python 3.12 on, and DLPack consumers get it without a copy.

    It is a context manager. NumPy arrays over it keep it imported, unless it is closed; they stay valid after that.

    Attributes:
        shape: its dimensions; ``size`` elements, ``nbytes`` bytes.
        dtype: a :class:`vkpar.dtypes.DType`.

    Examples:
        >>> with vkpar.host_array((2, 2), "int32", devices) as h:
        ...     h.numpy()[:] = [[1, 2], [3, 4]]
        ...     device.array(h).tolist()
        [[1, 2], [3, 4]]
    """

    def __init__(self, memory: HostMemory, shape: tuple[int, ...], dtype: DType, devices: Sequence[Owner]) -> None:
        self._memory: HostMemory | None = memory
        self._exposed: HostMemory | None = None  # kept where a reader of __array_interface__ may know the address
        self._devices = devices
        self._process = os.getpid()
        self._shape = shape
        self._dtype = dtype

    @property
    def devices(self) -> tuple[Any, ...]:
        """The open devices, each a :class:`vkpar.Device`, that have imported the memory."""
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

    def __bool__(self) -> bool:
        """Return whether the only element is not zero; raises as :meth:`numpy` does, and where there are several."""
        if self.size != 1:
            raise InvalidUsageError(
                f"the truth of a HostArray {self.shape} is ambiguous: write .numpy().any() or .all()"
            )
        return bool(self.numpy())

    def __eq__(self, other: object) -> Any:
        """Compare by element, as NumPy does."""
        return self.numpy() == (other.numpy() if isinstance(other, HostArray) else other)

    def __ne__(self, other: object) -> Any:
        """Compare by element, as NumPy does."""
        return self.numpy() != (other.numpy() if isinstance(other, HostArray) else other)

    __hash__ = object.__hash__  # by identity

    # --- for NumPy and others ---

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a writable NumPy array over the memory, without a copy (bfloat16 as ``ml_dtypes.bfloat16``).

        What is written to it is seen by the next copy, and what a copy wrote is there when its call returns.

        Raises:
            InvalidUsageError: closed, or made before a fork.
        """
        return np.asarray(self._open()).view(self.dtype.numpy)  # the interface names no bfloat16

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The address, shape and type for NumPy, those of bfloat16 aside; raises as :meth:`numpy` does."""
        if self.dtype == bfloat16:
            raise AttributeError("NumPy's array interface has no bfloat16")
        self._exposed = self._open()
        return dict(self._exposed.__array_interface__)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return :meth:`numpy`, by the rules of NumPy 2: a copy where ``dtype`` or ``copy`` asks for one."""
        values = self.numpy()
        if copy is False and dtype is not None and values.dtype != dtype:
            raise ValueError(f"a HostArray of {self.dtype} is no {np.dtype(dtype)} without a copy")
        return values.astype(values.dtype if dtype is None else dtype, copy=bool(copy))

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
        """Return a DLPack capsule over the memory (over a copy with ``copy=True``).

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
        return exported(values.copy() if copy else values, max_version)

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
