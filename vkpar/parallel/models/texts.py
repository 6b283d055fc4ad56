"""Several texts at once: each joins and leaves while others go on, and one captured step serves all of them."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar import ops
from vkpar.comm import ranks as rig
from vkpar.errors import InvalidUsageError
from vkpar.graph.capture import capture
from vkpar.parallel.layers.norms import Parts, there
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.prompts import checked, listed
from vkpar.parallel.models.sampling import NOT_FINITE, History, Sampler, Sampling, read_logits
from vkpar.unpickled import Closable, Unpickled

AHEAD: Final = 8  # launches of the step that are under way before their tokens are read


def check_steps(steps: object) -> None:
    """Refuse what is no number of tokens."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InvalidUsageError(f"steps is a whole number from 0, not {steps!r}")


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
        sequence: which of the model's texts it is, until it ends.
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


class Texts(Closable, Unpickled):
    """The texts of a decoder that was made for several: they join, get a token with each step, and leave.

    A prompt is run when its text joins. Then one launch of a captured step gives every text its next token, whichever
    they are: each has its own position, keys and values on the devices, and gets the tokens that it would get alone.
    Over several processes all make the same calls.

    Args:
        model: the decoder. It takes no prompt of its own until this is closed.

    Raises:
        InvalidUsageError: the model keeps tokens of a text of its own, or its texts are taken already.

    Examples:
        >>> from vkpar.parallel.models import Sampling, Texts, open_model
        >>> with open_model(folder) as file, file.load(comm, mode="tensor", context=32, sequences=2) as model:
        ...     with Texts(model) as texts:
        ...         one = texts.join([1, 5, 9], steps=5)
        ...         _ = texts.step()
        ...         two = texts.join([7], steps=2, sampling=Sampling(temperature=0.8, seed=1))
        ...         while texts.joined:
        ...             _ = texts.step()
        >>> len(one.tokens), len(two.tokens)
        (5, 2)
    """

    def __init__(self, model: Llama) -> None:
        if model.length:
            raise InvalidUsageError(f"the model keeps {model.length} tokens of its own; rewind it first")
        self._free = list(range(model.sequences - 1, -1, -1))
        self._joined: dict[int, Text] = {}
        self._model = model
        self._aside = model._aside()
        self._aside.callback(self._release)
        comm, count = model.comm, model.sequences
        self._tokens, self._positions, self._going = (
            rig.by_rank(comm, [device.zeros(count, "uint32") for device in comm.devices]) for _ in range(3)
        )
        self._history = History(there(self._tokens, model._here).device, AHEAD, count)
        self._graph: Any = None
        self._logits: Any = None
        self._changed, self._ahead = True, 0  # what devices have: other texts, or more tokens than texts were given

    @property
    def joined(self) -> tuple[Text, ...]:
        """The texts that go on, in the order in which they joined."""
        return tuple(self._joined.values())

    @property
    def free(self) -> int:
        """How many texts may join."""
        return len(self._free)

    def logits(self) -> NDArray[np.float32]:
        """Return the logits that the latest step gave, (sequences, vocabulary): of a text the row ``text.sequence``.

        Over several processes all call it together.

        Raises:
            InvalidUsageError: there was no step.
        """
        if self._logits is None:
            raise InvalidUsageError("no step was made")
        return read_logits(self._model.comm, self._logits, self._model.root)

    def stats(self) -> Any:
        """Return what the captured step is made of, :class:`vkpar.GraphStats`; None before the first step."""
        return None if self._graph is None else self._graph.stats()

    def join(
        self, prompt: Iterable[int], steps: int, sampling: Sampling | None = None, stops: Iterable[int] = ()
    ) -> Text:
        """Run a prompt, and return the text that goes on with each step; its first token is there.

        Args:
            prompt: the tokens that the text begins with.
            steps: how many tokens are made at most; the text leaves by itself once it has them.
            sampling: how they are chosen; the likeliest ones by default.
            stops: tokens after which the text leaves, too; they are given out.

        Raises:
            InvalidUsageError: as many texts as there is room for go on; a prompt without tokens, with one that the
                vocabulary lacks, or too long for ``steps`` and the model's context; logits that are not finite.
        """
        self._check_open()
        model = self._model
        check_steps(steps)
        ids = checked(listed(prompt, model.context), model.config.vocabulary)
        if ids.size + max(steps - 1, 0) > model.context:
            raise InvalidUsageError(
                f"{ids.size} tokens of the prompt and {steps} steps do not fit the {model.context} that there is room "
                "for"
            )
        if not self._free:
            raise InvalidUsageError(f"{len(self._joined)} texts go on, and there is room for no more; one has to leave")
        text = Text(ids.size, steps, sampling or Sampling(), frozenset(stops), self._free[-1])
        start = time.perf_counter()
        with model._within(text.sequence):
            model.prefill(ids)
            likeliest = model.next_token()
            if steps:
                needs = likeliest == 0 or not text.sampling.greedy
                text._add(text._drawn(model.next_logits() if needs else np.zeros(1), likeliest))
        text.prompt_seconds = time.perf_counter() - start
        text.ended = text.ended or not steps
        if not text.ended:
            self._joined[self._free.pop()] = text
            self._changed = True
        return text

    def leave(self, text: Text) -> None:
        """End a text before it has all its tokens; others may join in its place.

        Raises:
            InvalidUsageError: it has ended, or is none of these texts.
        """
        self._check_open()
        self._check_joined(text)
        text.ended = True
        self._remove(text)

    def rewind(self, text: Text, count: int = 1) -> None:
        """Forget the tokens of a text after the first ``count`` of those that were made.

        Raises:
            InvalidUsageError: it has ended, or is none of these texts; no token would be left, or there are fewer.
        """
        self._check_open()
        self._check_joined(text)
        if not 1 <= count <= len(text.tokens):
            raise InvalidUsageError(f"of {len(text.tokens)} tokens that were made, {count} cannot be left")
        del text.tokens[count:]
        self._changed = True

    def step(self) -> list[Text]:
        """Give every text its next token by a launch of the captured step; return those that got one.

        Raises:
            InvalidUsageError: no text goes on; logits that are not finite.
        """
        return next(self.steps(1))

    def steps(self, most: int = AHEAD) -> Generator[list[Text]]:
        """Make some steps, and yield after each the texts that got a token.

        Several launches are under way before the first token is read where devices choose all tokens and no text ends
        by its number of steps before; so texts that join between two of them go on after the last one.

        Args:
            most: steps.

        Raises:
            InvalidUsageError: as :meth:`step`.
        """
        self._check_open()
        if not self._joined:
            raise InvalidUsageError("no text goes on; join one")
        greedy = all(text.sampling.greedy for text in self.joined)
        count = min(most, AHEAD, *(text.left for text in self.joined)) if greedy else 1
        start = time.perf_counter()
        self._launch(count)
        found = self._history.read(0, count)
        logits = self._read_logits(found[-1])
        texts, taken = self.joined, time.perf_counter() - start
        for number, row in enumerate(found):
            self._ahead = count - number
            start, given = time.perf_counter(), [text for text in texts if not text.ended]
            for text in given:
                place = text.sequence
                text._add(text._drawn(logits.get(place, np.zeros(1)), int(row[place])))
                if text.ended:
                    self._remove(text)
            seconds = taken / count + time.perf_counter() - start
            for text in given:
                text.step_seconds += seconds
            self._ahead -= 1
            if given:
                yield given

    def close(self) -> None:
        """End all texts, and let the model take prompts of its own; a second call does nothing."""
        self._aside.close()

    # ---- within ----

    def _check_open(self) -> None:
        if self._tokens is None:
            raise InvalidUsageError("the texts are closed")

    def _check_joined(self, text: Text) -> None:
        if self._joined.get(text.sequence) is not text:
            raise InvalidUsageError("the text has ended already, or is one of another model")

    def _remove(self, text: Text) -> None:
        del self._joined[text.sequence]
        self._free.append(text.sequence)
        self._changed = True

    def _launch(self, count: int) -> None:
        """Tell the devices what changed, and launch the step so many times."""
        if self._graph is None:
            self._capture()
        texts, changed = self.joined, self._changed or self._ahead > 0
        if changed:
            self._write(self._positions, {text.sequence: text.position for text in texts})
            self._write(self._going, {text.sequence: 1 for text in texts})
        if changed or not all(text.sampling.greedy for text in texts):
            self._write(self._tokens, {text.sequence: text.tokens[-1] for text in texts})
        self._changed = False
        for number in range(count):
            self._graph.launch(number=number)

    def _write(self, parts: Parts, values: dict[int, int]) -> None:
        """Write a value of each text, and 0 for those that are missing."""
        row = np.array([values.get(number, 0) for number in range(self._model.sequences)], np.uint32)
        for array in rig.own(self._model.comm, parts):
            assert array is not None, "ranks of this process have it"
            array.write(row)

    def _read_logits(self, latest: NDArray[Any]) -> dict[int, NDArray[np.float32]]:
        """Return the logits of texts whose tokens the host draws, or of whose last one it has to see what made it."""
        needs = [t.sequence for t in self.joined if not t.sampling.greedy or latest[t.sequence] == 0]
        if not needs:
            return {}
        whole = self.logits()
        return {number: whole[number] for number in needs}

    def _capture(self) -> None:
        comm, here = self._model.comm, self._model._here
        with capture(comm.devices, comm=comm if comm.nranks > 1 else None) as step:
            number = there(rig.by_rank(comm, list(step.param("number"))), here)
            self._logits = self._model._of_rows(self._tokens, self._positions)
            self._history.note(number, there(self._tokens, here))
            for rank in comm.local_ranks:
                places = there(self._positions, rank)
                ops.add(places, there(self._going, rank), out=places)
        self._graph = step

    def _release(self) -> None:
        """Free what the devices have for the texts."""
        if self._graph is not None:
            self._graph.close()
        for text in self.joined:
            text.ended = True
        self._joined, self._free, self._graph, self._logits = {}, [], None, None
        self._tokens = self._positions = self._going = self._history = None  # type: ignore[assignment]


def all_texts(
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
