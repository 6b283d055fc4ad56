"""Elements of host memory that go to other libraries and come from them by DLPack; bfloat16, too."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.errors import DLPackError, InvalidUsageError

CPU: Final = 1  # kDLCPU
_HOST_DEVICES: Final = {CPU, 3, 11, 13}  # what NumPy can read in place: kDLCUDAHost, kDLROCMHost, kDLCUDAManaged too
_UINT, _BFLOAT = 1, 4  # kDLUInt, kDLBfloat
# NumPy 2.1 is the first whose arrays take max_version, dl_device and copy.
_NUMPY_HAS_VERSIONS: Final = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor, with which its DLManagedTensor begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Versioned(ctypes.Structure):
    """DLPack's DLManagedTensorVersioned."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _renamed(capsule: Any, code: int, new: int) -> bool:
    """Give 16-bit elements of an unused capsule, of one kind of type, another kind; say whether they were of it."""
    tensor = None
    if type(capsule).__name__ == "PyCapsule":
        if _is_valid(capsule, b"dltensor"):
            tensor = _Tensor.from_address(_pointer(capsule, b"dltensor") or 0)
        elif _is_valid(capsule, b"dltensor_versioned"):
            tensor = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned") or 0).tensor
    if tensor is None or (tensor.code, tensor.bits, tensor.lanes) != (code, 16, 1):
        return False
    tensor.code = new
    return True


def exported(values: np.ndarray[Any, Any], max_version: tuple[int, int] | None) -> Any:
    """Return a DLPack capsule over a NumPy array.

    Raises:
        DLPackError: a dtype that DLPack does not have, or a read-only array.
    """
    narrow = values.dtype == dtypes.bfloat16.numpy
    given = values.view(np.uint16) if narrow else values
    try:
        capsule = given.__dlpack__(max_version=max_version) if _NUMPY_HAS_VERSIONS else given.__dlpack__()
    except BufferError as error:
        raise DLPackError(f"DLPack cannot hand over {values.dtype}: {error}") from error
    if narrow:
        _renamed(capsule, _UINT, _BFLOAT)
    return capsule


def exports(x: object) -> bool:
    """Say whether an object has both methods of DLPack."""
    return hasattr(type(x), "__dlpack__") and hasattr(type(x), "__dlpack_device__")


class _Exporter:
    """An exporter, or a bare capsule as older ones hand it out, in the form that NumPy takes."""

    def __init__(self, x: Any) -> None:
        self._x = x
        self.is_bfloat16 = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)  # checked; NumPy looks inside, too

    def __dlpack__(self, **how: Any) -> Any:
        capsule = self._x if type(self._x).__name__ == "PyCapsule" else self._x.__dlpack__(**how)
        self.is_bfloat16 = _renamed(capsule, _BFLOAT, _UINT)
        return capsule


def imported(x: Any) -> np.ndarray[Any, Any]:
    """Return what NumPy sees of an exporter whose elements lie on the host, or of a bare capsule.

    Raises:
        InvalidUsageError: not an exporter, or a capsule that was used already.
        DLPackError: elements on another device than the host, or of a dtype that NumPy and vkpar do not have.
    """
    if type(x).__name__ != "PyCapsule":
        _check_on_host(x)
    exporter = _Exporter(x)
    try:
        values = np.from_dlpack(exporter)
    except (BufferError, RuntimeError) as error:
        raise DLPackError(f"NumPy cannot take this {type(x).__name__}: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidUsageError(f"no DLPack capsule to be had of this {type(x).__name__}: {error}") from error
    return values.view(dtypes.bfloat16.numpy) if exporter.is_bfloat16 else values


def _check_on_host(x: Any) -> None:
    if not exports(x):
        raise InvalidUsageError(f"a {type(x).__name__} does not export by DLPack (__dlpack__ and __dlpack_device__)")
    try:
        kind = int(x.__dlpack_device__()[0])
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InvalidUsageError(f"__dlpack_device__ of this {type(x).__name__} names no device: {error}") from error
    if kind not in _HOST_DEVICES:
        raise DLPackError(f"elements on a device of DLPack's type {kind} cannot be read; copy them to the CPU first")
