"""What arrays on devices and on the host have in common: a shape, a dtype, flat bytes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, ReadOnlyError
from vkpar.text import shown
from vkpar.unpickled import Closable

# That NumPy's arrays have, and so arrays that it is to read.
MOST_DIMENSIONS: Final = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32


def fixed(path: str, advice: str = "") -> Any:
    """Return a property that reads an attribute fast and cannot be set; ``advice`` says what to write instead."""

    def refuse(owner: object, _: object) -> None:
        name = path.rpartition(".")[2].lstrip("_")
        raise ReadOnlyError(f"{type(owner).__name__}.{name} cannot be set{advice}")

    return property(operator.attrgetter(path), refuse)


class Shaped(Closable):
    """What all n-dimensional arrays say of themselves.

    Attributes:
        shape: the dimensions.
        dtype: the type of the elements.
    """

    _shape: tuple[int, ...]
    _dtype: DType
    shape: Final[tuple[int, ...]] = fixed("_shape", ": a.reshape(shape) gives another shape")
    dtype: Final[DType] = fixed("_dtype", ": a.astype(dtype) converts, a.view(dtype) shows the same bytes")

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
        InvalidUsageError: no shape, a negative dimension, or more dimensions than NumPy has.
    """
    if type(shape) is tuple:  # often taken: kept short
        for dim in shape:
            if type(dim) is not int or dim < 0:
                break
        else:
            if len(shape) <= MOST_DIMENSIONS:
                return shape
    try:
        dims = tuple(operator.index(dim) for dim in (shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        dims = (-1,)
    if any(dim < 0 for dim in dims) or len(dims) > MOST_DIMENSIONS:
        raise InvalidUsageError(
            f"bad shape {shown(shape)}: dimensions are whole numbers from 0, {MOST_DIMENSIONS} of them at most"
        )
    return dims


def as_bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the flat bytes of a C-contiguous array, without a copy."""
    return values.reshape(-1).view(np.uint8)
