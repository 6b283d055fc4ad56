"""Blocks of 256 elements made of floats, for models that are made up: without a search for better scales.

The package ``gguf`` makes the kinds with blocks of 32 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar.ops.quantized.blocks import F32, Bytes

F64 = NDArray[np.float64]


def _units(part: F64, unit: F64, low: int, high: int) -> F64:
    """Return whole numbers from low to high that, times units, are next to a part; zero where a unit is."""
    found: F64 = np.rint(np.divide(part, unit, out=np.zeros_like(part), where=unit != 0)).clip(low, high)
    return found


def _pairs(codes: NDArray[Any]) -> Bytes:
    """Return bytes of (.., 2, n) codes of four bits: the first ones in the low nibbles."""
    found: Bytes = (codes[..., 0, :] | (codes[..., 1, :] << 4)).astype(np.uint8)
    return found


def _with_minima(runs: F64, most: int) -> tuple[Bytes, Bytes]:
    """Return the head of blocks of eight runs of 32, and codes up to ``most``: d scale q - dmin minimum."""
    least: F64 = -np.minimum(runs.min(axis=2), 0)
    step: F64 = (runs.max(axis=2) + least).clip(0) / most
    d, dmin = ((part.max(axis=1, keepdims=True) / 63).astype(np.float16) for part in (step, least))
    scale, minimum = (
        _units(part, unit.astype(np.float64), 0, 63).astype(np.uint8) for part, unit in ((step, d), (least, dmin))
    )
    width = (d.astype(np.float64) * scale)[:, :, None]
    codes = _units(runs + (dmin.astype(np.float64) * minimum)[:, :, None], width, 0, most).astype(np.uint8)
    packed = [
        (scale[:, :4] & 63) | (scale[:, 4:] >> 4 << 6),
        (minimum[:, :4] & 63) | (minimum[:, 4:] >> 4 << 6),
        (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4),
    ]
    return np.concatenate([d.view(np.uint8), dmin.view(np.uint8), *packed], axis=1), codes


def q4_k(values: F64) -> Bytes:
    """Make blocks of Q4_K."""
    head, codes = _with_minima(values.reshape(-1, 8, 32), 15)
    return np.concatenate([head, _pairs(codes.reshape(-1, 4, 2, 32)).reshape(-1, 128)], axis=1)


def q5_k(values: F64) -> Bytes:
    """Make blocks of Q5_K."""
    head, codes = _with_minima(values.reshape(-1, 8, 32), 31)
    fifths = np.bitwise_or.reduce((codes >> 4) << np.arange(8, dtype=np.uint8).reshape(1, 8, 1), axis=1)
    return np.concatenate([head, fifths, _pairs((codes & 15).reshape(-1, 4, 2, 32)).reshape(-1, 128)], axis=1)


def q6_k(values: F64) -> Bytes:
    """Make blocks of Q6_K."""
    runs = values.reshape(-1, 16, 16)
    at = np.abs(runs).argmax(axis=2)[:, :, None]
    step: F64 = np.take_along_axis(runs, at, axis=2)[:, :, 0] / -32  # the largest becomes -32
    d = (np.abs(step).max(axis=1, keepdims=True) / 127).astype(np.float16)
    scale = _units(step, d.astype(np.float64), -128, 127)
    width = (d.astype(np.float64) * scale)[:, :, None]
    codes = (_units(runs, width, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = _pairs((codes & 15).reshape(-1, 2, 2, 64)).reshape(-1, 128)
    high = np.bitwise_or.reduce((codes >> 4) << np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1), axis=2)
    return np.concatenate([low, high.reshape(-1, 64), scale.astype(np.int8).view(np.uint8), d.view(np.uint8)], axis=1)


ENCODERS: Final[dict[str, Callable[[F64], Bytes]]] = {made.__name__: made for made in (q4_k, q5_k, q6_k)}


def encode(values: F32, kind: str) -> Bytes:
    """Return the blocks of rows of floats, of one of :data:`ENCODERS`."""
    return ENCODERS[kind](values.astype(np.float64).reshape(-1, 256)).reshape(*values.shape[:-1], -1)
