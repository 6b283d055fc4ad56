"""A decoder in float64 NumPy, and how far float32 devices may be from it.

How far a single operation may be off is known: gamma(K) of the magnitudes of the terms of a product, what
``vkpar.testing`` says of a wire, what docs/operations.md says of the others. What is left of an error at the end
depends on all that follows. Added up with their worst signs, errors of two blocks already exceed the logits; with
signs that do not know of each other they add up as random steps do, and Hoeffding bounds them: steps of at most d_i,
each of which moves a logit by J_i d_i, move it further than c sqrt(sum (J_i d_i)^2) with a probability of 2 exp(-c^2 /
2). That root is the standard deviation of runs in which each operation is off by all of its bound, with signs that are
drawn. ``RUNS`` such runs measure it, and ``C`` makes the probability 1e-9 a logit. Each d_i is the worst that the
operation can do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar.parallel.models import naming
from vkpar.parallel.models.config import Config
from vkpar.testing import U, gamma, wire_of

F64 = NDArray[np.float64]
RUNS: Final = 5
C: Final = math.sqrt(2 * math.log(2e9))


class Reference:
    """A decoder that keeps its keys and values.

    Args:
        config: the sizes.
        tensors: by transformers' names, in any float.
        ranks: how many devices add up; ``wire`` is what their sums travel in.
        kept: relative error of storing keys and values.
        inputs: relative error of rounding what goes into products, and what goes through attention.
        seed: of the signs of errors; None for no errors.
    """

    def __init__(
        self,
        config: Config,
        tensors: Mapping[str, Any],
        ranks: int = 1,
        wire: str = "f32",
        kept: float = 0.0,
        inputs: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self.config, self.ranks, self.wire, self.kept, self.inputs = config, ranks, wire, kept, inputs
        self.tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self.caches: list[tuple[F64, F64] | None] = [None] * config.layers
        self.position = 0
        self.closest = math.inf  # by how much the last expert that a row took led the next one
        self._signs = None if seed is None else np.random.default_rng(seed)

    def off(self, value: F64, error: Any) -> F64:
        """``value`` with an error of that size."""
        if self._signs is None:
            return value
        return value + self._signs.choice((-1.0, 1.0), value.shape) * error

    def product(self, x: F64, name: str, ranks: int = 1) -> F64:
        weight = self.tensors[name]
        x = self.halved(x)
        size = np.abs(x) @ np.abs(weight).T
        result = self.summed(self.off(x @ weight.T, gamma(weight.shape[1] + 2) * size), size, ranks)
        bias = self.tensors.get(name.removesuffix("weight") + "bias")
        return result if bias is None else self.rounded(result + bias)

    def summed(self, value: F64, size: F64, ranks: int) -> F64:
        """A sum over ranks of terms of that size."""
        if ranks == 1:
            return value
        rounding = wire_of(self.wire)
        growth = ((1 + rounding.relative) * (1 + U)) ** ranks
        block = growth * math.expm1(ranks * math.log1p(rounding.block)) * size.max(initial=0)
        return self.off(value, (growth - 1) * size + block)

    def halved(self, x: F64) -> F64:
        """``x`` as it is stored between products and attention."""
        return self.off(x, self.inputs * np.abs(x))

    def rounded(self, value: F64, units: float = 1.0) -> F64:
        return self.off(value, units * U * np.abs(value))

    def norm(self, x: F64, name: str) -> F64:
        mean = np.mean(x**2, axis=-1, keepdims=True) + self.config.epsilon
        mean = self.off(mean, gamma(x.shape[-1] + 4) * mean)
        weight = self.tensors[name] + self.config.differs.centred
        return self.rounded(x / np.sqrt(mean) * weight, 6)

    def head_norm(self, x: F64, name: str) -> F64:
        """Each head's norm, where the model has such norms."""
        return self.halved(self.norm(x, name)) if name in self.tensors else x

    def after(self, x: F64, name: str) -> F64:
        """The norm of what half a block gives, where the model has such norms."""
        return self.norm(x, name) if self.config.post_norms else x

    def embedded(self, tokens: Sequence[int]) -> F64:
        rows = self.tensors["model.embed_tokens.weight"][list(tokens)]
        return (
            self.rounded(rows * float(np.float32(math.sqrt(self.config.hidden))))
            if self.config.differs.scaled
            else rows
        )

    def gate(self, x: F64) -> F64:
        """The function of gates."""
        if self.config.differs.gate == "swiglu":
            made = x / (1 + np.exp(-x))
            return self.off(made, (9 + 2 * np.abs(x)) * U * np.abs(made))
        inner = math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)
        made = x / (1 + np.exp(-inner))
        return self.off(made, (12 + 8 * np.abs(inner)) * U * np.abs(made))

    def sigmoid(self, x: F64) -> F64:
        made = 1 / (1 + np.exp(-x))
        return self.off(made, (9 + 2 * np.abs(x)) * U * made)

    def rope(self, x: F64, positions: NDArray[Any], block: int) -> F64:
        """x: (heads, T, width)."""
        half = self.config.head_dim // 2
        angles = positions[:, None] * inverse_frequencies(self.config, block)
        angles = self.off(angles, 8 * U * np.abs(angles))
        cos, sin = (self.off(turn, 8 * U) for turn in (np.cos(angles), np.sin(angles)))
        first, second = (
            (slice(None, half), slice(half, None))
            if self.config.style == "neox"
            else (slice(0, None, 2), slice(1, None, 2))
        )
        a, b = x[..., first], x[..., second]
        made = np.empty_like(x)
        made[..., first], made[..., second] = a * cos - b * sin, b * cos + a * sin
        size = np.concatenate([np.abs(a) + np.abs(b)] * 2, -1)
        return self.off(made, 3 * U * size)

    def attention(self, q: F64, k: F64, v: F64, block: int) -> F64:
        """q: (heads, T, width); k and v: (kv_heads, S, width)."""
        keys, values = (np.repeat(x, self.config.group, 0) for x in (k, v))
        width, scale = q.shape[-1], self.config.scale or 1 / math.sqrt(q.shape[-1])
        size = np.einsum("htd,hsd->hts", np.abs(q), np.abs(keys)) * scale
        scores = self.off(np.einsum("htd,hsd->hts", q, keys) * scale, gamma(width + 3) * size)
        t, s = scores.shape[1:]
        seen = np.arange(s)[None, :] <= self.position + np.arange(t)[:, None]
        if self.config.window is not None and self.config.slides(block):
            seen &= np.arange(s)[None, :] > self.position + np.arange(t)[:, None] - self.config.window
        scores = np.where(seen, scores, -np.inf)
        depth = np.where(seen, scores.max(axis=-1, keepdims=True) - scores, 0)
        weights = np.exp(-depth) * seen
        weights = self.off(weights, ((3 + 3 * depth) * U + self.inputs) * weights)
        chances = weights / weights.sum(axis=-1, keepdims=True)
        return self.off(chances @ values, gamma(2 * s + 4) * (chances @ np.abs(values)))

    def gated(self, x: F64, names: Sequence[str]) -> F64:
        """What goes into the last product of a feed-forward block."""
        gate, up = (self.product(x, name) for name in names)
        return self.gate(gate) * up

    def feed_forward(self, x: F64, own: str) -> F64:
        """A feed-forward block without experts."""
        inner = self.gated(x, [f"{own}mlp.{name}_proj.weight" for name in ("gate", "up")])
        return self.product(inner, own + "mlp.down_proj.weight", self.ranks)

    def mixture(self, x: F64, own: str) -> F64:
        """A mixture of experts: the likeliest ones of each row, the first of equals, weighed and added up."""
        config = self.config
        sparse = "block_sparse_moe" if config.family == "llama" else "mlp"
        names = ("w1", "w3", "w2") if config.family == "llama" else ("gate_proj", "up_proj", "down_proj")
        kept, self.inputs = self.inputs, 0.0  # the router takes rows as they are
        logits = self.product(x, f"{own}{sparse}.gate.weight")
        self.inputs = kept
        taken = np.argsort(-logits, axis=1, kind="stable")[:, : config.active]
        self.closest = min(self.closest, _gap(logits, config.active))
        depth = logits.max(axis=1, keepdims=True) - logits
        shares = np.exp(-depth)
        shares = self.off(shares, (3 + 3 * depth) * U * shares)
        whole = np.take_along_axis(shares, taken, 1) if config.normed else shares
        shares = self.rounded(shares / whole.sum(axis=1, keepdims=True), config.experts + 3)
        total, size = np.zeros_like(x), np.zeros_like(x)
        for expert in range(config.experts):
            rows = np.flatnonzero((taken == expert).any(axis=1))
            if rows.size:
                first, second, last = (f"{own}{sparse}.experts.{expert}.{name}.weight" for name in names)
                inner = self.gated(x[rows], (first, second))
                weight = shares[rows, expert][:, None]
                total[rows] += weight * self.product(inner, last)
                size[rows] += weight * (np.abs(inner) @ np.abs(self.tensors[last]).T)
        if config.shared:
            weight = self.sigmoid(self.product(x, f"{own}mlp.shared_expert_gate.weight"))
            names = tuple(f"{own}mlp.shared_expert.{name}.weight" for name in names)
            inner = self.rounded(weight * self.gated(x, names[:2]))
            total += self.product(inner, names[2])
            size += np.abs(inner) @ np.abs(self.tensors[names[2]]).T
        total = self.off(total, gamma(config.active + 2 + bool(config.shared)) * size)
        return self.summed(total, size, self.ranks)

    def logits(self, tokens: Sequence[int]) -> F64:
        """Go on with ``tokens``; return (T, vocabulary)."""
        config = self.config
        positions = self.position + np.arange(len(tokens))
        x = self.embedded(tokens)
        names = naming.TRANSFORMERS.of_family(config.differs).blocks

        def heads(part: F64) -> F64:
            return part.reshape(len(tokens), -1, config.head_dim).swapaxes(0, 1)

        for block in range(config.layers):
            own = f"model.layers.{block}."
            normed = self.norm(x, own + "input_layernorm.weight")
            q, k, v = (self.halved(heads(self.product(normed, f"{own}self_attn.{name}_proj.weight"))) for name in "qkv")
            q, k = (self.head_norm(x, f"{own}self_attn.{name}_norm.weight") for x, name in ((q, "q"), (k, "k")))
            q, k = (self.halved(self.rope(part, positions, block)) for part in (q, k))
            k, v = (self.off(part, self.kept * np.abs(part)) for part in (k, v))
            before = self.caches[block]
            if before is not None:
                k, v = (np.concatenate(pair, 1) for pair in zip(before, (k, v), strict=True))
            self.caches[block] = (k, v)
            mixed = self.halved(self.attention(q, k, v, block)).swapaxes(0, 1).reshape(len(tokens), -1)
            made = self.product(mixed, own + "self_attn.o_proj.weight", self.ranks)
            x = self.rounded(x + self.after(made, names.get("attention.post", "").format(block)))
            normed = self.norm(x, names["forward.norm"].format(block))
            made = self.mixture(normed, own) if config.mixes(block) else self.feed_forward(normed, own)
            x = self.rounded(x + self.after(made, names.get("forward.post", "").format(block)))
        self.position += len(tokens)
        normed = self.norm(x, "model.norm.weight")
        return self.product(normed, "model.embed_tokens.weight" if config.tied else "lm_head.weight")


def _gap(logits: F64, active: int) -> float:
    """By how much the last column that is taken leads the next one."""
    ordered = -np.sort(-logits, axis=1)
    return math.inf if active == logits.shape[1] else float((ordered[:, active - 1] - ordered[:, active]).min())


def inverse_frequencies(config: Config, block: int = 0) -> F64:
    half = config.head_dim // 2
    theta, scaling = config.rotary(block)
    found = theta ** (-np.arange(half) / half)
    if scaling is None:
        return found
    if not isinstance(scaling, Mapping):  # one divisor, or one of each frequency
        return found / np.asarray(scaling)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_context"] * found / (2 * np.pi)  # as the model card of Llama 3.1 describes it
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - smooth) * found / scaling["factor"] + smooth * found


def bounded(config: Config, tensors: Mapping[str, Any], tokens: Sequence[int], **errors: Any) -> tuple[F64, F64]:
    """The logits of ``tokens``, (T, vocabulary), and how far each row's may be off, (T, 1).

    ``errors`` are those of :class:`Reference`.
    """
    value = Reference(config, tensors).logits(tokens)
    runs = [Reference(config, tensors, seed=seed, **errors).logits(tokens) for seed in range(RUNS)]
    deviation = np.sqrt(np.mean([(run - value) ** 2 for run in runs], axis=0))
    return value, C * deviation.max(axis=-1, keepdims=True)


def greedy(config: Config, tensors: Mapping[str, Any], tokens: Sequence[int], steps: int) -> list[int]:
    """The likeliest tokens after ``tokens``, one after the other."""
    reference = Reference(config, tensors)
    fed, found = list(tokens), []
    for _ in range(steps):
        fed = [int(np.argmax(reference.logits(fed)[-1]))]
        found += fed
    return found


def surest(value: F64, bound: F64) -> float:
    """How many times its bound the likeliest token leads by; above 2 right devices choose the same."""
    ordered = np.sort(value, axis=-1)
    return float(((ordered[:, -1] - ordered[:, -2]) / bound[:, 0]).min())
