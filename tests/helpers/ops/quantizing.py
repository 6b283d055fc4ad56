"""Quantised weights for tests: random blocks, what they are, and how far products by them may be off."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

import vkpar
from vkpar.ops.quantized.weights import KINDS
from vkpar.testing import gamma

NAMES = tuple(sorted(KINDS, reverse=True, key="q6_k".__eq__))  # a sample has the first one
TYPES = {name: GGMLQuantizationType[name.upper()] for name in NAMES}

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float64]


def blocks_of(rng: np.random.Generator, kind: str, rows: int, columns: int, scale: float = 0.02) -> Blocks:
    """Random blocks, every byte any value, but for normal scales."""
    found = KINDS[kind]
    made = rng.integers(0, 256, (rows, columns // found.block, found.nbytes), np.uint8)
    scales = rng.standard_normal((rows, columns // found.block, found.halves)) * scale
    return scaled_by(made.reshape(rows, -1), kind, scales)


def scaled_by(blocks: Blocks, kind: str, scales: NDArray[Any]) -> Blocks:
    """Return blocks with other float16 scales, or scales and what minima are multiplied by, the last axis."""
    found = KINDS[kind]
    made = blocks.copy().reshape(len(blocks), -1, found.nbytes)
    end = found.scale_at + 2 * found.halves
    made[..., found.scale_at : end] = np.ascontiguousarray(scales.astype(np.float16)).view(np.uint8)
    return made.reshape(len(blocks), -1)


def whole_numbers(blocks: Blocks, kind: str) -> Blocks:
    """Return blocks whose weights are whole numbers, or halves of them."""
    found = KINDS[kind]
    return scaled_by(blocks, kind, np.array([1, 2] if found.halves == 2 else [0.5]))


def exact(blocks: Blocks, kind: str) -> NDArray[np.float32]:
    """The weights."""
    with np.errstate(invalid="ignore"):
        made: NDArray[np.float32] = quants.dequantize(blocks, TYPES[kind])
    return made


def columns_of(kind: str, blocks: int = 3) -> int:
    return KINDS[kind].block * blocks


def made(device: vkpar.Device, blocks: Blocks, kind: str) -> vkpar.Quantized:
    found = KINDS[kind]
    return vkpar.quantized(device, blocks, (len(blocks), blocks.shape[1] // found.nbytes * found.block), kind)


def magnitudes(blocks: Blocks, kind: str) -> Floats:
    """What errors are relative to: a weight's magnitude, or those of the two parts that it is made of."""
    weights, found = exact(blocks, kind).astype(np.float64), KINDS[kind]
    if found.halves == 1:
        return np.abs(weights)
    without = blocks.copy().reshape(len(blocks), -1, found.nbytes)
    without[..., 2:4] = 0
    scaled = exact(without.reshape(len(blocks), -1), kind).astype(np.float64)
    return np.abs(scaled) + np.abs(scaled - weights)


def error_of(x: NDArray[Any], blocks: Blocks, kind: str, slab: str = "float32", *, dots: bool = False) -> Floats:
    """How far a product may be off.

    A term is rounded when it is multiplied, once for each term added before it in its chunk, when the chunk is scaled,
    and for each chunk and each invocation added after it: K + 40 times at most. Weights that are made in float16 are
    rounded to it before: to within 2^-11 of themselves, or 2^-25 below its normal numbers. With ``dots`` the row is
    rounded to whole numbers, each to within half of a unit that is 2^-21 of the largest element of its chunk at most.
    """
    rounding: Floats | float = 0.0
    if slab == "float16":
        size = np.abs(x).astype(np.float64)
        rounding = (2.0**-11 * size @ np.abs(exact(blocks, kind).astype(np.float64)).T) + 2.0**-25 * size.sum(
            1, keepdims=True
        )
        rounding *= 1 + gamma(x.shape[1] + 40)  # what is summed is as much larger
    if dots:
        chunk, size = KINDS[kind].chunk, np.abs(x).astype(np.float64)
        largest = np.repeat(size.reshape(len(x), -1, chunk).max(-1), chunk, axis=1)
        rounding = 2.0**-22 * (1 + gamma(x.shape[1] + 40)) * (largest @ magnitudes(blocks, kind).T)
    return rounding + gamma(x.shape[1] + 40) * (np.abs(x).astype(np.float64) @ magnitudes(blocks, kind).T) + 1e-37
