"""Texts by a decoder: one token after the other, and how long they took."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vkpar.errors import InvalidUsageError
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.prompts import checked, listed
from vkpar.parallel.models.sampling import NOT_FINITE, Sampling, Text, rates_of
from vkpar.parallel.models.texts import AHEAD, Texts, check_steps
from vkpar.text import units

_log = logging.getLogger("vkpar")


def room_for(config: Config, prompt: Sequence[int], steps: int, context: int | None = None) -> int:
    """Return how many tokens a model makes room for, so that a text fits; nothing of it needs to be loaded before.

    Args:
        config: of the model.
        prompt: the tokens that the text begins with.
        steps: how many tokens follow at most.
        context: the room that was asked for; None for what the text takes. A text that is longer than what the model
            was made for is a warning where this asks for more than that, else an error.

    Raises:
        InvalidUsageError: a prompt without tokens or with one that the vocabulary lacks, or a text that does not fit.
    """
    check_steps(steps)
    if isinstance(prompt, Sized) and not len(prompt):
        raise InvalidUsageError("the prompt has no tokens; at least one is needed")
    checked(prompt, config.vocabulary)
    if context is not None:
        if isinstance(context, bool) or not isinstance(context, int) or context < 1:
            raise InvalidUsageError(f"context is a whole number from 1, not {context!r}")
        needed = len(prompt) + max(steps - 1, 0)  # the last token is not kept
        if needed > context:
            raise InvalidUsageError(
                f"{len(prompt)} tokens of the prompt and {steps} steps do not fit a context of {context}; "
                f"it takes {needed}"
            )
    if len(prompt) + steps > config.context:
        longer = (
            f"{len(prompt)} tokens of the prompt and {steps} steps are more than the {config.context} that the model "
            "was made for"
        )
        if context is None or context <= config.context:
            raise InvalidUsageError(
                f"{longer}; take fewer, or ask for a larger context (context=, --context) to go beyond"
            )
        _log.warning("%s: the text may make no sense", longer)
    return context if context is not None else len(prompt) + max(steps, 1)


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file, one a line; lines without any are left out.

    Raises:
        InvalidUsageError: there is none.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise InvalidUsageError(f"{path} has no line with a prompt")
    return lines


@dataclass
class Generation:
    """A text that goes on, or several at once: iterate over it for the tokens.

    Of several texts, each step yields a list with a token of each, in their order, and None where a text has ended, or
    waits for one to end: there are as many at once as the model was made for (``sequences``).

    Args:
        model: the decoder.
        prompt: the tokens that the text begins with, after those that the model keeps; of an iterator they are taken
            at once. A list of such lists for several texts, of which the model keeps nothing before and after.
        steps: how many tokens are made at most, of each text.
        sampling: how they are chosen; of several texts one for all, or a list with one of each.
        stops: tokens after which nothing follows; they are given out too.

    Attributes:
        tokens: made so far; of several texts a list of each one's.
        texts: of several texts those that have begun, with the times of each.
        prompt_seconds: until the first token was there; ``step_seconds`` all later ones took together.

    Examples:
        >>> from vkpar.parallel.models import Generation, open_model
        >>> with open_model(folder) as file, file.load(comm, mode="tensor", ratios="even", context=32) as model:
        ...     text = Generation(model, [1, 5, 9], steps=4)
        ...     list(text) == text.tokens, model.length  # the last token was not put in yet
        (True, 6)
        >>> with open_model(folder) as file, file.load(comm, mode="tensor", context=32, sequences=2) as model:
        ...     texts = Generation(model, [[1, 5, 9], [7]], steps=4)
        ...     [len(tokens) for tokens in texts]  # in each step a token of each
        [2, 2, 2, 2]
    """

    model: Llama
    prompt: Any
    steps: int
    sampling: Sampling | Sequence[Sampling] = field(default_factory=Sampling)
    stops: Iterable[int] = ()
    tokens: list[Any] = field(default_factory=list, init=False)
    texts: list[Text] = field(default_factory=list, init=False)
    prompt_seconds: float = field(default=0.0, init=False)
    step_seconds: float = field(default=0.0, init=False)
    _count: int = field(default=0, init=False, repr=False)
    _several: bool = field(default=False, init=False, repr=False)
    _samplings: list[Sampling] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        check_steps(self.steps)
        self.prompt, self.stops = listed(self.prompt, self.model.context - self.model.length), tuple(self.stops)
        if isinstance(self.prompt, Sequence | np.ndarray) and len(self.prompt) and isinstance(self.prompt[0], Sized):
            self._check_several()
            return
        if not isinstance(self.sampling, Sampling):
            raise InvalidUsageError("one text takes one Sampling, not a list")
        self._samplings = [self.sampling]
        self._count = checked(self.prompt, self.model.config.vocabulary).size
        wanted = self.model.length + self._count + max(self.steps - 1, 0)
        if wanted > self.model.context:
            raise InvalidUsageError(
                f"{self.model.length} tokens, {self._count} of the prompt and {self.steps} steps do not fit the "
                f"{self.model.context} that there is room for"
            )

    def _check_several(self) -> None:
        """Refuse what several texts cannot have, and note of each what it takes."""
        self._several = True
        given, count = self.sampling, len(self.prompt)
        self._samplings = [given] * count if isinstance(given, Sampling) else list(given)
        if len(self._samplings) != count:
            raise InvalidUsageError(f"{count} prompts take one Sampling or {count}, not {len(self._samplings)}")
        for number, prompt in enumerate(self.prompt):
            size = checked(prompt, self.model.config.vocabulary, f"prompt {number}: ").size
            if size + max(self.steps - 1, 0) > self.model.context:
                raise InvalidUsageError(
                    f"prompt {number}: {size} tokens and {self.steps} steps do not fit the {self.model.context} that "
                    "there is room for"
                )
            self._count += size
        self.tokens = [[] for _ in range(count)]

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt a second (pp)."""
        return self._count / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def step_rate(self) -> float:
        """Tokens a second after the first one (tg)."""
        made = sum(len(each) - 1 for each in self.tokens if each) if self._several else len(self.tokens) - 1
        return made / self.step_seconds if self.step_seconds else 0.0

    @property
    def rates(self) -> str:
        """Both rates in words, by llama-bench's names; of several texts those of all together."""
        made = sum(map(len, self.tokens)) if self._several else len(self.tokens)
        words = f"{len(self.tokens)} texts, together: " if self._several else ""
        return words + rates_of(self._count, self.prompt_rate, made, self.step_rate)

    def in_order(self) -> Generator[Text]:
        """Run several texts, and give each as soon as it and those before it have ended."""
        given = 0
        for _ in self:
            while given < len(self.texts) and self.texts[given].ended:
                yield self.texts[given]
                given += 1
        yield from self.texts[given:]

    def __iter__(self) -> Generator[Any]:
        """Give the tokens; the model keeps the prompt and all tokens but the last one that was given.

        Raises:
            InvalidUsageError: logits that are not finite. Where the devices choose the tokens, only logits that are NaN
                for all tokens are sure to be found.
        """
        if self._several:
            yield from self._of_several()
            return
        start = time.perf_counter()
        self.model.prefill(self.prompt)
        if not self.steps:
            self.model.next_token()  # waits
            self.prompt_seconds = time.perf_counter() - start
            return
        source = self._likeliest() if self._samplings[0].greedy else self._drawn()
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

    def _of_several(self) -> Generator[list[int | None]]:
        self.tokens, self.texts = [[] for _ in self.prompt], []
        elapsed = 0.0
        with Texts(self.model) as texts:
            start = time.perf_counter()
            for given in _all_texts(texts, self.prompt, self.steps, self._samplings, self.stops, self.texts):
                row: list[int | None] = [None] * len(self.prompt)
                for number, text in enumerate(self.texts):
                    self.tokens[number] = text.tokens
                    if text in given:
                        row[number] = text.tokens[-1]
                self.prompt_seconds = sum(text.prompt_seconds for text in self.texts)
                elapsed += time.perf_counter() - start
                self.step_seconds = elapsed - self.prompt_seconds
                if given:
                    yield row
                start = time.perf_counter()

    def _drawn(self) -> Generator[int]:
        sampler = self._samplings[0].sampler()
        token = sampler(self.model.next_logits())
        yield token
        for _ in range(self.steps - 1):
            self.model.feed(token)
            token = sampler(self.model.next_logits())
            yield token

    def _likeliest(self) -> Generator[int]:
        """Give tokens that the devices choose; some steps are under way before the first of them is read."""
        model, left, kept = self.model, self.steps - 1, self.model.length
        yield self._checked(model.next_token())
        try:
            while left:
                first, count = model.length, min(left, AHEAD)
                for _ in range(count):
                    model.feed()
                found = model.fed(first, first + count)
                self._checked(found[-1])
                for number, token in enumerate(found):
                    kept = first + number + 1
                    yield token
                left -= count
        finally:
            model.rewind(kept)

    def _checked(self, latest: int) -> int:
        """Return the latest token; an error where NaN made it: of logits that are all NaN the devices take the first.

        NaN stays in the keys and values, so the last of several steps shows it, and only token 0 costs a download.
        """
        if latest == 0 and np.isnan(self.model.next_logits()[0]):
            raise InvalidUsageError(NOT_FINITE)
        return latest


def _all_texts(
    texts: Texts,
    prompts: Sequence[Sequence[int]],
    steps: int,
    samplings: Sequence[Sampling],
    stops: Iterable[int],
    begun: list[Text],
) -> Generator[list[Text]]:
    """Let texts join in their order as places become free, and yield after each step those that got a token.

    Args:
        texts: where they join.
        prompts: theirs.
        steps: of each at most.
        samplings: theirs.
        stops: of all.
        begun: gets the texts that joined, in order.
    """
    wanted, stops = list(zip(prompts, samplings, strict=True)), tuple(stops)
    while texts.joined or len(begun) < len(wanted):
        most = AHEAD if len(begun) == len(wanted) else 1
        rounds: Iterable[list[Text]] = texts.steps(most) if texts.joined else ([],)
        for given in rounds:
            new = []
            while texts.free and len(begun) < len(wanted):
                prompt, sampling = wanted[len(begun)]
                begun.append(texts.join(prompt, steps, sampling, stops))
                new.append(begun[-1])
            yield [*given, *(text for text in new if text.tokens)]


def summary(generation: Generation, model: Llama) -> str:
    """Return how fast the prompt and the tokens were, of which model, and where."""
    devices, held = model.placed()["devices"], model.weights_nbytes
    used = [f"{device} ({units(nbytes)})" for device, nbytes in zip(devices, held, strict=True) if nbytes]
    how = f"split by {model.placement.mode} over " if len(used) > 1 else "on "
    return f"{generation.rates}\n{model.config.describe()}, {how}{', '.join(used)}"


def graph(model: Llama) -> str:
    """Return what a token's graph on one device consists of."""
    stats = model.stats()
    if stats is None:
        return "no token was made by a graph: --steps 2 and more are"
    return (
        f"a token: {stats.operations} operations with {stats.barriers} barriers between them, "
        f"{stats.host_us} us of the host to launch"
    )
