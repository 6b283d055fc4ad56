"""The next token from a row of logits: the likeliest one, by the devices, or drawn; one of several texts of such."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.parallel.layers.norms import Parts, there
from vkpar.unpickled import Unpickled

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


def rates_of(count: int, prompt_rate: float, made: int, step_rate: float) -> str:
    """Return rates in words: of ``count`` tokens of a prompt, and of those that were made."""
    rates = f"pp {count}: {prompt_rate:.1f} tokens/s of the prompt"
    return rates + f", tg {made}: {step_rate:.1f} tokens/s after it" * (step_rate > 0)


@dataclass(eq=False)
class Text(Unpickled):
    """One of several texts; :meth:`Texts.join` makes it.

    Attributes:
        count: tokens of its prompt.
        steps: how many tokens are made at most.
        sampling: how they are chosen.
        stops: tokens after which nothing follows.
        sequence: which of the model's texts it is, until it ends. The next one that joins may change it.
        tokens: made so far.
        ended: it has all its tokens, or was left.
        prompt_seconds: until its first token was there; ``step_seconds`` all later ones took together.

    Examples:
        >>> from vkpar.parallel.models import Texts, open_model
        >>> with open_model(folder) as file, file.load(comm, mode="tensor", context=32, sequences=2) as model:
        ...     with Texts(model) as texts:
        ...         text = texts.join([1, 5, 9], steps=5)
        ...         texts.leave(text)
        >>> text.left, text.position, text.ended  # of five tokens the first one was made with the prompt
        (4, 3, True)
    """

    count: int
    steps: int
    sampling: Sampling
    stops: frozenset[int]
    sequence: int
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    prompt_seconds: float = 0.0
    step_seconds: float = 0.0
    _sampler: Sampler = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._sampler = self.sampling.sampler()

    @property
    def left(self) -> int:
        """Tokens that are still to be made, where none of them stops the text."""
        return self.steps - len(self.tokens)

    @property
    def position(self) -> int:
        """Where its latest token goes, which was not put in yet."""
        return self.count + len(self.tokens) - 1

    @property
    def rates(self) -> str:
        """How many tokens a second its prompt and its tokens took, by llama-bench's names."""
        later = max(len(self.tokens) - 1, 0)
        prompt_rate, step_rate = self.count / (self.prompt_seconds or 1), later / (self.step_seconds or 1)
        return rates_of(self.count, prompt_rate, len(self.tokens), step_rate)

    def _add(self, token: int) -> None:
        self.tokens.append(token)
        self.ended = not self.left or token in self.stops

    def _drawn(self, logits: NDArray[Any], likeliest: int) -> int:
        """Return the next token; the devices chose the likeliest one."""
        if not self.sampling.greedy:
            return self._sampler(logits)
        if likeliest == 0 and np.isnan(logits[0]):
            raise InvalidUsageError(NOT_FINITE)
        return likeliest


class History:
    """The tokens that launches of a step gave, of each text one, where the host reads several launches' together.

    Args:
        device: where it lies.
        launches: of how many there are tokens.
        count: texts.
    """

    def __init__(self, device: Device, launches: int, count: int = 1) -> None:
        self._kept = device.zeros((launches, count), "uint32")
        self._places = device.array(np.arange(launches, dtype=np.uint32).reshape(-1, 1))

    def note(self, number: Array, tokens: Array) -> None:
        """Keep the tokens of a launch, whose number is on the device."""
        ops.where(ops.equal(self._places, number), tokens.reshape(1, -1), self._kept, out=self._kept)

    def read(self, first: int, stop: int) -> NDArray[np.uint32]:
        """Return the tokens of some launches, (launches, texts), once they are there."""
        found: NDArray[np.uint32] = self._kept.read(slice(first, stop))
        return found


def choose(comm: Communicator, logits: Parts, tokens: Parts, root: int, counts: Sequence[int]) -> Array:
    """Gather the logits of rows on the root, put the likeliest token of each on all ranks, and return the logits.

    Args:
        comm: the communicator.
        logits: by rank (rows, its tokens of the vocabulary).
        tokens: (rows,) uint32 by rank, which are written.
        root: the rank that chooses. A process without it returns where the logits could be received.
        counts: by rank how many tokens of the vocabulary it has.
    """
    here = root if root in comm.local_ranks else comm.local_ranks[0]
    mine, whole = there(tokens, here), logits[here]
    if counts[root] < sum(counts) or whole is None:
        whole = mine.device.empty((mine.size, sum(counts)), "float32")
    if counts[root] < sum(counts):
        parts = whole if mine.size == 1 else mine.device.empty(whole.size, "float32")
        comm.gather(rig.own(comm, logits), root, out=parts if here == root else None)
        if mine.size > 1 and here == root:
            _side_by_side(parts, counts, whole)
    if here == root:
        ops.argmax(whole, axis=1, out=mine)
    if comm.nranks > 1:
        comm.broadcast(rig.own(comm, tokens), root)
    return whole


def _side_by_side(parts: Array, counts: Sequence[int], out: Array) -> None:
    """Copy columns of ``out`` that came one part after the other, each with all of its rows."""
    column = 0
    for count in counts:
        if count:
            first = len(out) * column
            out[:, column : column + count].copy_from(parts[first : first + len(out) * count].reshape(len(out), count))
        column += count


def read_logits(comm: Communicator, logits: Array, root: int) -> NDArray[np.float32]:
    """Return the logits that the root has; over several processes all call it together."""
    if not rig.is_whole(comm):
        given = [logits if rank == root else None for rank in comm.local_ranks]
        out = [device.empty(logits.shape) for device in comm.devices]
        comm.broadcast(given, root, out=out)
        logits = out[0]
    values: NDArray[np.float32] = logits.numpy()
    return values
