"""What arrays are made of: anything that NumPy takes, as the elements of a dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.arrays import dlpack
from vkpar.arrays.host import HostArray
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class HostElements:
    """Host values ready to upload: C-contiguous or not, with the dtype that they stand for."""

    values: np.ndarray[Any, Any]
    dtype: DType


# What Python's numbers become, which have no type of their own: NumPy's 64 bits are stored by devices and not computed.
_NARROWER: Final = {"float64": dtypes.float32, "int64": dtypes.int32}


def host_elements(source: ArrayLike | HostArray, dtype: object = None) -> HostElements:
    """Return ``source`` as the NumPy elements of ``dtype``.

    By default that is its own; Python's numbers, and lists of them, are float32 or, where all are whole, int32, unless
    one does not fit: NumPy's 64 bits hold these. NumPy's integers wrap in a smaller type, as NumPy has it.

    Raises:
        InvalidUsageError: not an array of plain numbers, Python's whole numbers that the dtype does not hold, or a
            closed :class:`HostArray`.
    """
    values, own = _plain(source)
    if dtype is None:
        wanted = _default(source, values, own)
    else:
        wanted = dtypes.resolve(dtype)
        _check_whole(source, values, wanted)
    return HostElements(values.astype(wanted.numpy, copy=False), wanted)


def _default(source: ArrayLike | HostArray, values: np.ndarray[Any, Any], own: DType) -> DType:
    """Return the dtype of what is made of ``source`` where none is asked for."""
    narrower = _NARROWER.get(own.name)
    if narrower is None or not _is_python(source):
        return own
    limits = np.iinfo(np.int32) if own.name == "int64" else np.finfo(np.float32)
    return narrower if _within(values[np.isfinite(values)], limits) else own


def _check_whole(source: ArrayLike | HostArray, values: np.ndarray[Any, Any], wanted: DType) -> None:
    """Refuse Python's whole numbers that an integer type does not hold; arrays of NumPy's wrap."""
    kinds = (values.dtype.kind, wanted.numpy.kind)
    if kinds[0] in "iu" and kinds[1] in "iu" and _is_python(source):
        limits = np.iinfo(wanted.numpy)
        if not _within(values, limits):
            raise InvalidUsageError(f"whole numbers from {values.min()} to {values.max()} are no {wanted}")


def _within(values: np.ndarray[Any, Any], limits: Any) -> bool:
    return not values.size or bool(limits.min <= values.min() and values.max() <= limits.max)


def _is_python(source: ArrayLike | HostArray) -> bool:
    """Return whether numbers are Python's own, or lists of these: they have no type that says how wide they are."""
    first = source
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    return isinstance(first, (int, float, list, tuple, range)) and not isinstance(first, np.generic)


def _plain(source: ArrayLike | HostArray) -> tuple[np.ndarray[Any, Any], DType]:
    """Return what NumPy sees of ``source``, and the dtype that it stands for."""
    if isinstance(source, HostArray):
        return source.numpy(), source.dtype
    try:
        values = np.asarray(source)
        taken = values.dtype.kind != "O"
    except (TypeError, ValueError, RuntimeError) as error:
        if not dlpack.exports(source):
            raise InvalidUsageError(f"no array of numbers: {error}") from error
        taken = False
    if not taken and dlpack.exports(source):  # such as torch's bfloat16, which NumPy does not take
        values = dlpack.imported(source)
    return values, dtypes.resolve(values.dtype)
