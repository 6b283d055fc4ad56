"""The encoder in NumPy, float64: what the rig's results are held against, and how far they may be from it.

Tokens are packed: the rows of a hidden state are the tokens of all sentences one after the other, so that there is no
padding; only attention looks at where a sentence begins and ends.

Each operation hands its result to :meth:`Errors.off` with how far a device may be off there: what random roundings make
of a product, what :mod:`vkpar.testing` says of a wire, what docs/operations.md says of the others. By default nothing
is off; :mod:`vkpar.demo.bounds` draws signs for these errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vkpar.demo.weights import F32, Model
from vkpar.parallel.models import bert_config as names
from vkpar.testing import U, wire_of

F64 = npt.NDArray[np.float64]

_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True)
class Errors:
    """What a rig's arithmetic may do to results.

    Attributes:
        signs: draws the signs of errors; None for no errors.
        wire: how sums over ranks cross the links.
        heads: by rank the columns of the attention's results that it adds up; empty where one rank has them all.
        inner: the same of the feed-forward block's inner width.
    """

    signs: np.random.Generator | None = None
    wire: str = "f32"
    heads: Sequence[slice] = ()
    inner: Sequence[slice] = ()

    def off(self, value: F64, size: Any) -> F64:
        """Return ``value``, off by ``size`` one way or the other."""
        if self.signs is None:
            return value
        return np.asarray(value + (2.0 * self.signs.integers(0, 2, value.shape) - 1.0) * size)

    def dot(self, a: F64, b: F64) -> F64:
        """Return ``a @ b``, off by what random roundings make of a float32 sum of so many products.

        Each of the K roundings is off by U times a partial sum at most, which the magnitudes of the terms bound.
        """
        value = a @ b
        if self.signs is None:
            return np.asarray(value)
        return self.off(value, math.sqrt(a.shape[-1] + 2) * U * (np.abs(a) @ np.abs(b)))

    def rounded(self, value: F64, units: float = 1.0) -> F64:
        """Return ``value`` with so many roundings."""
        return self.off(value, units * U * np.abs(value))


EXACT = Errors()


def gelu(x: F64) -> F64:
    """Return x * Phi(x) with Phi the normal distribution function, not the tanh formula that resembles it."""
    return np.asarray(0.5 * x * (1.0 + np.asarray(_erf(x / math.sqrt(2.0)), np.float64)))


def layer_norm(x: F64, weight: F32, bias: F32, epsilon: float, errors: Errors = EXACT) -> F64:
    """Normalise each row of ``x`` (rows, hidden) to mean 0 and variance 1, then scale and shift it."""
    sums = (80 + x.shape[-1] / 256) * U
    mean = errors.off(x.mean(axis=-1, keepdims=True), sums * np.abs(x).mean(axis=-1, keepdims=True))
    centred = x - mean
    factor = 1.0 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    scaled = errors.rounded(centred * errors.off(factor, sums / 2 * factor) * weight.astype(np.float64), 4)
    return errors.rounded(scaled + bias.astype(np.float64))


def linear(x: F64, weight: F32, bias: F32, errors: Errors = EXACT, parts: Sequence[slice] = ()) -> F64:
    """Return ``x @ weight.T + bias`` for a weight of (outputs, inputs).

    Args:
        x: (rows, inputs).
        weight: the weight.
        bias: (outputs,).
        errors: what may be off.
        parts: by rank the inputs whose terms it adds up, where ranks sum their parts; the first that has any adds the
            bias.
    """
    wide = weight.astype(np.float64).T
    total, size, added = np.zeros(()), np.zeros(()), bias.astype(np.float64)
    for part in [part for part in parts if part.stop > part.start] or [slice(0, len(wide))]:
        partial = errors.rounded(errors.dot(x[:, part], wide[part]) + added)
        total, size, added = total + partial, size + np.abs(partial), 0.0 * added
    if len(parts) < 2:
        return np.asarray(total)
    rounding, ranks = wire_of(errors.wire), len(parts)  # each of which may round what it adds to
    growth = ((1.0 + rounding.relative) * (1.0 + U)) ** ranks * (1.0 + rounding.block) ** ranks
    once = (rounding.relative + U) * size + rounding.block * size.max(initial=0.0)
    return errors.off(total, math.sqrt(ranks) * growth * once)


def feed_forward(x: F64, layer: dict[str, F32], errors: Errors = EXACT) -> F64:
    """Return gelu(x W1 + b1) W2 + b2 of one layer: (tokens, hidden) to (tokens, hidden), no residual and no norm."""
    before = linear(x, layer["intermediate.dense.weight"], layer["intermediate.dense.bias"], errors)
    inner = gelu(before)
    inner = errors.off(inner, ((3 + before * before) * U + 1.3e-7) * np.abs(inner))
    return linear(inner, layer["output.dense.weight"], layer["output.dense.bias"], errors, errors.inner)


def self_attention(x: F64, layer: dict[str, F32], heads: int, lengths: Sequence[int], errors: Errors = EXACT) -> F64:
    """Return the attention's output before its residual, (tokens, hidden); each sentence sees only itself."""
    query, key, value = (
        linear(x, layer[f"attention.self.{part}.weight"], layer[f"attention.self.{part}.bias"], errors)
        for part in ("query", "key", "value")
    )
    mixed = np.empty_like(x)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        # (heads, length, hidden / heads)
        q, k, v = (part[rows].reshape(length, heads, -1).swapaxes(0, 1) for part in (query, key, value))
        found = _attended(q, k, v, errors)
        mixed[rows] = found.swapaxes(0, 1).reshape(length, -1)
        start += length
    weight, bias = layer["attention.output.dense.weight"], layer["attention.output.dense.bias"]
    return linear(mixed, weight, bias, errors, errors.heads)


def _attended(q: F64, k: F64, v: F64, errors: Errors) -> F64:
    """Return softmax(q k^T / sqrt(width)) v of each head."""
    width = q.shape[-1]
    scores = errors.rounded(errors.dot(q, k.swapaxes(1, 2)) / math.sqrt(width), 2)
    depth = scores.max(axis=-1, keepdims=True) - scores
    weights = np.exp(-depth)
    weights = errors.off(weights, (3 + 3 * depth) * U * weights)
    chances = weights / weights.sum(axis=-1, keepdims=True)
    return errors.rounded(errors.dot(chances, v), math.sqrt(k.shape[1]) + 4)  # and the sum of the weights


def embed(model: Model, errors: Errors = EXACT) -> F64:
    """Return the packed hidden state before the first layer, (tokens of all sentences, hidden)."""
    words, positions, kinds = (model.tensors[name] for name in (names.WORDS, names.POSITIONS, names.TYPES))
    kind = kinds[0].astype(np.float64)
    parts = [words[ids] + errors.rounded(positions[: len(ids)].astype(np.float64) + kind) for ids in model.ids]
    state = errors.rounded(np.concatenate(parts))
    weight, bias = model.tensors["embeddings.LayerNorm.weight"], model.tensors["embeddings.LayerNorm.bias"]
    return layer_norm(state, weight, bias, model.config.epsilon, errors)


def block(model: Model, index: int, state: F64, errors: Errors = EXACT) -> F64:
    """Return the hidden state after layer ``index``, (tokens, hidden), of the one before it."""
    layer, epsilon = model.layer(index), model.config.epsilon
    lengths = [len(ids) for ids in model.ids]

    def joined(made: F64, residual: F64, norm: str) -> F64:
        weight, bias = layer[f"{norm}.LayerNorm.weight"], layer[f"{norm}.LayerNorm.bias"]
        return layer_norm(errors.rounded(made + residual), weight, bias, epsilon, errors)

    mixed = self_attention(state, layer, model.config.heads, lengths, errors)
    state = joined(mixed, state, "attention.output")
    return joined(feed_forward(state, layer, errors), state, "output")


def pool(model: Model, state: F64, errors: Errors = EXACT) -> F64:
    """Return the sentence embeddings, (sentences, hidden): the mean over each one's tokens, scaled to length 1."""
    lengths = np.array([len(ids) for ids in model.ids])[:, None]
    starts = np.cumsum([0, *lengths[:-1, 0]])
    means, sizes = (np.add.reduceat(found, starts, axis=0) / lengths for found in (state, np.abs(state)))
    means = errors.off(means, np.sqrt(lengths + 3) * U * sizes)
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    return errors.rounded(np.asarray(means / errors.rounded(norms, math.sqrt(state.shape[1]) + 8)), 4)


def encode(model: Model, errors: Errors = EXACT) -> F64:
    """Run the whole encoder and return the sentence embeddings, (sentences, hidden), each of length 1."""
    state = embed(model, errors)
    for index in range(model.config.layers):
        state = block(model, index, state, errors)
    return pool(model, state, errors)
