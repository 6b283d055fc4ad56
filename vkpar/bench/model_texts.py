"""Several texts at once for ``vkpar bench model``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from vkpar.errors import InvalidUsageError
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.texts import Texts


@contextmanager
def joined(model: Llama, depth: int, count: int) -> Iterator[Texts]:
    """Give as many texts as the model takes, behind ``depth`` tokens each, that have not ended ``count`` later."""
    with Texts(model) as texts:
        for _ in range(model.sequences):
            texts.join([1] * max(depth, 1), count + 2)  # the first one is there, and the last one would end it
        yield texts


def prompts(texts: Texts, count: int) -> float:
    """Return the seconds until as many texts as there is room for have joined, each with so many tokens."""
    for text in texts.joined:
        texts.leave(text)
    start = time.perf_counter()
    while texts.free:
        texts.join([1] * count, 2)
    return time.perf_counter() - start


def tokens(texts: Texts, count: int) -> float:
    """Return the seconds of so many tokens of each text, behind its first one."""
    for text in texts.joined:
        try:
            texts.rewind(text)
        except InvalidUsageError:  # more tokens than windows are kept for
            texts.leave(text)
            texts.join([1] * text.count, text.steps)
    made, start = 0, time.perf_counter()
    while made < count:
        made += sum(1 for _ in texts.steps(count - made))
    return time.perf_counter() - start
