"""The encoder in NumPy, float64: what the rig's results are held against.

Tokens are packed: the rows of a hidden state are the tokens of all sentences one after the other, so that there is no
padding; only attention looks at where a sentence begins and ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from vkpar.demo.weights import F32, Model

F64 = npt.NDArray[np.float64]

_erf = np.frompyfunc(math.erf, 1, 1)


def gelu(x: F64) -> F64:
    """Return x * Phi(x) with Phi the normal distribution function, not the tanh formula that resembles it."""
    return x * normal(x)


def normal(x: F64) -> F64:
    """Return the normal distribution function Phi."""
    return 0.5 * (1.0 + np.asarray(_erf(x / math.sqrt(2.0)), np.float64))


def gelu_slope(x: F64) -> F64:
    """Return the derivative of :func:`gelu`."""
    return normal(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def layer_norm(x: F64, weight: F32, bias: F32, epsilon: float) -> F64:
    """Normalise each row of ``x`` (rows, hidden) to mean 0 and variance 1, then scale and shift it."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + epsilon) * weight.astype(np.float64) + bias.astype(np.float64))


def linear(x: F64, weight: F32, bias: F32) -> F64:
    """Return ``x @ weight.T + bias`` for a weight of (outputs, inputs)."""
    return x @ weight.astype(np.float64).T + bias.astype(np.float64)


def feed_forward(x: F64, layer: dict[str, F32]) -> F64:
    """Return gelu(x W1 + b1) W2 + b2 of one layer: (tokens, hidden) to (tokens, hidden), no residual and no norm."""
    inner = gelu(linear(x, layer["intermediate.dense.weight"], layer["intermediate.dense.bias"]))
    return linear(inner, layer["output.dense.weight"], layer["output.dense.bias"])


def self_attention(x: F64, layer: dict[str, F32], heads: int, lengths: Sequence[int]) -> F64:
    """Return the attention's output before its residual, (tokens, hidden); each sentence sees only itself."""
    query, key, value = (
        linear(x, layer[f"attention.self.{part}.weight"], layer[f"attention.self.{part}.bias"])
        for part in ("query", "key", "value")
    )
    mixed = np.empty_like(x)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        # (heads, length, hidden / heads)
        q, k, v = (part[rows].reshape(length, heads, -1).swapaxes(0, 1) for part in (query, key, value))
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed[rows] = (scores / scores.sum(axis=-1, keepdims=True) @ v).swapaxes(0, 1).reshape(length, -1)
        start += length
    return linear(mixed, layer["attention.output.dense.weight"], layer["attention.output.dense.bias"])


def embed(model: Model) -> F64:
    """Return the packed hidden state before the first layer, (tokens of all sentences, hidden)."""
    words = model.tensors["embeddings.word_embeddings.weight"].astype(np.float64)
    positions = model.tensors["embeddings.position_embeddings.weight"].astype(np.float64)
    kind = model.tensors["embeddings.token_type_embeddings.weight"].astype(np.float64)[0]
    state = np.concatenate([words[tokens] + positions[: len(tokens)] + kind for tokens in model.tokens()])
    return layer_norm(
        state,
        model.tensors["embeddings.LayerNorm.weight"],
        model.tensors["embeddings.LayerNorm.bias"],
        model.config.epsilon,
    )


def attend(model: Model, state: F64, layer: dict[str, F32]) -> F64:
    """Return a layer's first half, attention with residual and norm: the input of its feed-forward block."""
    lengths = [len(tokens) for tokens in model.tokens()]
    mixed = self_attention(state, layer, model.config.heads, lengths)
    weight, bias = layer["attention.output.LayerNorm.weight"], layer["attention.output.LayerNorm.bias"]
    return layer_norm(state + mixed, weight, bias, model.config.epsilon)


def finish(model: Model, attended: F64, block: F64, layer: dict[str, F32]) -> F64:
    """Return the next hidden state from a layer's attended state and its feed-forward block's result."""
    weight, bias = layer["output.LayerNorm.weight"], layer["output.LayerNorm.bias"]
    return layer_norm(attended + block, weight, bias, model.config.epsilon)


def pool(model: Model, state: F64) -> F64:
    """Return the sentence embeddings, (sentences, hidden): the mean over each one's tokens, scaled to length 1."""
    lengths = [len(tokens) for tokens in model.tokens()]
    starts = np.cumsum([0, *lengths[:-1]])
    means = np.add.reduceat(state, starts, axis=0) / np.asarray(lengths, np.float64)[:, None]
    return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


def encode(model: Model, block: Callable[[int, F64, dict[str, F32]], F64] | None = None) -> F64:
    """Run the whole encoder and return the sentence embeddings, (sentences, hidden), each of length 1.

    Args:
        model: the weights and the sentences.
        block: what computes feed-forward block ``index`` of an attended state; in NumPy by default.
    """
    state = embed(model)
    for index in range(model.config.layers):
        layer = model.layer(index)
        attended = attend(model, state, layer)
        result = feed_forward(attended, layer) if block is None else block(index, attended, layer)
        state = finish(model, attended, result, layer)
    return pool(model, state)
