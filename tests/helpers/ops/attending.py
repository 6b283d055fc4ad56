"""Operands of attention, on the device and as float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.ops.elements import normal
from numpy.typing import NDArray

import vkpar

F64 = NDArray[np.float64]
Arrays = tuple[vkpar.Array, vkpar.Array, vkpar.Array]


def made_of(
    device: vkpar.Device, rng: np.random.Generator, heads: int, kv_heads: int, shape: tuple[int, int, int], dtype: str
) -> tuple[Arrays, tuple[F64, F64, F64]]:
    """Return q, k and v on the device and as float64; ``shape`` is (T, S, width)."""
    tokens, keys, width = shape
    host = [
        normal(rng, each, dtype) for each in ((heads, tokens, width), (kv_heads, keys, width), (kv_heads, keys, width))
    ]
    arrays: Any = tuple(device.array(each, dtype) for each in host)
    exact: Any = tuple(each.astype(np.float64) for each in host)
    return arrays, exact
