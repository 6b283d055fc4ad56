"""How arrays print: NumPy's layout, and no more elements read than are shown."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vkpar import dtypes
from vkpar.dtypes import DType

_Values = np.ndarray[Any, Any]


def excerpt(shape: tuple[int, ...], dtype: DType, read: Callable[[Any], _Values]) -> _Values:
    """Return the elements that NumPy's print options show of an array, bfloat16 as float32; ``read`` takes a region.

    Where NumPy would leave some out, the result has one element, of any value, in place of those along each axis: with
    ``threshold=0`` NumPy leaves it out.

    Raises:
        InvalidUsageError: the array is closed, its device is, or it is pending in a group of collectives.
        DeviceLostError, CommunicatorError: the device is gone, or a communicator may have left anything in the array.
    """
    options = np.get_printoptions()
    edge = int(options["edgeitems"])
    if math.prod(shape) <= int(options["threshold"]):
        values = read(None)
    else:
        values = np.zeros([min(length, 2 * edge + 1) for length in shape], dtype.numpy)
        for parts in itertools.product(*(_edges(length, edge) for length in shape)):
            values[tuple(to for _, to in parts)] = read(tuple(of for of, _ in parts))
    if dtype == dtypes.bfloat16:
        return values.astype(np.float32)  # which prints as NumPy's floats do
    return values


def _edges(length: int, edge: int) -> list[tuple[slice, slice]]:
    """Return the parts of an axis that are shown: where they lie, and where they go in the excerpt."""
    if length <= 2 * edge:
        return [(slice(None), slice(None))]
    return [(slice(0, edge), slice(0, edge)), (slice(length - edge, length), slice(edge + 1, 2 * edge + 1))]


def text(values: _Values, shape: tuple[int, ...], kind: str) -> str:
    """Return an excerpt as text; ``kind`` says what follows the shape."""
    threshold = None if values.shape == shape else 0
    if not values.size:
        shown = "[]"
    else:
        shown = np.array2string(values, separator=", ", prefix="vkpar.Array(", threshold=threshold)
    return f"vkpar.Array({shown}, shape={shape}, dtype={kind})"
