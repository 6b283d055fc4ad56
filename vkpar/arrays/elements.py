"""What arrays are made of: anything that NumPy takes, as the elements of a dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


def host_elements(source: ArrayLike | HostArray, dtype: object = None) -> HostElements:
    """Return ``source`` as the NumPy elements of ``dtype`` (its own by default).

    Raises:
        InvalidUsageError: not an array of plain numbers, or a closed :class:`HostArray`.
    """
    values, own = _plain(source)
    wanted = own if dtype is None else dtypes.resolve(dtype)
    if own == dtypes.bfloat16 != wanted:
        values = dtypes.from_bfloat16(values, wanted.numpy)
    if wanted == dtypes.bfloat16 and values.dtype != np.uint16:
        return HostElements(dtypes.bfloat16_bits(values.astype(np.float32, copy=False)), wanted)
    return HostElements(values.astype(wanted.numpy, copy=False), wanted)


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
