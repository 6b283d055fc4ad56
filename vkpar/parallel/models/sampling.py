"""The next token from a row of logits: the likeliest one, or drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar.errors import InvalidUsageError

NOT_FINITE: Final = "the logits are not finite: the weights hold NaN or infinity, or overflow"


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: what logits are divided by; 0 takes the likeliest token.
        top_k: only so many of the likeliest tokens are drawn from; 0 for all.
        top_p: only the likeliest tokens whose probabilities reach this sum together are drawn from; 1 for all.
        seed: of the draws.

    Examples:
        >>> from vkpar.parallel.models import Generation, Sampling, open_model
        >>> with open_model(folder) as file, file.load(comm, mode="tensor", ratios="even", context=32) as model:
        ...     drawn = list(Generation(model, [1, 5, 9], 4, Sampling(temperature=0.8, top_k=40, seed=1)))
        >>> len(drawn)
        4
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidUsageError(f"temperature is a number from 0, not {self.temperature!r}")
        if self.top_k < 0:
            raise InvalidUsageError(f"top_k is a whole number from 0, not {self.top_k!r}")
        if not 0 < self.top_p <= 1:
            raise InvalidUsageError(f"top_p is above 0 and at most 1, not {self.top_p!r}")
        if self.seed < 0:
            raise InvalidUsageError(f"seed is a whole number from 0, not {self.seed!r}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, the first of equals."""
        return self.temperature == 0

    def sampler(self) -> Sampler:
        """Return what draws tokens, at its begin."""
        return Sampler(self)


class Sampler:
    """Draws one token after the other."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = np.random.default_rng(sampling.seed)

    def probabilities(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """Return what each token is drawn with, (vocabulary,).

        Raises:
            InvalidUsageError: logits that are not finite: no token is likelier than another.
        """
        values = np.asarray(logits, np.float64).reshape(-1)
        if not np.isfinite(values).all():
            raise InvalidUsageError(NOT_FINITE)
        if self._sampling.greedy:
            chosen = np.zeros_like(values)
            chosen[int(np.argmax(values))] = 1.0
            return chosen
        order = np.argsort(-values, kind="stable")
        if self._sampling.top_k:
            order = order[: self._sampling.top_k]
        scaled = (values[order] - values[order[0]]) / self._sampling.temperature
        weights = np.exp(scaled)
        weights /= weights.sum()
        if self._sampling.top_p < 1:
            before = np.cumsum(weights) - weights
            weights = np.where(before < self._sampling.top_p, weights, 0.0)
        found = np.zeros_like(values)
        found[order] = weights / weights.sum()
        return found

    def __call__(self, logits: NDArray[Any]) -> int:
        """Return the next token."""
        chances = self.probabilities(logits)
        if self._sampling.greedy:
            return int(np.argmax(chances))
        return int(self._generator.choice(chances.size, p=chances))
