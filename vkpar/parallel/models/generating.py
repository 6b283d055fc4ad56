"""Texts by a decoder: one token after the other, and how long they took."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from vkpar.errors import InvalidUsageError
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.sampling import Sampling

AHEAD: Final = 8  # launches of the step that are under way before their tokens are read


@dataclass
class Generation:
    """A text that goes on: iterate over it for its tokens.

    Args:
        model: the decoder.
        prompt: the tokens that the text begins with, after those that the model keeps.
        steps: how many tokens are made at most.
        sampling: how they are chosen.
        stops: tokens after which nothing follows; they are given out too.

    Attributes:
        tokens: made so far.
        prompt_seconds: until the first token was there; ``step_seconds`` all later ones took together.
    """

    model: Llama
    prompt: Sequence[int]
    steps: int
    sampling: Sampling = field(default_factory=Sampling)
    stops: Sequence[int] = ()
    tokens: list[int] = field(default_factory=list, init=False)
    prompt_seconds: float = field(default=0.0, init=False)
    step_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise InvalidUsageError(f"steps is a whole number from 0, not {self.steps!r}")
        wanted = self.model.length + len(self.prompt) + max(self.steps - 1, 0)
        if wanted > self.model.context:
            raise InvalidUsageError(
                f"{self.model.length} tokens, {len(self.prompt)} of the prompt and {self.steps} steps do not fit the "
                f"{self.model.context} that there is room for"
            )

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt a second (pp)."""
        return len(self.prompt) / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def step_rate(self) -> float:
        """Tokens a second after the first one (tg)."""
        return (len(self.tokens) - 1) / self.step_seconds if self.step_seconds else 0.0

    def __iter__(self) -> Generator[int]:
        """Give the tokens; the model keeps the prompt and all tokens but the last one that was given."""
        start = time.perf_counter()
        self.model.prefill(self.prompt)
        if not self.steps:
            self.model.next_token()  # waits
            self.prompt_seconds = time.perf_counter() - start
            return
        source = self._likeliest() if self.sampling.greedy else self._drawn()
        with closing(source):
            for token in source:
                now = time.perf_counter()
                if self.tokens:
                    self.step_seconds += now - start
                else:
                    self.prompt_seconds = now - start
                self.tokens.append(token)
                yield token
                if token in self.stops:
                    return
                start = time.perf_counter()

    def _drawn(self) -> Generator[int]:
        sampler = self.sampling.sampler()
        token = sampler(self.model.next_logits())
        yield token
        for _ in range(self.steps - 1):
            self.model.feed(token)
            token = sampler(self.model.next_logits())
            yield token

    def _likeliest(self) -> Generator[int]:
        """Give tokens that the devices choose; some steps are under way before the first of them is read."""
        model, left, kept = self.model, self.steps - 1, self.model.length
        yield model.next_token()
        try:
            while left:
                first, count = model.length, min(left, AHEAD)
                for _ in range(count):
                    model.feed()
                for number, token in enumerate(model.fed(first, first + count)):
                    kept = first + number + 1
                    yield token
                left -= count
        finally:
            model.rewind(kept)
