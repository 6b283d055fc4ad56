"""Attention in float64 with a bound of its error, and operands for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.ops.elements import ROUNDING, normal
from numpy.typing import NDArray

import vkpar
from vkpar.testing import U

F64 = NDArray[np.float64]
Arrays = tuple[vkpar.Array, vkpar.Array, vkpar.Array]


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
