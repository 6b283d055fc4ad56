"""What arrays on devices and on the host have in common: a shape, a dtype, flat bytes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError


class Shaped:
    """What all n-dimensional arrays say of themselves.

    Attributes:
        shape: the dimensions.
        dtype: the type of the elements.
    """

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise InvalidUsageError("a 0-dimensional array has no length")
        return self.shape[0]


def dimensions(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return ``shape`` as a tuple of dimensions.

    Raises:
        InvalidUsageError: no shape, or a negative dimension.
    """
    if type(shape) is tuple:  # often taken: kept short
        for dim in shape:
            if type(dim) is not int or dim < 0:
                break
        else:
            return shape
    try:
        dims = tuple(operator.index(dim) for dim in (shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        dims = (-1,)
    if any(dim < 0 for dim in dims):
        raise InvalidUsageError(f"bad shape {shape!r}: dimensions are whole numbers from 0")
    return dims


def as_bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the flat bytes of a C-contiguous array, without a copy."""
    return values.reshape(-1).view(np.uint8)
