"""What operations on rows, rotary positions and attention give in float64, and how far float32 may be off."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from vkpar.testing import U

F64 = NDArray[np.float64]
# The relative error of rounding to a type, and the absolute one below its normal numbers (some drivers flush float32).
ROUNDING: Final = {"float32": (0.0, 2.0**-126), "float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-126)}


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
    """Return softmax along the last axis and its error."""
    y, d, _, relative = softmax_of(x)
    with np.errstate(invalid="ignore"):
        return y, np.where(y > 0, y * (relative + (6 + 3 * np.abs(d)) * U), 0.0)


def log_error(x: F64) -> tuple[F64, F64]:
    """Return softmax's logarithm along the last axis and its error."""
    _, d, total, relative = softmax_of(x)
    with np.errstate(invalid="ignore"):
        logarithm = np.log(total)
        off = relative + 3 * U * np.abs(logarithm) + 2.0**-21
        return d - logarithm, np.where(np.isfinite(d), off + 2 * U * (np.abs(d) + np.abs(logarithm)), 0.0)


def norm_error(x: F64, w: F64, b: F64, eps: float, centered: bool) -> tuple[F64, F64]:
    """Return layer norm (``centered``) or RMS norm along the last axis and its error."""
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


def norm_gradient(exact: F64, product: F64, eps: float, centered: bool) -> tuple[F64, F64]:
    """Return the gradient of normed rows, where the weighted gradient of the results is ``product``, and its error."""
    unit, off = norm_error(exact, np.ones(1), np.zeros(1), eps, centered)
    inverse, gamma = _inverse(exact, eps, centered), 2 * depth(exact.shape[-1]) * U
    level = product.mean(axis=-1, keepdims=True) * centered
    slope = (product * unit).mean(axis=-1, keepdims=True)
    wrong = gamma * np.abs(product * unit).mean(axis=-1, keepdims=True)
    wrong = wrong + 1.1 * (np.abs(product) * off).mean(axis=-1, keepdims=True) + 4 * U * np.abs(slope)
    sizes = np.abs(product) + np.abs(level) + np.abs(unit * slope)
    scale = gamma * np.abs(product).mean(axis=-1, keepdims=True) + off * np.abs(slope) + np.abs(unit) * wrong
    return inverse * (product - level - unit * slope), inverse * (1.1 * scale + sizes * (gamma + 20 * U))


def _inverse(x: F64, eps: float, centered: bool) -> F64:
    off = x - x.mean(axis=-1, keepdims=True) if centered else x
    return np.asarray(1 / np.sqrt((off * off).mean(axis=-1, keepdims=True) + eps))


def swiglu_of(gate: F64, up: F64) -> tuple[F64, F64]:
    """Return what it is and its error: exp's, and of five operations."""
    with np.errstate(invalid="ignore", over="ignore"):
        y = gate / (1 + np.exp(-gate)) * up
        return y, np.abs(y) * U * (12 + 3 * np.abs(gate))


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
    """Return the angles per position of plain rotary embedding."""
    return theta ** (-2.0 * np.arange(width // 2) / width)


def attended(
    q: F64,
    k: F64,
    v: F64,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: F64 | None = None,
    length: int | None = None,
    stored: str = "float32",
) -> tuple[F64, F64]:
    """Return the result for one sequence and its error.

    A score errs by the roundings of scaled queries, products and sums; a weight relatively by its score's error, by
    that of exp, (3 + 2 |d|) U, whose argument d rounds once, and by that of factors where the largest score rises:
    those fall by ``spread`` altogether, in as many steps as there are tiles at most. Sums of S terms in any order err
    by S U of the terms' sizes. The quotient and the factors between parts add some U.
    Matrix cores take weights as they are ``stored``, rounded once.
    """
    heads, tokens, width = q.shape
    kv_heads, keys, _ = k.shape
    k, v = (np.repeat(each, heads // kv_heads, axis=0) for each in (k, v))
    scale = width**-0.5 if scale is None else scale
    counted = keys if length is None else min(max(length, 0), keys)
    scores = np.einsum("htw,hsw->hts", q, k) * scale
    off = (width + 6) * U * abs(scale) * np.einsum("htw,hsw->hts", np.abs(q), np.abs(k))
    if mask is not None:
        scores = scores + mask
        off = off + U * np.abs(np.where(np.isfinite(scores), scores, 0))
    limit = np.full((tokens, 1), counted)
    if causal:
        limit = counted - (tokens - 1 - np.arange(tokens))[:, None]
    seen = (np.arange(keys)[None, :] < limit) & (scores > -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, where=seen, initial=-np.inf)
    d = np.where(seen, scores - np.where(np.isfinite(top), top, 0), 0)
    weights = np.where(seen, np.exp(d), 0)
    total = weights.sum(axis=-1, keepdims=True)
    shares = weights / np.where(total > 0, total, 1)
    spread = np.abs(d).max(axis=-1, keepdims=True, initial=0)
    relative = 1.1 * off + U * (3 + 3 * np.abs(d) + 3 * spread + 1.05 * keys + 5 * keys / 64 + 30)
    y = shares @ v
    wrong = (shares * relative) @ np.abs(v) + np.abs(y) * (shares * relative).sum(axis=-1, keepdims=True)
    rounding, least = ROUNDING[stored]
    wrong = wrong + rounding * (shares @ np.abs(v)) + least * (seen @ np.abs(v)) / np.where(total > 0, total, 1)
    return y, 1.1 * wrong


def philox(count: int, seed: int, position: int = 0) -> NDArray[np.uint32]:
    """Return the first words of Philox4x32-10 (Salmon and others, 2011)."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64) + np.uint64(position)
    mask = np.uint64(0xFFFFFFFF)
    c = [blocks & mask, blocks >> np.uint64(32), np.zeros_like(blocks), np.zeros_like(blocks)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        one, other = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (other >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]),
            other & mask,
            (one >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]),
            one & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1).ravel()[:count].astype(np.uint32)
