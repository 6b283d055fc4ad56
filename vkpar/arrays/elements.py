"""What arrays are made of: anything that NumPy takes, as the elements of a dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vkpar import dtypes
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

    By default that is its own; Python's numbers, and lists of them, are float32, or int32 where all are whole and fit.

    Raises:
        InvalidUsageError: not an array of plain numbers, or a closed :class:`HostArray`.
    """
    values, own = _plain(source)
    wanted = _default(source, values, own) if dtype is None else dtypes.resolve(dtype)
    if own == dtypes.bfloat16 != wanted:
        values = dtypes.from_bfloat16(values, wanted.numpy)
    if wanted == dtypes.bfloat16 and values.dtype != np.uint16:
        return HostElements(dtypes.bfloat16_bits(values.astype(np.float32, copy=False)), wanted)
    return HostElements(values.astype(wanted.numpy, copy=False), wanted)


def _default(source: ArrayLike | HostArray, values: np.ndarray[Any, Any], own: DType) -> DType:
    """Return the dtype of what is made of ``source`` where none is asked for."""
    narrower, first = _NARROWER.get(own.name), source
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if narrower is None or not isinstance(first, (int, float, list, tuple, range)) or isinstance(first, np.generic):
        return own
    if own.name == "int64" and values.size:
        bounds = np.iinfo(np.int32)
        return narrower if bounds.min <= values.min() and values.max() <= bounds.max else own
    return narrower


def _plain(source: ArrayLike | HostArray) -> tuple[np.ndarray[Any, Any], DType]:
    """Return what NumPy sees of ``source``, and the dtype that it stands for."""
    if isinstance(source, HostArray):
        return source.numpy(), source.dtype
    try:
        values = np.asarray(source)
    except (TypeError, ValueError) as error:
        raise InvalidUsageError(f"no array of numbers: {error}") from error
    dtype = dtypes.resolve(values.dtype)
    return (values.view(np.uint16) if dtype == dtypes.bfloat16 else values), dtype
