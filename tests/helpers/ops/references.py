"""What operations on rows and rotary positions give in float64, and how far float32 may be off."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vkpar.testing import U

F64 = NDArray[np.float64]


def depth(length: int) -> float:
    """Additions that follow each other in a row, at most: those of one invocation, and the tree."""
    return 80.0 + length / 256.0


def softmax_of(x: F64) -> tuple[F64, F64, F64, F64]:
    """Return softmax, distances to the largest, the sum of exponentials and the relative error of that.

    Vulkan's exp errs by 3 + 2 |d| units, its argument by one unit of d. A row that is read again is summed with respect
    to the largest element so far: each time that this rises, the sum is scaled by another exp.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        d = x - x.max(axis=-1, keepdims=True)
        exps = np.exp(d)
        total = exps.sum(axis=-1, keepdims=True)
        length = x.shape[-1]
        spread = np.where(np.isfinite(d), -d, 0.0).max(axis=-1, keepdims=True)
        terms = np.where(exps > 0, exps * (3 + 3 * np.abs(d)), 0.0).sum(axis=-1, keepdims=True) / total
        return exps / total, d, total, U * (5 * depth(length) + 3 * spread + terms)


def softmax_error(x: F64) -> tuple[F64, F64]:
    y, d, _, relative = softmax_of(x)
    with np.errstate(invalid="ignore"):
        return y, np.where(y > 0, y * (relative + (6 + 3 * np.abs(d)) * U), 0.0)


def log_error(x: F64) -> tuple[F64, F64]:
    _, d, total, relative = softmax_of(x)
    with np.errstate(invalid="ignore"):
        logarithm = np.log(total)
        off = relative + 3 * U * np.abs(logarithm) + 2.0**-21
        return d - logarithm, np.where(np.isfinite(d), off + 2 * U * (np.abs(d) + np.abs(logarithm)), 0.0)


def norm_error(x: F64, w: F64, b: F64, eps: float, centered: bool) -> tuple[F64, F64]:
    gamma = depth(x.shape[-1]) * U * 1.01
    zero = np.zeros((*x.shape[:-1], 1))
    mean = x.mean(axis=-1, keepdims=True) if centered else zero
    off = gamma * np.abs(x).mean(axis=-1, keepdims=True) + 4 * U * np.abs(mean) if centered else zero
    c = x - mean
    square = (c * c).mean(axis=-1, keepdims=True)
    error = (gamma + 6 * U) * square + 2 * off * np.abs(c).mean(axis=-1, keepdims=True) + off * off
    inverse = 1 / np.sqrt(square + eps)
    relative = 0.5 * error / (square + eps) * 1.1 + 10 * U
    y = c * inverse * w
    return y + b, np.abs(w) * inverse * (off + U * np.abs(c)) * 1.1 + np.abs(y) * (relative + 3 * U) + 2 * U * np.abs(b)


def turned(x: F64, positions: NDArray[np.int64], frequencies: F64, style: str) -> tuple[F64, F64]:
    """Return the result for x (..., T, n) and its error.

    What is left of an angle, v, at most pi / 4, errs by 2^-32 of a turn (cut off), by |position| 2^-54 of one (the
    table is made of float64) and by 2.5 roundings of v. To the sine this is 2 U, to the cosine 1.4 U; the polynomials'
    terms below the first, at most 0.08 and 0.3, err by 4 U of themselves, the last addition by U: less than
    3.7 U in all, and what the polynomials leave out, 2^-29, makes no 4 U of it.
    """
    half = len(frequencies)
    angles = positions[:, None] * frequencies
    c, s = np.cos(angles), np.sin(angles)
    first = slice(0, 2 * half, 2) if style == "llama" else slice(0, half)
    second = slice(1, 2 * half, 2) if style == "llama" else slice(half, 2 * half)
    a, b = x[..., first], x[..., second]
    expected, error = x.copy(), np.zeros(x.shape)
    expected[..., first], expected[..., second] = a * c - b * s, a * s + b * c
    error[..., first] = error[..., second] = (4 * U + 2 * U) * (np.abs(a) + np.abs(b))
    return expected, error


def plain(width: int, theta: float = 10000.0) -> F64:
    return theta ** (-2.0 * np.arange(width // 2) / width)
