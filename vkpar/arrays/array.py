"""Arrays: a shape and a dtype over a device's memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import numpy as np

from vkpar.arrays import printing, transfer
from vkpar.arrays.elements import host_elements
from vkpar.arrays.host import HostArray
from vkpar.arrays.layout import WIDE, Strides, repeats
from vkpar.arrays.operators import Operators, operations
from vkpar.arrays.rearrange import copy_rows, gather, scatter
from vkpar.arrays.region import Region
from vkpar.arrays.shape import as_bytes, dimensions, fixed
from vkpar.arrays.sound import Sound
from vkpar.arrays.storage import Storage
from vkpar.arrays.views import overlaps, same_elements
from vkpar.dtypes import DType
from vkpar.errors import CommunicatorError, InvalidUsageError, OutOfMemoryError, VulkanError
from vkpar.vulkan import bulk
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.accounting import ARRAYS
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.subbuffers import SubBuffers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from vkpar.device import Device

_Target = TypeVar("_Target", "np.ndarray[Any, Any]", HostArray)

_SMALL: Final = 1000  # elements that Python's prompt shows
_LABEL = "{} {} {}".format


class Array(Operators, Sound):
    """An n-dimensional array on a device, made by ``Device.array``, ``empty`` and ``zeros``, or a view of one.

    Arrays are in C order. Views may have their elements any ``strides`` apart; operations and copies take these as they
    are, and what does not says so and names :meth:`contiguous`.

    Attributes:
        device: where it lives.
        shape: its dimensions; ``size`` elements, ``nbytes`` bytes.
        dtype: a :class:`vkpar.dtypes.DType`, equal to the NumPy dtype of the same name.
        key: what identifies its memory, shape, dtype and strides among the arrays of this process that are in use: an
            array that takes the memory of one that was dropped may have its key, too.

    Examples:
        >>> a = device.array(np.arange(6, dtype=np.float32).reshape(2, 3))
        >>> a.shape, a.dtype.name, a.nbytes
        ((2, 3), 'float32', 24)
        >>> (a[:, 1:] * 2).numpy()
        array([[ 2.,  4.],
               [ 8., 10.]], dtype=float32)
    """

    _internal = (
        "allocate byte_offset check_contiguous check_free check_sound check_writable copy_from fetch fill_zeros form "
        "fresh has_gaps key memory ranges reach renew span steps storage strided touches window"
    )
    device: Final[Device] = fixed("storage.device", ": a.to(device) gives a copy there")

    def __init__(
        self, storage: Storage, offset: int, shape: tuple[int, ...], dtype: DType, steps: Strides | None = None
    ) -> None:
        self.storage = storage
        self.byte_offset = offset
        self._shape = shape
        self._dtype = dtype
        self.key: tuple[Any, ...] = (storage.place, offset, shape, dtype.name)
        if steps is not None:
            self.steps = steps
            self.key += (steps,)

    @classmethod
    def allocate(cls, device: Device, shape: int | Sequence[int], dtype: DType, purpose: str = ARRAYS) -> Array:
        """Return a new array with undefined contents.

        Args:
            device: where it lives.
            shape: its dimensions.
            dtype: of its elements.
            purpose: what ``Device.memory()`` counts it as.

        Raises:
            InvalidUsageError: no shape, or a negative dimension.
            OutOfMemoryError: the device has no room.
        """
        if type(shape) is int and shape >= 0:  # often taken: kept short
            return cls.fresh(device, (shape,), dtype, shape * dtype.itemsize, purpose)
        dims = dimensions(shape)
        return cls.fresh(device, dims, dtype, math.prod(dims) * dtype.itemsize, purpose)

    @classmethod
    def fresh(cls, device: Device, shape: tuple[int, ...], dtype: DType, nbytes: int, purpose: str = ARRAYS) -> Array:
        """Return a new array of ``nbytes`` with undefined contents, nothing of which is checked."""
        label = partial(_LABEL, "array" if purpose == ARRAYS else purpose, shape, dtype)
        return cls(Storage(device, nbytes, label, purpose), 0, shape, dtype)

    def __repr__(self) -> str:
        if hasattr(sys, "ps1") and self.size <= _SMALL and _asked_by_hand(sys._getframe(1)):
            return str(self)
        state = ", closed" if self.closed else ""
        return f"<vkpar.Array {self.shape} {self.dtype} on {self.device}{state}>"

    def __str__(self) -> str:
        """Return the values as NumPy prints them, with shape, dtype and device; a few of them where there are many.

        It waits for the work that writes them. Where they cannot be read (a closed array, one that is pending in a
        group, a lost device) it says why instead. ``repr`` reads small arrays at Python's prompt alone.
        """
        try:
            values = printing.excerpt(self.shape, self.dtype, self.read)
        except (InvalidUsageError, VulkanError, CommunicatorError) as error:
            return f"{self!r}: {error}"
        return printing.text(values, self.shape, f"{self.dtype}, device={str(self.device)!r}")

    # --- life ---

    @property
    def closed(self) -> bool:
        """True after :meth:`close`, that of a view that shares the memory included."""
        return self.storage.closed

    def close(self) -> None:
        """Give the memory back once the work submitted so far is done; a second call does nothing.

        It is the memory that is closed: closing a view closes the array that it is a view of, and all other views.
        Arrays that are dropped give theirs back by themselves.

        Raises:
            InvalidUsageError: it is pending in a group of collectives that was not left yet.
        """
        self.storage.close()

    def __enter__(self) -> Array:
        self.check_free()
        return self

    # --- host ---

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy on the host, once all work that writes it is done (bfloat16 as ``ml_dtypes.bfloat16``).

        Raises:
            InvalidUsageError: the device is closed.
            CommunicatorError: a collective that was to write it has failed, and nobody has written it anew since.
            DeviceLostError: the device is gone.
            OutOfMemoryError: the host has no room.
        """
        return self.read()

    @overload
    def read(self, region: Any = None, *, out: None = None) -> np.ndarray[Any, Any]: ...

    @overload
    def read(self, region: Any = None, *, out: _Target) -> _Target: ...

    def read(
        self, region: Any = None, *, out: np.ndarray[Any, Any] | HostArray | None = None
    ) -> np.ndarray[Any, Any] | HostArray:
        """Copy to the host, into ``out`` where it is given (same shape and dtype), and return it.

        Args:
            region: what NumPy's basic indexing takes: whole numbers, slices with any step, ``...``, a tuple of these;
                all by default. It travels in pieces of a quarter of ``VKPAR_RING_BYTES``, each in one submission.
            out: a writable, C-contiguous array, or a :class:`HostArray`. The device copies straight to host memory
                that it has imported; once an interrupted call has raised, that copy may still go on.

        Raises:
            InvalidUsageError: ``out`` is read-only, not C-contiguous, of another shape or dtype, or closed; a region
                out of range, or one with another kind of key.
        """
        if region is not None:
            made: np.ndarray[Any, Any] | HostArray = self[region].read(out=out)
            return made
        if isinstance(out, HostArray):
            self.fetch(out.numpy())
            made = out
        else:
            made = self.fetch(out)
        if self.size:
            self.device.notice_failures()
            self.check_sound()
        return made

    def fetch(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copy to the host as :meth:`read` does, without asking whether a communicator of the device has failed."""
        logical = self.device.logical
        self.check_free()
        if out is None:
            try:
                out = np.empty(self.shape, self.dtype.numpy)
            except (ValueError, MemoryError) as error:  # views made by broadcasting may be larger than any memory
                raise OutOfMemoryError(
                    "VK_ERROR_OUT_OF_HOST_MEMORY", "numpy.empty", message=f"{self!r} does not fit the host: {error}"
                ) from error
        transfer.check_target(out, self.shape, self.dtype)
        if out.size:
            if self.steps is None:
                logical.host.download(self.ranges(), as_bytes(out))
            elif repeats(self.shape, self.steps):
                out[...] = self._without_repeats().fetch()
            else:
                transfer.read(logical, self.memory, self._place, Region(self.shape, 0, self.steps), out)
            logical.check_open()
        return out

    @property
    def _place(self) -> int:
        """The place of its first element in its memory, in elements."""
        return self.byte_offset // self.dtype.itemsize

    def _without_repeats(self) -> Array:
        """Return the view with one place along each axis that shows the same elements at every place."""
        strides = self.strides
        shape = tuple(1 if stride == 0 else count for count, stride in zip(self.shape, strides, strict=True))
        return self.strided(shape, strides)

    def write(self, source: ArrayLike | HostArray, region: Any = None) -> None:
        """Replace the contents by ``source``, of the same shape; it may be changed once the call returns.

        Args:
            source: anything that ``np.asarray`` takes, or a :class:`HostArray`. From host memory that the device has
                imported (and elements that need no conversion) it copies straight, and the call waits for that.
            region: as in :meth:`read`; what lies outside it stays.

        Raises:
            InvalidUsageError: a shape that is not the region's, values that are not plain numbers, or a bad region.
        """
        if region is not None:
            self[region].write(source)
            return
        logical = self.device.logical
        self.check_free()
        self.check_writable("write")
        host = host_elements(source, self.dtype).values
        if host.shape != self.shape:
            raise InvalidUsageError(f"cannot write {host.shape} into {self.shape}")
        if not host.size:
            return
        host = np.ascontiguousarray(host)
        if self.steps is None:
            logical.host.upload(as_bytes(host), self.ranges())
        else:
            transfer.write(logical, self.memory, self._place, Region(self.shape, 0, self.steps), host)
        self.renew()

    def fill_zeros(self) -> None:
        """Set every element to zero, in program order.

        The device does it where the bytes lie side by side and begin and end at multiples of 4 (the end of the array's
        memory is one); zeros are uploaded otherwise.

        Raises:
            InvalidUsageError: closed, or a view made by broadcasting.
        """
        logical = self.device.logical
        self.check_free()
        if not self.size:
            return
        if self.steps is not None:
            self.check_writable("fill_zeros")
            self.write(np.zeros(self.shape, self.dtype.numpy))
            return
        at_end = self.byte_offset + self.nbytes == self.storage.nbytes
        nbytes = -(-self.nbytes // 4) * 4 if at_end else self.nbytes
        if self.byte_offset % 4 == 0 and nbytes % 4 == 0:
            logical.fill(self.memory.ranges(self.byte_offset, nbytes), 0)
        else:
            self.write(np.zeros(self.shape, self.dtype.numpy))

    # --- copies ---

    def to(self, device: Device) -> Array:
        """Return a copy on ``device`` (the array itself where it lives there already).

        Raises:
            InvalidUsageError: no opened device, or a closed one.
            OutOfMemoryError: the device has no room.
        """
        if device is self.device:
            return self
        if not isinstance(device, type(self.device)):
            raise InvalidUsageError(
                f"to() takes an opened vkpar.Device, not {device!r}: astype(dtype) converts, numpy() reads to the host"
            )
        made = Array.allocate(device, self.shape, self.dtype)
        copy(self, made)
        return made

    def copy(self) -> Array:
        """Return a copy on the same device, made in program order, whose elements lie side by side.

        It starts where every kernel can bind it.

        Raises:
            InvalidUsageError: closed, or pending in a group of collectives.
            OutOfMemoryError: the device has no room.
        """
        self.check_free()
        made = Array.allocate(self.device, self.shape, self.dtype)
        made.copy_from(self)
        return made

    def contiguous(self) -> Array:
        """Return the array itself where its elements lie side by side in C order, else a copy whose elements do.

        Raises:
            InvalidUsageError: closed, or pending in a group of collectives.
            OutOfMemoryError: the device has no room.
        """
        return self if self.steps is None else operations["packed"](self)

    # --- for kernels and collectives ---

    @property
    def memory(self) -> SubBuffers:
        """The memory that it shares with its views.

        Raises:
            InvalidUsageError: it has no elements, was closed, or its device is closed.
        """
        return self.storage.memory

    def check_free(self, group: object = None) -> None:
        """Refuse use after :meth:`close`, and while another group of collectives than ``group`` names the array.

        Raises:
            InvalidUsageError: the array is closed, or pending in another group.
        """
        self.storage.check_free(group)

    def ranges(self) -> list[BufferRange]:
        """Return exactly its bytes, a range for each sub-buffer that holds some of them.

        Raises:
            InvalidUsageError: a view whose elements do not lie side by side.
        """
        self.check_contiguous("bytes in one piece")
        return self.memory.ranges(self.byte_offset, self.nbytes)

    def window(self, start: int = 0, count: int | None = None) -> tuple[BufferRange, int]:
        """Return a bindable range over elements ``start`` to ``start + count``, and the first one's index in it.

        The range begins at or before the element, as the device's offset alignment asks, and ends at a multiple of
        16 bytes (allocations are padded).

        Raises:
            InvalidUsageError: the elements lie in more than one sub-buffer, or not side by side.
        """
        self.check_contiguous("a kernel's binding")
        count = self.size - start if count is None else count
        itemsize = self.dtype.itemsize
        whole, skipped = self.memory.window(self.byte_offset + start * itemsize, count * itemsize)
        return whole, skipped // itemsize

    def reach(self, start: int = 0) -> int:
        """Return how many elements from ``start`` on one binding of a kernel covers; none at the end.

        Raises:
            InvalidUsageError: a view whose elements do not lie side by side.
        """
        self.check_contiguous("a kernel's binding")
        if start == self.size:
            return 0
        first = self.byte_offset + start * self.dtype.itemsize
        most = self.device.limits.max_storage_buffer_range // WIDE * WIDE - first % ALIGNMENT
        return min(self.size - start, min(most, self.memory.reach(first)) // self.dtype.itemsize)

    def copy_from(self, source: Array) -> None:
        """Copy the bytes of ``source``, of the same length and device, in program order; they may overlap.

        Views whose elements do not lie side by side count as their elements in order, of the same size.

        Raises:
            InvalidUsageError: another length, another device, a closed one, or a target made by broadcasting.
        """
        check_same_device(self, source)
        nbytes = self.nbytes
        if source.nbytes != nbytes:
            raise InvalidUsageError(f"cannot copy {source.nbytes} bytes into {self.nbytes}")
        if self.steps is not None or source.steps is not None:
            self._copy_strided(source)
            return
        if self._copy_at_once(source, nbytes):
            return
        logical = self.device.logical
        for array in (self, source):
            array.check_free()
        if not self.size or (overlaps(self, source) and self.byte_offset == source.byte_offset):
            return
        if overlaps(self, source):
            source = source.copy()
        logical.copy(source.ranges(), self.ranges())

    def _copy_strided(self, source: Array) -> None:
        """Copy elements where those of one or both do not lie side by side."""
        for array in (self, source):
            array.check_free()
        self.device.check_open()
        self.check_writable("copy")
        if self.dtype.itemsize != source.dtype.itemsize:
            raise InvalidUsageError(f"cannot copy elements of {source.dtype} into a view of {self.dtype}; cast first")
        if not self.size or same_elements(self, source):
            return
        source.check_sound()
        self._copy_elements(source)
        self.renew(source)

    def _copy_elements(self, source: Array) -> None:
        shared = overlaps(self, source)
        if not shared and (copy_rows(source, self) or operations["move"](source, self)):
            return
        if self.steps is None and not shared:
            gather(source, self)
            return
        if source.steps is not None:
            packed = Array.allocate(self.device, source.shape, source.dtype)
            gather(source, packed)
            source = packed
        elif shared:
            source = source.copy()
        if self.steps is None:
            self.copy_from(source)
        elif not (shared and operations["move"](source, self)):
            scatter(source, self)

    def _copy_at_once(self, source: Array, nbytes: int) -> bool:
        """Copy from other memory where there is nothing to look closer at; False, and nothing done, where there is."""
        there, here = source.storage, self.storage
        pins = there.ready, here.ready
        if there is here or not nbytes or pins[0] is None or pins[1] is None:
            return False
        stream = self.device.stream
        if stream is None:
            return False
        part = there.number, there.base + source.byte_offset, here.number, here.base + self.byte_offset, nbytes
        if bulk.suits(self.device.info, nbytes):
            return self.device.logical.bulk.copy_part(*part, pins)
        stream.copy_part(*part, pins)
        return True


def _asked_by_hand(frame: FrameType) -> bool:
    """Say whether what runs is a line at Python's prompt, and no code that makes a message."""
    name = frame.f_code.co_filename
    return frame.f_code.co_name == "<module>" and (name == "<stdin>" or name.startswith("<python-input"))


def check_same_device(*arrays: Array) -> None:
    """Refuse arrays of different devices.

    Raises:
        InvalidUsageError: they live on several devices, or one is no array.
    """
    for array in arrays:
        if not isinstance(array, Array):
            raise InvalidUsageError(f"expected a vkpar.Array, not {type(array).__name__}; see Device.array")
        if array.device is not arrays[0].device:
            raise InvalidUsageError(
                f"arrays on different devices: {arrays[0]!r} and {array!r}; copy one over with Array.to(device)"
            )


def copy(source: Array, target: Array) -> None:
    """Copy ``source`` to ``target``, of equal shape and dtype, on the same device or on another; they may overlap.

    The copy runs in program order on both devices; between two of them it takes the links of a communicator.

    Args:
        source: the array whose elements are taken.
        target: where they go.

    Raises:
        InvalidUsageError: no arrays, or shapes or dtypes that differ.

    Examples:
        >>> target = devices[1].zeros(2)
        >>> vkpar.copy(device.array([1.0, 2.0]), target)
        >>> target.tolist()
        [1.0, 2.0]
    """
    for array in (source, target):
        if not isinstance(array, Array):
            raise InvalidUsageError(f"expected a vkpar.Array, not {type(array).__name__}; see Device.array")
    if source.shape != target.shape or source.dtype != target.dtype:
        raise InvalidUsageError(
            f"cannot copy {source.shape} {source.dtype} to {target.shape} {target.dtype}; shapes and dtypes must agree"
        )
    if source.device is target.device:
        target.copy_from(source)
    elif source.size:
        target.check_writable("copy")
        source = source.contiguous()
        landing = target if target.steps is None else Array.allocate(target.device, target.shape, target.dtype)
        source.device.peer_copier(target.device).move(source, landing)
        if landing is not target:
            target.copy_from(landing)
